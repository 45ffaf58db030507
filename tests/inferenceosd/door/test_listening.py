import os
import socket
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from inferenceosd.door.listening import (
    CannotListen,
    address_of,
    are_local,
    file_key,
    is_local,
    listen_on,
    listen_privately,
)
from inferenceosd.settings.kinds import Listen


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as sock:
        port: int = sock.getsockname()[1]
        return port


def test_port_zero_is_any_free_port_on_one_address() -> None:
    (sock,) = listen_on(Listen("localhost", 0))
    with closing(sock):
        socket.create_connection(("127.0.0.1", sock.getsockname()[1])).close()


def test_sockets_are_not_inherited_by_children() -> None:
    for sock in listen_on(Listen("127.0.0.1", 0)):
        with closing(sock):
            assert not sock.get_inheritable()


def test_a_port_held_by_a_process_of_ours_names_the_process() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as holder:
        port = holder.getsockname()[1]

        with pytest.raises(CannotListen) as refused:
            listen_on(Listen("127.0.0.1", port))

    assert f"(pid {os.getpid()})" in str(refused.value)
    assert "--listen HOST:PORT" in str(refused.value)


def test_a_failed_second_address_closes_the_first() -> None:
    port = free_port()
    with closing(socket.create_server(("127.0.0.1", port))), pytest.raises(CannotListen):
        listen_on(Listen("localhost", port))

    for sock in listen_on(Listen("127.0.0.1", port)):
        sock.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.7"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(CannotListen, match="no address of this machine"):
        listen_on(Listen(host, 0))


def test_the_admin_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"

    with closing(listen_privately(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_admin_socket_left_by_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    listen_privately(path).close()

    listen_privately(path).close()


def test_an_admin_socket_that_answers_is_not_taken_and_its_holder_named(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    holder = f" \\(pid {os.getpid()}\\)" if sys.platform == "linux" else ""

    with (
        closing(listen_privately(path)),
        pytest.raises(CannotListen, match=f"another inferenceosd{holder} answers"),
    ):
        listen_privately(path)


def test_an_admin_socket_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(CannotListen, match="Not a directory"):
        listen_privately(tmp_path / "file" / "admin.sock")


def test_a_file_that_takes_anothers_place_has_another_key(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with closing(listen_privately(path)):
        first = file_key(path)
        assert file_key(path) == first
        path.rename(tmp_path / "moved")
        assert file_key(path) is None

        with closing(listen_privately(path)):
            assert file_key(path) not in (None, first)


def test_a_file_in_the_place_of_the_admin_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    path.write_text("mine")

    with pytest.raises(CannotListen, match="no socket"):
        listen_privately(path)

    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("family", "host", "shown"),
    [
        pytest.param(socket.AF_INET, "127.0.0.1", "127.0.0.1:", id="IPv4"),
        pytest.param(socket.AF_INET6, "::1", "[::1]:", id="IPv6"),
    ],
)
def test_an_address_is_shown_as_clients_write_it(
    family: socket.AddressFamily, host: str, shown: str
) -> None:
    with closing(socket.socket(family)) as sock:
        sock.bind((host, 0))

        assert address_of(sock) == f"{shown}{sock.getsockname()[1]}"


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("203.0.113.7", False),
        ("no such name", True),
    ],
)
def test_who_reaches_an_address_is_known_before_it_is_opened(host: str, is_ours: bool) -> None:
    assert is_local(Listen(host, 0)) is is_ours


def test_a_unix_socket_is_reached_from_this_machine_alone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as every:
        unix.bind(str(tmp_path / "s"))
        every.bind(("0.0.0.0", 0))

        assert are_local([unix])
        assert not are_local([unix, every])
