import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from inferenceosd.service_manager import ServiceManager

US = str(os.getpid())


def test_what_is_told_reaches_the_manager(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)

        ServiceManager({"NOTIFY_SOCKET": address}).tell("READY=1", "STATUS=fine")

        assert manager.recv(1024) == b"READY=1\nSTATUS=fine"


@pytest.mark.parametrize("address", ["", "/nowhere/notify"], ids=["no manager", "a deaf one"])
def test_telling_nobody_changes_nothing(address: str) -> None:
    ServiceManager({"NOTIFY_SOCKET": address}).tell("READY=1")


@pytest.mark.parametrize(
    ("environ", "watchdog_s"),
    [
        pytest.param({}, None, id="no watchdog"),
        pytest.param({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": US}, 15.0, id="half of it"),
        pytest.param({"WATCHDOG_USEC": "30000000"}, 15.0, id="for whom is not said"),
        pytest.param({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None, id="for another"),
        pytest.param({"WATCHDOG_USEC": "soon"}, None, id="no number"),
        pytest.param({"WATCHDOG_USEC": "0"}, None, id="zero"),
    ],
)
def test_the_watchdog_is_petted_twice_per_period(
    environ: dict[str, str], watchdog_s: float | None
) -> None:
    assert ServiceManager(environ).watchdog_s == watchdog_s


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="none passed"),
        pytest.param({"LISTEN_FDS": "1", "LISTEN_PID": "1"}, id="for another process"),
        pytest.param({"LISTEN_FDS": "x", "LISTEN_PID": US}, id="no number"),
    ],
)
def test_no_socket_is_taken_that_was_not_passed_to_us(environ: dict[str, str]) -> None:
    assert ServiceManager(environ).passed_sockets() == ()


def test_a_passed_socket_listens_and_is_inherited_by_no_child(tmp_path: Path) -> None:
    program = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); "
        "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); "
        "from inferenceosd.service_manager import ServiceManager; "
        "(sock,) = ServiceManager(os.environ).passed_sockets(); "
        "print(sock.getsockname()[1], sock.get_inheritable())"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        argv = [sys.executable, "-c", program, str(listener.fileno())]
        told = subprocess.run(
            argv, pass_fds=[listener.fileno()], capture_output=True, text=True, check=True
        )

        assert told.stdout.split() == [str(listener.getsockname()[1]), "False"]
