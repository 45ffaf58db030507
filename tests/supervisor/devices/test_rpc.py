import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing

import pytest
from msgspec.structs import replace

from planners.backends import Engine
from planners.hardware import DeviceKind
from planners.sizes import GIB
from supervisor.devices.rpc import Remote, RpcServers
from supervisor.devices.rpc_protocol import CAPS_BYTES, HELLO, LENGTH
from supervisor.engines.quickstart import packaged_engine
from tests.fakes.rpc_servers import RpcServer, free_port, rpc_server

pytestmark = pytest.mark.llama


@pytest.fixture
def engine() -> Engine:
    packaged = packaged_engine()
    assert packaged is not None, "the quickstart's engine is missing: make test installs it"
    return Engine(
        engine_id="quickstart",
        backend="vulkan",
        path=str(packaged.path),
        source="quickstart",
        env=(*packaged.env, ("GGML_VK_VISIBLE_DEVICES", "")),
        flags=frozenset({"--rpc"}),
        devices=(),
        version="b10434",
    )


@pytest.fixture
def two() -> Iterator[tuple[RpcServer, RpcServer]]:
    with ExitStack() as held:
        yield held.enter_context(rpc_server()), held.enter_context(rpc_server())


async def test_each_server_is_a_device_under_its_address(
    engine: Engine, two: tuple[RpcServer, RpcServer]
) -> None:
    servers = RpcServers()
    servers.adopt([server.address for server in two], (engine,))

    remote = await servers.look()

    assert remote.notes == ()
    assert [d.device_id for d in remote.devices] == [f"rpc:{server.address}" for server in two]
    assert [d.engine_names for d in remote.devices] == [
        (("vulkan", "RPC0"),),
        (("vulkan", "RPC1"),),
    ]
    assert all(d.kind is DeviceKind.REMOTE for d in remote.devices)
    assert all((d.total_bytes or 0) > GIB for d in remote.devices)


async def test_a_dead_server_is_seen_and_hides_no_other(
    engine: Engine, two: tuple[RpcServer, RpcServer]
) -> None:
    dead, alive = two
    dead.kill()
    servers = RpcServers()
    servers.adopt([dead.address, alive.address], (engine,))

    remote = await servers.look()

    assert [d.engine_names for d in remote.devices] == [(), (("vulkan", "RPC0"),)]
    assert len(remote.notes) == 1
    assert f"RPC server {dead.address}: cannot be reached" in remote.notes[0].text


async def test_what_answers_nonsense_is_left_out(engine: Engine) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        servers = RpcServers()
        servers.adopt([f"127.0.0.1:{port}"], (engine,))

        remote = await servers.look()

    assert [d.engine_names for d in remote.devices] == [()]
    assert "models are placed without it" in remote.notes[0].text


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"], ids=["empty", "overlong"])
async def test_a_name_that_no_host_can_have_is_a_note(host: str, engine: Engine) -> None:
    servers = RpcServers()
    servers.adopt([f"{host}:50052"], (engine,))

    remote = await servers.look()

    assert [d.engine_names for d in remote.devices] == [()]
    assert "no host can have this name" in remote.notes[0].text


async def test_without_an_engine_that_knows_rpc_every_server_is_useless(engine: Engine) -> None:
    servers = RpcServers()
    servers.adopt([f"127.0.0.1:{free_port()}"], (replace(engine, flags=frozenset()),))

    remote = await servers.look()

    assert "no llama-server here knows --rpc" in remote.notes[0].text


async def test_a_server_that_dies_is_seen_at_once_where_somebody_asks_for_it(
    engine: Engine, two: tuple[RpcServer, RpcServer]
) -> None:
    servers = RpcServers()
    servers.adopt([server.address for server in two], (engine,))
    await servers.look()

    two[0].kill()
    young = await servers.look()
    servers.look_again()
    remote = await servers.look()

    assert young.notes == ()
    assert [device_id for device_id, _ in remote.silent] == [f"rpc:{two[0].address}"]
    assert [d.engine_names for d in remote.devices] == [(), (("vulkan", "RPC0"),)]


async def test_a_server_that_never_answers_holds_up_no_look_and_no_other_server(
    engine: Engine, two: tuple[RpcServer, RpcServer]
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as hung:
        address = f"127.0.0.1:{hung.getsockname()[1]}"
        servers = RpcServers()
        servers.adopt([address, two[0].address], (engine,))

        async with attended(servers) as until:
            first = await servers.look()
            remote = await until(
                lambda remote: not any("only just" in str(n) for n in remote.notes)
            )

    assert not [server for server, _ in first.silent if server == f"rpc:{address}"]
    assert [d.engine_names for d in remote.devices] == [(), (("vulkan", "RPC0"),)]
    ((device_id, why),) = remote.silent
    assert device_id == f"rpc:{address}"
    assert "does not answer" in why


async def test_an_answer_that_comes_late_is_news(
    engine: Engine, two: tuple[RpcServer, RpcServer]
) -> None:
    server = two[0]
    host, _, port = server.address.rpartition(":")
    servers = RpcServers()
    servers.adopt([server.address], (engine,))

    with closing(socket.create_connection((host, int(port)))) as client:
        client.sendall(bytes((HELLO,)) + LENGTH.pack(CAPS_BYTES) + bytes(CAPS_BYTES))
        assert client.recv(64)
        async with attended(servers) as until:
            busy = await until(lambda remote: bool(remote.silent))
            client.close()
            free = await until(lambda remote: not remote.notes)

    assert [d.engine_names for d in busy.devices] == [()]
    assert [d.engine_names for d in free.devices] == [(("vulkan", "RPC0"),)]
    assert server.process.poll() is None


async def test_a_server_that_dies_is_known_at_the_look_that_asks_for_it_and_its_return_is_news(
    engine: Engine, two: tuple[RpcServer, RpcServer]
) -> None:
    server = two[0]
    servers = RpcServers()
    servers.adopt([server.address], (engine,))

    async with attended(servers) as until:
        await until(lambda remote: not remote.notes)
        server.kill()
        servers.look_again()
        gone = await servers.look()
        with rpc_server(port=int(server.address.rpartition(":")[2])):
            servers.look_again()
            back = await until(lambda remote: not remote.silent)

    assert [device_id for device_id, _ in gone.silent] == [f"rpc:{server.address}"]
    assert [d.engine_names for d in back.devices] == [(("vulkan", "RPC0"),)]


async def test_a_server_that_works_for_a_child_of_ours_keeps_its_last_answer(
    engine: Engine, two: tuple[RpcServer, RpcServer]
) -> None:
    server = two[0]
    host, _, port = server.address.rpartition(":")
    servers = RpcServers()
    servers.adopt([server.address], (engine,))

    async with attended(servers) as until:
        await until(lambda remote: not remote.notes)
        with closing(socket.create_connection((host, int(port)))) as child:
            child.sendall(bytes((HELLO,)) + LENGTH.pack(CAPS_BYTES) + bytes(CAPS_BYTES))
            assert child.recv(64)
            servers.leave_alone([server.address])
            servers.look_again()
            remote = await servers.look()

    assert remote.silent == ()
    assert [d.engine_names for d in remote.devices] == [(("vulkan", "RPC0"),)]


async def test_a_server_of_another_protocol_is_named_with_it(engine: Engine) -> None:
    async def newer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            if await reader.read(1 + LENGTH.size + CAPS_BYTES):
                writer.write(LENGTH.pack(4 + CAPS_BYTES) + bytes((99, 1, 2, 0)) + bytes(CAPS_BYTES))
                await reader.readexactly(1 + LENGTH.size)
                writer.write(LENGTH.pack(4) + (1).to_bytes(4, "little"))
                await reader.readexactly(1 + LENGTH.size + 4)
                writer.write(LENGTH.pack(16) + bytes(16))

    async with await asyncio.start_server(newer, "127.0.0.1", 0) as other:
        servers = RpcServers()
        servers.adopt([f"127.0.0.1:{other.sockets[0].getsockname()[1]}"], (engine,))

        remote = await servers.look()

    ((_, why),) = remote.silent
    assert why == "it speaks RPC protocol 99.1.2, which no engine here does"


Until = Callable[[Callable[[Remote], bool]], Awaitable[Remote]]


@asynccontextmanager
async def attended(servers: RpcServers) -> AsyncIterator[Until]:
    """Servers that are asked on; gives what waits, woken by news, for a look that is as wished."""
    news = asyncio.Event()

    async def look_until(is_wished: Callable[[Remote], bool]) -> Remote:
        while not is_wished(remote := await servers.look()):
            await news.wait()
            news.clear()
        return remote

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(servers.attend(news.set))
        await asyncio.sleep(0)  # it begins
        yield look_until
        asking.cancel()
