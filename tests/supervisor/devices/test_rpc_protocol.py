import asyncio
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing

import pytest

from planners.sizes import GIB
from supervisor.devices.rpc_protocol import (
    CAPS_BYTES,
    HELLO,
    LENGTH,
    Greeting,
    ServerSilent,
    greeting_of,
)
from tests.fakes.rpc_servers import RpcServer, free_port, rpc_server

WAIT_S = 20.0


@pytest.fixture
def server() -> Iterator[RpcServer]:
    with rpc_server() as running:
        yield running


def client_of(server: RpcServer) -> socket.socket:
    """A client that the server serves: it has its answer to HELLO."""
    host, _, port = server.address.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=WAIT_S)
    client.sendall(bytes((HELLO,)) + LENGTH.pack(CAPS_BYTES) + bytes(CAPS_BYTES))
    assert client.recv(64)
    return client


@asynccontextmanager
async def pretender(
    answer: Callable[[StreamReader, StreamWriter], object],
) -> AsyncIterator[str]:
    """The address of something that is no ggml-rpc-server."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        if not await reader.read(1):
            writer.close()  # who queues is let go, so that the question comes
            return
        answer(reader, writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.mark.llama
async def test_a_server_tells_its_protocol_and_the_memory_of_its_devices(
    server: RpcServer,
) -> None:
    async with asyncio.timeout(WAIT_S):
        greeting = await greeting_of(server.address)

    assert isinstance(greeting, Greeting)
    assert greeting.protocol[0] >= 4
    assert [device.total_bytes > GIB for device in greeting.devices] == [True]


@pytest.mark.llama
async def test_a_busy_server_is_waited_for_and_answers_when_its_client_leaves(
    server: RpcServer,
) -> None:
    client = client_of(server)
    asked = asyncio.create_task(greeting_of(server.address))
    await until_queued(server)

    assert not asked.done()
    client.close()

    async with asyncio.timeout(WAIT_S):
        assert (await asked).devices
    assert server.process.poll() is None


@pytest.mark.llama
async def test_giving_up_in_the_queue_leaves_the_server_alive(server: RpcServer) -> None:
    with closing(client_of(server)):
        asked = asyncio.create_task(greeting_of(server.address))
        await until_queued(server)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    async with asyncio.timeout(WAIT_S):
        assert (await greeting_of(server.address)).devices
    assert server.process.poll() is None


@pytest.mark.llama
@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "closed"])
async def test_a_question_given_up_in_the_queue_spares_the_server_only_where_it_is_reset(
    server: RpcServer, *, is_reset: bool
) -> None:
    # What greeting_of builds on: a server of another build that behaves otherwise shows here.
    host, _, port = server.address.rpartition(":")
    with closing(client_of(server)):
        queued = socket.create_connection((host, int(port)))
        if is_reset:
            queued.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        queued.sendall(bytes((HELLO,)) + LENGTH.pack(CAPS_BYTES) + bytes(CAPS_BYTES))
        queued.close()

    async with asyncio.timeout(WAIT_S):
        if is_reset:
            assert (await greeting_of(server.address)).devices
        else:
            await asyncio.to_thread(server.process.wait)

    assert (server.process.poll() is None) is is_reset


async def test_a_port_that_nobody_listens_on_is_told() -> None:
    with pytest.raises(ServerSilent, match="cannot be reached"):
        await greeting_of(f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x1c\0\0\0\0\0\0\0\x04\0",
        (1 << 63).to_bytes(8, "little"),
        LENGTH.pack(28) + bytes(28) + LENGTH.pack(4) + bytes(4),
        LENGTH.pack(28) + bytes(28) + LENGTH.pack(4) + b"\xff" * 4,
    ],
    ids=["http", "cut short", "endless", "no device", "four billion devices"],
)
async def test_what_answers_nonsense_is_no_server(said: bytes) -> None:
    def nonsense(_: StreamReader, writer: StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with pretender(nonsense) as address, asyncio.timeout(WAIT_S):
        with pytest.raises(ServerSilent, match="does not speak like a ggml-rpc-server"):
            await greeting_of(address)


async def test_a_server_of_before_protocol_4_is_asked_in_its_way() -> None:
    async def old(reader: StreamReader, writer: StreamWriter) -> None:
        with closing(writer):
            if not await reader.read(1) or await reader.readexactly(8) != bytes(8):
                return  # as it does with a HELLO of another length
            writer.write(LENGTH.pack(3) + bytes((3, 6, 1)))
            await reader.readexactly(9)
            writer.write(LENGTH.pack(4) + struct.pack("<I", 1))
            await reader.readexactly(13)
            writer.write(LENGTH.pack(16) + struct.pack("<QQ", GIB, 2 * GIB))

    async with await asyncio.start_server(old, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with asyncio.timeout(WAIT_S):
            greeting = await greeting_of(f"127.0.0.1:{port}")

    assert greeting.protocol == (3, 6, 1)
    assert greeting.devices[0].free_bytes == GIB


async def until_queued(server: RpcServer) -> None:
    """Return once a second connection to the server stands, beside the one that it serves."""
    port = int(server.address.rpartition(":")[2])
    local = f"{port:04X}"
    async with asyncio.timeout(WAIT_S):
        while _n_connections(local) < 2:
            await asyncio.sleep(0.01)  # cadence: the kernel tells nobody


def _n_connections(local_port: str) -> int:
    """The server's ends of connections: established, or closed by the client alone."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file][1:]
    return sum(row[1].endswith(f":{local_port}") and row[3] in ("01", "08") for row in rows)
