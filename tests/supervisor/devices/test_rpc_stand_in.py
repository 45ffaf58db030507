import pytest

from planners.backends import Engine
from supervisor.devices.rpc_protocol import greeting_of
from supervisor.devices.rpc_stand_in import speaks
from supervisor.engines.quickstart import packaged_engine
from tests.fakes.rpc_servers import rpc_server

pytestmark = pytest.mark.llama


@pytest.fixture
def engine() -> Engine:
    packaged = packaged_engine()
    assert packaged is not None, "the quickstart's engine is missing: make test installs it"
    env = (*packaged.env, ("GGML_VK_VISIBLE_DEVICES", ""))
    flags = frozenset({"--rpc"})
    return Engine("quickstart", "vulkan", str(packaged.path), "quickstart", env, flags, (), "1")


async def test_an_engine_speaks_the_protocol_of_the_server_beside_it_and_not_the_next(
    engine: Engine,
) -> None:
    with rpc_server() as beside:
        major, minor, patch = (await greeting_of(beside.address)).protocol

    assert await speaks(engine, (major, minor, patch))
    assert not await speaks(engine, (major + 1, 0, 0))
    assert not await speaks(engine, (major - 1, minor, patch))
