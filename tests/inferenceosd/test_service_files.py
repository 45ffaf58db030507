"""systemd/: units and plist that the daemon of this tree understands."""

import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inferenceosd.cli import main
from inferenceosd.settings.keys import FLEET_DRAIN_TIMEOUT, FLEET_STOP_TIMEOUT
from inferenceosd.settings.server_keys import SERVER_LISTEN
from tests.fakes.system_parts import need_systemd_analyze

FOLDER = Path(__file__).resolve().parents[2] / "systemd"
SERVICE = FOLDER / "inferenceosd.service"
SOCKET = FOLDER / "inferenceosd.socket"
PLIST = FOLDER / "org.inferenceosd.daemon.plist"
PROGRAM = Path(sys.executable).with_name("inferenceosd")


def value(file: Path, key: str) -> str:
    (found,) = re.findall(rf"^{key}=(.*)$", file.read_text(), re.MULTILINE)
    return str(found)


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    need_systemd_analyze()
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def units(tmp_path: Path) -> tuple[Path, Path]:
    """Copies that start the program of this environment: systemd looks whether it exists."""
    service, socket = tmp_path / SERVICE.name, tmp_path / SOCKET.name
    program = value(SERVICE, "ExecStart").split()[0]
    moved = SERVICE.read_text().replace(f"={Path(program).parent}/", f"={PROGRAM.parent}/")
    service.write_text(moved)
    shutil.copy(SOCKET, socket)
    return service, socket


def test_systemd_finds_nothing_wrong_with_the_units(units: tuple[Path, Path]) -> None:
    done = analyze("verify", "--man=no", "--recursive-errors=no", *units)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_finds_the_service_well_confined(units: tuple[Path, Path]) -> None:
    done = analyze("security", "--offline=true", "--threshold=25", units[0])

    assert done.returncode == 0, done.stdout


def test_the_plist_parses_and_starts_the_same_command_as_the_unit() -> None:
    plist = plistlib.loads(PLIST.read_bytes())

    assert plist["Label"] == PLIST.stem
    assert plist["ProgramArguments"] == value(SERVICE, "ExecStart").split()


def test_every_flag_in_the_unit_is_an_option_of_the_daemon() -> None:
    options = {name for param in main.params for name in param.opts}
    used = {word for word in value(SERVICE, "ExecStart").split() if word.startswith("-")}

    assert used
    assert used <= options


def test_the_socket_unit_listens_where_the_daemon_would() -> None:
    assert value(SOCKET, "ListenStream") == str(SERVER_LISTEN.default)


def test_the_service_manager_waits_longer_than_the_daemon_needs_to_stop() -> None:
    needed_s = FLEET_DRAIN_TIMEOUT.default + FLEET_STOP_TIMEOUT.default

    assert int(value(SERVICE, "TimeoutStopSec")) > needed_s
    assert plistlib.loads(PLIST.read_bytes())["ExitTimeOut"] > needed_s
