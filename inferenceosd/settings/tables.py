"""Named tables, [devices."NAME"], [backends.NAME] and [[model]], as kinds like any other.

Which keys they hold, and what those are when unset, is config_keys.py's business.
"""

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import NamedTuple, cast

from inferenceosd.settings.file import AnyKey, Values, read_table
from inferenceosd.settings.kinds import Folders, Kind, Refused, inline_toml

MAX_TABLES = 1000


class Named(NamedTuple):
    """One table and its name."""

    name: str
    values: Values


def _anything(_: Values) -> None:
    """Takes every table."""


def named_tables(
    keys: tuple[AnyKey, ...], *, allowed: str, check: Callable[[Values], None] = _anything
) -> Kind[tuple[Named, ...]]:
    """[section.NAME] tables of `keys`; `check` sees each and raises Refused."""

    def read(value: object, folders: Folders) -> tuple[Named, ...]:
        tables = _table(value)
        _bound(tables)
        found = tuple(
            Named(_printable(name), _values(table, name, keys=keys, folders=folders))
            for name, table in tables.items()
        )
        for name, values in found:
            _check(check, values, name)
        return found

    return Kind("tables", allowed, read, inline_toml, lambda _: "none")


def array_of_tables(
    keys: tuple[AnyKey, ...], *, allowed: str, check: Callable[[Sequence[Values]], None]
) -> Kind[tuple[Values, ...]]:
    """[[section]] tables of `keys`; `check` sees all of them and raises Refused."""

    def read(value: object, folders: Folders) -> tuple[Values, ...]:
        if not isinstance(value, list):
            raise Refused("no array of tables")
        _bound(value)
        found = tuple(
            _values(table, index, keys=keys, folders=folders) for index, table in enumerate(value)
        )
        check(found)
        return found

    return Kind("array of tables", allowed, read, inline_toml, lambda _: "none")


def _values(
    table: object, place: str | int, *, keys: tuple[AnyKey, ...], folders: Folders
) -> Values:
    try:
        return Values(read_table(_table(table), keys=keys, folders=folders))
    except Refused as exc:
        raise exc.below(place) from exc


def _check(check: Callable[[Values], None], values: Values, name: str) -> None:
    try:
        check(values)
    except Refused as exc:
        raise exc.below(name) from exc


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Refused("a value where a table belongs")
    return cast(Mapping[str, object], value)


def _bound(tables: Sized) -> None:
    if len(tables) > MAX_TABLES:
        raise Refused(f"{len(tables)} tables, more than {MAX_TABLES}")


def _printable(name: str) -> str:
    if not name.strip() or not name.isprintable() or len(name) > 256:
        raise Refused("a name that is empty, too long or cannot be printed", path=(name,))
    return name
