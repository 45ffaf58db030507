"""`inferenceosctl key`: makes, lists and revokes API keys, in the file that the daemon reads.

Works with and without a daemon; a running one goes by the change before the command ends.
"""

import re
import time
from datetime import UTC, datetime

import click
import msgspec

from inferenceosd.commands.admin_client import Door, fail
from inferenceosd.commands.arguments import Duration, as_json_option
from inferenceosd.commands.tables import table
from inferenceosd.door.key_file import (
    MAX_NAME,
    KeyFileRefused,
    UnknownKey,
    add_key,
    read_keys,
    revoke_key,
)
from inferenceosd.settings.config import Options, read_config
from inferenceosd.settings.error import ConfigError
from proxy.admin.status import LockReport, StatusReport
from proxy.admission.keys import SCOPES, ApiKey

DAY_S = 24 * 3600.0


class KeyName(click.ParamType[str]):
    """What a key is called by people."""

    name = "name"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        name = str(value)
        if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            self.fail(f"{name!r:.80} is no name of 1 to {MAX_NAME} characters", param, ctx)
        return name


class Validity(Duration):
    """A span of time, in seconds; in days too, which durations of Go do not know."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        days = re.fullmatch(r"([1-9][0-9]{0,4})d", str(value))
        return int(days[1]) * DAY_S if days else super().convert(value, param, ctx)


@click.group()
def key() -> None:
    """Make, list and revoke API keys.

    Where there is one key, every caller needs one, on this machine too: as Authorization: Bearer
    KEY, or x-api-key: KEY.
    """


@key.command()
@click.argument("name", type=KeyName())
@click.option(
    "--scope",
    type=click.Choice(list(SCOPES)),
    default="infer",
    show_default=True,
    help="infer: use models. manage: pull and delete them too. admin: everything.",
)
@click.option("--expires", type=Validity(), metavar="SPAN", help="Valid for 12h, 90d, ...")
@click.pass_obj
def add(door: Door, name: str, scope: str, expires: float | None) -> None:
    """Make a key called NAME and print it, this once: only its hash is kept."""
    expires_at = None if expires is None else time.time() + expires
    try:
        made, token = add_key(
            _keys_file(door), name=name, scope=SCOPES[scope], expires_at=expires_at
        )
    except KeyFileRefused as exc:
        fail(str(exc))
    click.echo(token)
    until = "" if expires_at is None else f", until {_date(expires_at)}"
    click.echo(f"key {made.key_id} ({scope}{until}); it is not shown again", err=True)
    _have_it_read(door)


@key.command("list")
@as_json_option
@click.pass_obj
def list_(door: Door, as_json: bool) -> None:
    """List the keys: what each allows and until when."""
    try:
        keys = read_keys(_keys_file(door)) or ()
    except KeyFileRefused as exc:
        fail(str(exc))
    click.echo(_keys_json(keys) if as_json else _keys_text(keys, now=time.time()))


@key.command()
@click.argument("key_id", metavar="ID")
@click.pass_obj
def revoke(door: Door, key_id: str) -> None:
    """Make the key with this ID worthless, at once."""
    try:
        gone, left = revoke_key(_keys_file(door), key_id)
    except (KeyFileRefused, UnknownKey) as exc:
        fail(str(exc))
    click.echo(f"key {gone.key_id} ({gone.name}) is revoked")
    if not left:
        click.echo(
            "it was the last: callers on this machine need none now, and a daemon that other"
            " machines reach lets nobody in and does not start again",
            err=True,
        )
    _have_it_read(door)


def _keys_file(door: Door) -> str:
    """The running daemon's, else that of a daemon started here."""
    if door.is_open():
        lock = door.get("/status", StatusReport).value.daemon.lock
        if lock is None:
            fail("the running inferenceosd knows no API keys; restart it with this version")
        return lock.keys_file
    try:
        return read_config(Options()).keys_file
    except ConfigError as exc:
        fail(str(exc))


def _have_it_read(door: Door) -> None:
    if door.is_open():
        mistake = door.post("/lock", LockReport).value.mistake
        if mistake is not None:
            fail(f"the running daemon does not go by it: {mistake}")


def _keys_text(keys: tuple[ApiKey, ...], *, now: float) -> str:
    if not keys:
        return "no API keys: callers on this machine need none"
    rows = [
        (each.key_id, each.name, each.scope.word, _date(each.created_at), _end(each, now=now))
        for each in keys
    ]
    return table(("ID", "NAME", "SCOPE", "CREATED", "EXPIRES"), rows)


def _keys_json(keys: tuple[ApiKey, ...]) -> str:
    told = [
        {
            "id": each.key_id,
            "name": each.name,
            "scope": each.scope.word,
            "created_at": each.created_at,
            "expires_at": each.expires_at,
        }
        for each in keys
    ]
    return msgspec.json.format(msgspec.json.encode({"keys": told}), indent=2).decode()


def _end(each: ApiKey, *, now: float) -> str:
    if each.expires_at is None:
        return "never"
    return "EXPIRED" if each.has_expired(now) else _date(each.expires_at)


def _date(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"
