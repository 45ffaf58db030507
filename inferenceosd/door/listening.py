"""The sockets the daemon listens on, opened by it and inherited by no child."""

import contextlib
import errno
import http.client
import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path

import psutil

from inferenceosd.settings.kinds import Listen

BACKLOG = 1024
ASK_HOLDER_S = 1.0
_UCRED = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


class CannotListen(Exception):
    """An address that cannot be had; the message says who has it and what to do."""


def listen_on(address: Listen) -> tuple[socket.socket, ...]:
    """A listening socket for each address that the host name stands for. Raises CannotListen."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(sock) for sock in _bound(address)]
        if not sockets:
            raise CannotListen(f"{address} is no address of this machine")
        opened.pop_all()
    return tuple(sockets)


def is_local(address: Listen) -> bool:
    """True when only this machine reaches `address`; also where it is no address at all."""
    try:
        found = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror:
        return True
    return all(_is_loopback(str(where[0])) for *_, where in found)


def are_local(sockets: Iterable[socket.socket]) -> bool:
    """True when only this machine reaches us by them."""
    return all(
        sock.family == socket.AF_UNIX or _is_loopback(sock.getsockname()[0]) for sock in sockets
    )


def _is_loopback(host: str) -> bool:
    return ip_address(host.partition("%")[0]).is_loopback


def _bound(address: Listen) -> Iterator[socket.socket]:
    try:
        found = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as exc:
        raise CannotListen(f"{address} is no address of this machine: {exc.strerror}") from exc
    for family, kind, protocol, _, where in dict.fromkeys(found):
        sock = _listening(family, kind, protocol, where, address)
        if sock is not None:
            yield sock
        if sock is not None and not address.port:
            return  # any free port: the second address would get another one


def _listening(
    family: int, kind: int, protocol: int, where: tuple[object, ...], address: Listen
) -> socket.socket | None:
    """A socket that listens; None for an address of a family that this machine does not have."""
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as exc:
        if sock is not None:
            sock.close()
        if exc.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        raise CannotListen(_why_not(address, exc)) from exc
    sock.setblocking(False)
    return sock


def address_of(sock: socket.socket) -> str:
    """What clients connect to: "127.0.0.1:11434", "[::1]:11434", or a path."""
    where = sock.getsockname()
    return where if isinstance(where, str) else str(Listen(where[0], where[1]))


def listen_privately(path: Path) -> socket.socket:
    """A Unix socket of mode 0600 at `path`; one that a dead daemon left is replaced.

    Raises CannotListen while somebody answers on it.
    """
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # bind() makes the file with it: no moment in which others may connect
    try:
        sock.bind(str(path))
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        raise CannotListen(f"cannot open the admin socket {path}: {exc.strerror}") from exc
    finally:
        os.umask(before)
    sock.setblocking(False)
    return sock


def file_key(path: Path) -> tuple[int, int] | None:
    """What tells the file at `path` from any that takes its place; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as exc:
        raise CannotListen(f"cannot use the admin socket {path}: {exc.strerror}") from exc
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} is in the way: it is no socket, and is not ours to remove")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(ASK_HOLDER_S)
        try:
            asked.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as exc:
            raise CannotListen(f"cannot use the admin socket {path}: {exc.strerror}") from exc
        holder = _peer(asked)
    raise CannotListen(
        f"another inferenceosd{holder} answers on {path}; stop it, or choose with --admin-socket"
    )


def _peer(connected: socket.socket) -> str:
    """ " (pid N)" of who listens there; "" where the kernel does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return ""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return f" (pid {_UCRED.unpack(told)[0]})"


def _why_not(address: Listen, exc: OSError) -> str:
    choose = "choose another address with --listen HOST:PORT"
    if isinstance(exc, PermissionError):
        return f"{address} needs more rights than this user has; {choose}"
    if exc.errno == errno.EADDRINUSE:
        return f"{address} is held by {_holder(address)}; stop it, or {choose}"
    return f"cannot listen on {address}: {exc.strerror}; {choose}"


def _holder(address: Listen) -> str:
    """Who listens there, as well as we may know: by its process, else by what it answers."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            at = connection.laddr
            if connection.status == psutil.CONN_LISTEN and at and at.port == address.port:
                if connection.pid is None:
                    break
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return _what_answers(address)


def _what_answers(address: Listen) -> str:
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    asked = http.client.HTTPConnection(host, address.port, timeout=ASK_HOLDER_S)
    try:
        asked.request("GET", "/")
        said = asked.getresponse().read(64)
    except (OSError, http.client.HTTPException):
        return "another program"
    finally:
        asked.close()
    return "a running Ollama" if said == b"Ollama is running" else "another web server"
