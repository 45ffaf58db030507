"""inferenceosd.commands.keys: with the admin service on a real socket, and with nobody on it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from inferenceosd.ctl import main
from inferenceosd.door.key_file import read_keys
from proxy.admin.status import LockReport, StatusReport
from proxy.admission.keys import KeyRing, Scope
from tests.fakes.admin_service import DAEMON, OneModelService, admin_socket

DAY_S = 24 * 3600.0


class Locked(OneModelService):
    """A daemon whose keys are in `keys_file`."""

    def __init__(self, keys_file: Path) -> None:
        super().__init__()
        self.lock = LockReport(0, str(keys_file), is_open=False, tls_expires_at=None)
        self.reads = 0

    def status(self) -> StatusReport:
        return replace(super().status(), daemon=replace(DAEMON, lock=self.lock))

    def read_lock(self) -> LockReport:
        self.reads += 1
        return self.lock


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def service(keys_file: Path) -> Locked:
    return Locked(keys_file)


@pytest.fixture
def served(service: Locked) -> Iterator[Path]:
    with admin_socket(service) as path:
        yield path


def ctl(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--socket", str(path), "key", *arguments])


def test_a_key_is_printed_once_alone_on_stdout_and_the_daemon_goes_by_it_at_once(
    served: Path, service: Locked, keys_file: Path
) -> None:
    result = ctl(served, "add", "laptop")

    token = result.stdout.removesuffix("\n")
    (key,) = read_keys(str(keys_file)) or ()
    assert result.exit_code == 0
    assert KeyRing([key]).holder(token, now=time.time()) == key
    assert (key.name, key.scope, key.expires_at) == ("laptop", Scope.INFER, None)
    assert f"key {key.key_id} (infer)" in result.stderr
    assert service.reads == 1


@pytest.mark.parametrize(
    ("span", "span_s"), [("90d", 90 * DAY_S), ("12h", 12 * 3600.0), ("1h30m", 5400.0)]
)
def test_scope_and_end_are_as_was_asked(
    served: Path, keys_file: Path, span: str, span_s: float
) -> None:
    ctl(served, "add", "ci", "--scope", "manage", "--expires", span)

    (key,) = read_keys(str(keys_file)) or ()
    assert key.scope is Scope.MANAGE
    assert (key.expires_at or 0) - time.time() == pytest.approx(span_s, abs=30)


@pytest.mark.parametrize(
    "arguments",
    [
        ("add",),
        ("add", ""),
        ("add", "x" * 65),
        ("add", "a\nb"),
        ("add", "a", "--scope", "root"),
        ("add", "a", "--expires", "0d"),
        ("add", "a", "--expires", "-1h"),
        ("add", "a", "--expires", "soon"),
        ("revoke",),
    ],
    ids=" ".join,
)
def test_wrong_usage_makes_no_key(
    served: Path, keys_file: Path, arguments: tuple[str, ...]
) -> None:
    assert ctl(served, *arguments).exit_code == 2
    assert not keys_file.exists()


def test_keys_are_listed_without_what_opens(served: Path) -> None:
    token = ctl(served, "add", "laptop").stdout.strip()
    ctl(served, "add", "old", "--expires", "1ms")

    text = ctl(served, "list").stdout
    told = json.loads(ctl(served, "list", "--json").stdout)["keys"]

    assert [line.split()[1:3] for line in text.splitlines()[1:]] == [
        ["laptop", "infer"],
        ["old", "infer"],
    ]
    assert "never" in text
    assert "EXPIRED" in text
    assert set(told[0]) == {"id", "name", "scope", "created_at", "expires_at"}
    assert token not in text + json.dumps(told)


def test_no_keys_are_said_to_be_none(served: Path) -> None:
    assert ctl(served, "list").stdout == "no API keys: callers on this machine need none\n"


def test_a_revoked_key_is_gone_and_the_last_one_is_spoken_of(
    served: Path, service: Locked, keys_file: Path
) -> None:
    ctl(served, "add", "first")
    ctl(served, "add", "second")
    first, second = (key.key_id for key in read_keys(str(keys_file)) or ())

    one = ctl(served, "revoke", first)
    last = ctl(served, "revoke", second)

    assert one.stdout == f"key {first} (first) is revoked\n"
    assert one.stderr == ""
    assert "it was the last" in last.stderr
    assert read_keys(str(keys_file)) == ()
    assert service.reads == 4


def test_an_unknown_id_is_refused(served: Path) -> None:
    result = ctl(served, "revoke", "beef")

    assert result.exit_code == 1
    assert "no API key 'beef'; inferenceosctl key list has all" in result.stderr


def test_who_revokes_by_a_name_is_told_the_ids_that_have_it(served: Path, keys_file: Path) -> None:
    for name in ("laptop", "phone", "laptop"):
        ctl(served, "add", name)
    first, _, second = (key.key_id for key in read_keys(str(keys_file)) or ())

    result = ctl(served, "revoke", "laptop")

    assert result.exit_code == 1
    assert result.stderr == (
        "inferenceosctl: a key is revoked by its id, not its name;"
        f" of 'laptop' that is: {first}, {second}\n"
    )
    assert len(read_keys(str(keys_file)) or ()) == 3


def test_a_daemon_that_does_not_go_by_it_is_a_failure(served: Path, service: Locked) -> None:
    service.lock = replace(service.lock, mistake="the API keys in x cannot be used: chmod 600 it")

    result = ctl(served, "add", "laptop")

    assert result.exit_code == 1
    assert "does not go by it: the API keys in x" in result.stderr


def test_without_a_daemon_the_file_of_the_next_one_is_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[server]\nkeys = "secret/keys.json"\n')
    monkeypatch.setenv("INFERENCEOSD_CONFIG", str(config))

    result = ctl(tmp_path / "none.sock", "add", "laptop")

    assert result.exit_code == 0
    assert len(read_keys(str(tmp_path / "secret" / "keys.json")) or ()) == 1


def test_a_file_that_others_read_is_not_edited(served: Path, keys_file: Path) -> None:
    ctl(served, "add", "laptop")
    keys_file.chmod(0o644)

    result = ctl(served, "add", "another")

    assert result.exit_code == 1
    assert "chmod 600" in result.stderr
