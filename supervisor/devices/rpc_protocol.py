"""A word with one ggml-rpc-server: which protocol it speaks, and the memory of its devices.

It serves one client at a time; the kernel queues the others. A client that asked and then closed
in the queue ends the server: it answers into the closed connection and dies of SIGPIPE (seen in
b10068 and b10434). So we queue without a word, which it answers by hanging up and never by
writing, and ask only when our turn has come; a question that is given up is reset, not closed,
which it reads as an error (seen in both).

    queued, our end closed ── it hangs up ──▶ asked: HELLO, DEVICE_COUNT, GET_DEVICE_MEMORY …

Messages: a command (1 byte), a length (8 bytes), that many bytes; the answer is a length and its
bytes (ggml/src/ggml-rpc/ggml-rpc.cpp; protocol 4.0.3 in b10068, 5.0.0 in b10434).
"""

import asyncio
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Never

from msgspec import Struct

from supervisor.errors import SupervisorError

CONNECT_S = 2.0  # a host that is switched off answers nothing at all
TALK_S = 5.0  # all answers of a server whose turn is ours: 1 ms and some round trips

GET_DEVICE_MEMORY, HELLO, DEVICE_COUNT = 11, 14, 15
CAPS_BYTES = 24  # of a transport, in HELLO and its answer since protocol 4; none are ours
MOST_DEVICES = 64  # 16 fit an engine (GGML_SCHED_MAX_BACKENDS)

LENGTH = struct.Struct("<Q")
U32 = struct.Struct("<I")
MEMORY = struct.Struct("<QQ")
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_FIN_AT_CLOSE = struct.pack("ii", 0, 0)
_KEPT_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

Protocol = tuple[int, int, int]
"""Major, minor, patch: what an engine and a server must agree on."""


class DeviceMemory(Struct, frozen=True):
    """What one device of a server has."""

    free_bytes: int
    total_bytes: int


class Greeting(Struct, frozen=True):
    """What a server says of itself."""

    protocol: Protocol
    devices: tuple[DeviceMemory, ...]


class ServerSilent(SupervisorError):
    """A ggml-rpc-server that cannot be used now."""

    def __init__(self, *, server: str, why: str, is_costly: bool = False) -> None:
        self.server, self.why = server, why
        self.is_costly = is_costly
        """True where finding it out took more than a connection."""
        super().__init__(f"RPC server {server}: {why}; models are placed without it")


async def greeting_of(server: str) -> Greeting:
    """What the server at HOST:PORT says; waits in its queue for as long as others are served.

    Raises ServerSilent. May be cancelled at any time.
    """
    await _turn_of(server)
    try:
        async with asyncio.timeout(TALK_S):
            return await _talk(server, CAPS_BYTES) or await _talk(server, 0) or _not_ours(server)
    except TimeoutError as exc:
        why = f"it takes connections and gives no answer within {TALK_S:g} s"
        raise ServerSilent(server=server, why=why, is_costly=True) from exc


async def _turn_of(server: str) -> None:
    """Return once the server was free to serve us. We queue with our end closed."""
    async with _connection(server) as (reader, writer):
        writer.write_eof()
        await reader.read(1)


async def _talk(server: str, caps_bytes: int) -> Greeting | None:
    """Its answers; None where it hangs up on a HELLO of this length."""
    async with _connection(server) as (reader, writer):
        linger = writer.get_extra_info("socket").setsockopt
        linger(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        try:
            told = await _answer(reader, writer, HELLO, bytes(caps_bytes))
            # Before protocol 4 three bytes, since then a fourth for padding and the transport's.
            if len(told) not in (3, 4 + CAPS_BYTES):
                return _not_ours(server)
            devices = await _devices(server, reader, writer)
        except asyncio.IncompleteReadError as exc:
            return None if not exc.partial else _not_ours(server)
        linger(socket.SOL_SOCKET, socket.SO_LINGER, _FIN_AT_CLOSE)  # nothing is owed any more
        return Greeting((told[0], told[1], told[2]), devices)


async def _devices(
    server: str, reader: StreamReader, writer: StreamWriter
) -> tuple[DeviceMemory, ...]:
    counted = await _answer(reader, writer, DEVICE_COUNT, b"")
    if len(counted) != U32.size or not 0 < (n := U32.unpack(counted)[0]) <= MOST_DEVICES:
        return _not_ours(server)
    devices: list[DeviceMemory] = []
    for index in range(n):
        told = await _answer(reader, writer, GET_DEVICE_MEMORY, U32.pack(index))
        if len(told) != MEMORY.size:
            return _not_ours(server)
        free_bytes, total_bytes = MEMORY.unpack(told)
        devices.append(DeviceMemory(free_bytes, total_bytes))
    return tuple(devices)


async def _answer(reader: StreamReader, writer: StreamWriter, command: int, sent: bytes) -> bytes:
    """The bytes that answer a command; b"" for a length that no answer of ours has."""
    writer.write(bytes((command,)) + LENGTH.pack(len(sent)) + sent)
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return await reader.readexactly(length) if length <= 4 + CAPS_BYTES else b""


def _not_ours(server: str) -> Never:
    why = "it takes connections, but does not speak like a ggml-rpc-server"
    raise ServerSilent(server=server, why=why)


@asynccontextmanager
async def _connection(server: str) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
    """A connection, dropped with the block. Raises ServerSilent where none comes about or stays."""
    host, _, port = server.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError as exc:
        raise ServerSilent(server=server, why=f"no answer within {CONNECT_S:g} s") from exc
    except OSError as exc:
        why = f"cannot be reached ({exc.strerror or exc})"
        raise ServerSilent(server=server, why=why) from exc
    except UnicodeError as exc:  # what getaddrinfo makes of an empty or overlong label
        why = "cannot be reached (no host can have this name)"
        raise ServerSilent(server=server, why=why) from exc
    try:
        _keep_alive(writer)
        yield reader, writer
    except (OSError, RuntimeError) as exc:  # the latter is uvloop's for a transport that is closed
        raise ServerSilent(server=server, why=f"the connection was lost ({exc})") from exc
    finally:
        writer.transport.abort()
        with suppress(OSError):  # how the connection ended was told already
            await writer.wait_closed()


def _keep_alive(writer: StreamWriter) -> None:
    """Have the kernel notice a host that vanished while we queue there."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEPT_ALIVE:
        if (option := getattr(socket, name, None)) is not None:  # macOS has no TCP_KEEPIDLE
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
