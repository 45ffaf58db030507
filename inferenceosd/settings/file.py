"""A TOML file's text as typed settings, each with its line. Knows no default, touches no disk."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar, cast

from msgspec import Struct

from inferenceosd.settings.error import ConfigError
from inferenceosd.settings.kinds import Folders, KeyPath, Kind, Refused
from inferenceosd.settings.lines import key_at_end, key_lines, nearest_line

T = TypeVar("T")

_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class Key(Struct, Generic[T], frozen=True):
    """One setting: its dotted name, what it takes, what it is when nobody sets it, and why."""

    name: str
    kind: Kind[T]
    default: T
    meaning: str
    why: str = ""
    """Where the default comes from, for the reference."""

    @property
    def path(self) -> KeyPath:
        """The name as keys of a TOML file."""
        return tuple(self.name.split("."))


AnyKey = Key[object]


def any_key(key: Key[T]) -> AnyKey:
    """`key` where its type does not matter: T is invariant, and only `Values.get` needs it."""
    return cast(AnyKey, key)


def any_keys(*keys: object) -> tuple[AnyKey, ...]:
    """Keys of all types in one tuple."""
    return cast(tuple[AnyKey, ...], keys)


class Values:
    """Settings by key; what nobody set is its key's default."""

    __slots__ = ("_set",)

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._set = settings

    def get(self, key: Key[T]) -> T:
        """The value in force."""
        return cast(T, self._set.get(key.name, key.default))

    def has(self, key: Key[T]) -> bool:
        """True where somebody set it."""
        return key.name in self._set


class Setting(Struct, frozen=True):
    """One value as some layer sets it."""

    value: object
    source: str
    """A file, a variable or an option."""
    line: int | None = None


def read_setting(key: AnyKey, value: object, *, source: str, folders: Folders) -> object:
    """`value` as `key` takes it, from a variable or an option. Raises ConfigError."""
    try:
        return key.kind.read(value, folders)
    except Refused as exc:
        raise ConfigError(
            exc.problem,
            source=source,
            key=dotted((*key.path, *exc.path)),
            allowed=exc.allowed or key.kind.allowed,
        ) from exc


def file_settings(
    text: str, *, file: str, keys: Iterable[AnyKey], folders: Folders
) -> dict[str, Setting]:
    """Every setting in `text`, by key name. Raises ConfigError, with the line."""
    root = _parsed(text, file=file)
    lines = key_lines(text)
    try:
        values = read_table(root, keys=keys, folders=folders)
    except Refused as exc:
        raise _error(exc, file=file, lines=lines) from exc
    paths = {key.name: key.path for key in keys}
    return {
        name: Setting(value, file, nearest_line(lines, paths[name]))
        for name, value in values.items()
    }


def _parsed(text: str, *, file: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except RecursionError as exc:
        raise ConfigError("values are nested too deeply", source=file) from exc
    except ValueError as exc:  # TOMLDecodeError, or an integer of thousands of digits
        place = _TOML_PLACE.search(str(exc))
        line, column = (int(place[1]), int(place[2])) if place and place[1] else (None, None)
        problem = _TOML_PLACE.sub("", str(exc))
        if place and line is None:
            line, problem = text.count("\n") + 1, f"{problem} at the end of the file"
        problem = f"not TOML: {problem[:1].lower()}{problem[1:]}"
        key = _key_at(text, line=line, column=column)
        raise ConfigError(problem, source=file, line=line, column=column, key=key) from exc


def _key_at(text: str, *, line: int | None, column: int | None) -> str | None:
    """The key that a place of tomllib's lies in; None where that cannot be told."""
    if line is None:
        return None
    if column is not None:
        before = text.split("\n")[: line - 1]
        text = text[: sum(len(each) + 1 for each in before) + column - 1]
    path = key_at_end(text)
    return dotted(path) if path is not None else None


def _error(refused: Refused, *, file: str, lines: dict[KeyPath, int]) -> ConfigError:
    problem = refused.problem
    if refused.earlier is not None:
        problem = f"{problem} (line {nearest_line(lines, refused.earlier)})"
    return ConfigError(
        problem,
        source=file,
        line=nearest_line(lines, refused.path),
        key=dotted(refused.path),
        allowed=refused.allowed,
    )


def dotted(path: KeyPath) -> str:
    """A path as one would write it: devices."NVIDIA RTX".limit, model[2].aliases."""
    parts: list[str] = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part + 1}]")
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            quoted = part if bare else '"' + part.encode("unicode_escape").decode()[:80] + '"'
            parts.append(f".{quoted}" if parts else quoted)
    return "".join(parts)


def read_table(
    table: Mapping[str, object], *, keys: Iterable[AnyKey], folders: Folders
) -> dict[str, object]:
    """The typed values of a table, by key name. Raises Refused for what `keys` do not take."""
    by_path = {key.path: key for key in keys}
    found: dict[str, object] = {}
    for path, value in _leaves(table, by_path):
        key = by_path[path]
        try:
            found[key.name] = key.kind.read(value, folders)
        except Refused as exc:
            below = exc.below(*path)
            raise Refused(
                below.problem,
                path=below.path,
                allowed=exc.allowed or key.kind.allowed,
                earlier=below.earlier,
            ) from exc
    return found


def _leaves(
    table: Mapping[str, object], by_path: Mapping[KeyPath, AnyKey], above: KeyPath = ()
) -> Iterable[tuple[KeyPath, object]]:
    for name, value in table.items():
        path = (*above, name)
        if path in by_path:
            yield path, value
        elif not any(known[: len(path)] == path for known in by_path):
            raise _unknown(path, by_path)
        elif isinstance(value, dict):
            yield from _leaves(value, by_path, path)
        else:
            inside = ", ".join(str(known[-1]) for known in by_path if known[: len(path)] == path)
            raise Refused("a value where a table belongs", path=path, allowed=inside)


def _unknown(path: KeyPath, by_path: Iterable[KeyPath]) -> Refused:
    """The refusal of a key nobody knows, with the nearest that somebody does."""
    known = list(by_path)
    siblings = sorted({str(k[len(path) - 1]) for k in known if k[: len(path) - 1] == path[:-1]})
    from difflib import get_close_matches  # late: seldom wanted, and not small

    near = get_close_matches(str(path[-1]), siblings, n=1)
    if not near:
        elsewhere = [dotted(k) for k in known if k[-1] == path[-1]]
        near = elsewhere[:1]
    hint = f"; did you mean {near[0]}?" if near else ""
    return Refused(f"unknown key{hint}", path=path, allowed=", ".join(siblings))
