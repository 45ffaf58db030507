from pathlib import Path

import pytest
from msgspec.structs import replace

from inferenceosd.door.key_file import add_key, read_keys, revoke_key
from inferenceosd.door.lock import DoorLock, check_lock
from inferenceosd.settings.config import Config, Options, read_config
from inferenceosd.settings.error import ConfigError
from proxy.admission.gate import Management
from proxy.admission.keys import Scope
from tests.fakes.certificates import certificate


@pytest.fixture
def config(tmp_path: Path) -> Config:
    options = Options(listen=":11434", state_dir=str(tmp_path / "state"))
    return read_config(options, environ={"XDG_RUNTIME_DIR": str(tmp_path)})


def keyed(config: Config) -> str:
    key, _ = add_key(config.keys_file, name="a", scope=Scope.INFER, expires_at=None)
    return key.key_id


def needs_key(lock: DoorLock) -> bool:
    return lock.gate(Management.OPEN).needs_key


def test_a_port_that_others_reach_is_not_opened_without_a_key_and_the_refusal_says_what_to_do(
    config: Config,
) -> None:
    with pytest.raises(ConfigError) as refused:
        DoorLock(config, is_local=False)

    said = str(refused.value)
    assert said.startswith("server.listen: :11434 can be reached from elsewhere")
    for remedy in (
        "inferenceosctl key add",
        "127.0.0.1",
        "--insecure",
        "INFERENCEOSD_SERVER_INSECURE=true",
    ):
        assert remedy in said


@pytest.mark.parametrize(
    ("is_local", "has_key", "is_insecure", "asks", "is_open"),
    [
        (True, False, False, False, False),
        (True, True, False, True, False),
        (True, True, True, True, False),
        (False, True, False, True, False),
        (False, True, True, True, False),
        (False, False, True, False, True),
    ],
)
def test_where_a_key_exists_it_is_asked_for_and_only_insecure_is_open(
    config: Config, is_local: bool, has_key: bool, is_insecure: bool, asks: bool, is_open: bool
) -> None:
    if has_key:
        keyed(config)

    lock = DoorLock(replace(config, is_insecure=is_insecure), is_local=is_local)

    assert needs_key(lock) is asks
    assert lock.report().is_open is is_open


def test_the_last_key_revoked_a_port_that_others_reach_stays_locked(config: Config) -> None:
    key_id = keyed(config)
    lock = DoorLock(config, is_local=False)

    revoke_key(config.keys_file, key_id)
    assert lock.has_changed()
    lock.read_again()

    assert needs_key(lock)
    assert (lock.report().keys, lock.report().mistake) == (0, None)
    assert not lock.has_changed()


def test_the_last_key_revoked_this_machine_alone_needs_none(config: Config) -> None:
    key_id = keyed(config)
    lock = DoorLock(config, is_local=True)

    revoke_key(config.keys_file, key_id)
    lock.read_again()

    assert not needs_key(lock)


@pytest.mark.parametrize("harm", ["gone", "readable", "broken"])
def test_what_befalls_the_file_of_keys_opens_no_port(config: Config, harm: str) -> None:
    keyed(config)
    lock = DoorLock(config, is_local=True)
    file = Path(config.keys_file)

    if harm == "gone":
        file.unlink()
    elif harm == "readable":
        file.chmod(0o644)
    else:
        file.write_text("{")
    assert lock.has_changed()
    lock.read_again()

    assert needs_key(lock)
    assert lock.report().keys == 1
    assert str(file) in (lock.report().mistake or "")


def test_what_is_mended_is_in_force_again(config: Config) -> None:
    keyed(config)
    lock = DoorLock(config, is_local=True)
    file = Path(config.keys_file)
    file.chmod(0o644)
    lock.read_again()

    file.chmod(0o600)
    keyed(config)
    lock.read_again()

    assert (lock.report().keys, lock.report().mistake) == (2, None)
    assert len(read_keys(config.keys_file) or ()) == 2


def test_a_certificate_is_renewed_and_a_broken_one_leaves_the_old(
    config: Config, tmp_path: Path
) -> None:
    paths = certificate(tmp_path, days=1)
    lock = DoorLock(replace(config, tls=(str(paths[0]), str(paths[1]))), is_local=True)
    first = lock.report().tls_expires_at
    certificate(tmp_path, days=30)
    lock.read_again()
    renewed = lock.report().tls_expires_at

    paths[0].write_text("broken")
    lock.read_again()

    assert first is not None
    assert renewed is not None
    assert renewed > first
    assert lock.report().tls_expires_at == renewed
    assert "server.pem" in (lock.report().mistake or "")


def test_a_certificate_that_cannot_be_served_keeps_the_daemon_from_starting(
    config: Config, tmp_path: Path
) -> None:
    tls = (str(tmp_path / "none.pem"), str(tmp_path / "none.key"))

    with pytest.raises(ConfigError, match=r"server\.tls_cert: .*none\.pem: No such file"):
        check_lock(replace(config, tls=tls), is_local=True)
