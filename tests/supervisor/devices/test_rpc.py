import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from planners.backends import Engine
from planners.hardware import DeviceKind
from planners.sizes import GIB
from supervisor.devices.rpc import RpcServers
from supervisor.quickstart import packaged_engine
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
    assert f"RPC server {dead.address}: cannot be reached" in remote.notes[0]


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
    assert "models are placed without it" in remote.notes[0]


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"], ids=["empty", "overlong"])
async def test_a_name_that_no_host_can_have_is_a_note(host: str, engine: Engine) -> None:
    servers = RpcServers()
    servers.adopt([f"{host}:50052"], (engine,))

    remote = await servers.look()

    assert [d.engine_names for d in remote.devices] == [()]
    assert "no host can have this name" in remote.notes[0]


async def test_without_an_engine_that_knows_rpc_every_server_is_useless(engine: Engine) -> None:
    servers = RpcServers()
    servers.adopt([f"127.0.0.1:{free_port()}"], (replace(engine, flags=frozenset()),))

    remote = await servers.look()

    assert "no llama-server here knows --rpc" in remote.notes[0]


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
    assert [d.engine_names for d in remote.devices] == [(), (("vulkan", "RPC0"),)]
