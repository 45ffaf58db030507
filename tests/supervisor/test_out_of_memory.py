"""Launches that die of memory, and what becomes of the next one. The engine is the fake one."""

import httpx
import pytest

from planners.hardware import DeviceKind
from planners.instances.ladder import MOST_TRIES
from planners.instances.last_rung import OOM_RETRY_S
from planners.sizes import GIB
from planners.view import InstanceState
from supervisor.children.llama import client_of
from supervisor.devices.sighting import DeviceSource, Reading, Sighting
from supervisor.leases.lease import ModelUnavailable
from tests.fakes.fleet_world import TINY, MakeWorld

CARD = Sighting(
    source="cpu",  # the backend of an engine that lists no device
    name="a card",
    kind=DeviceKind.DISCRETE,
    total_bytes=8 * GIB,
    free_bytes=8 * GIB,
    engine_name="Vulkan0",
)


class OneCard:
    """A source that sees a card, which holds less than it says."""

    name = "cpu"

    def read(self) -> Reading:
        """The same each time."""
        return Reading((CARD,))


SOURCES: tuple[DeviceSource, ...] = (OneCard(),)


async def test_a_launch_that_dies_of_memory_is_tried_again_with_less(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(sources=SOURCES) as world:
        world.order(oom_above_layers=0)

        await world.served_by()

        assert world.seen().plan.n_gpu_layers == 0
        assert world.seen().restarts == 1
        events = await world.journal.events(model_id=None, since=0.0, limit=100)
        (ended,) = [event for event in events if event.kind == "instance.ended"]
        assert "cannot be had, though free" in ended.reason


async def test_what_a_launch_died_of_is_remembered_for_the_next_one(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(sources=SOURCES) as world:
        world.order(oom_above_layers=0)
        await world.served_by()
        world.fleet.unload(TINY)
        await world.until_state(None)
        before = (await world.kinds()).count("instance.ended")

        await world.served_by()

        assert world.seen().plan.n_gpu_layers == 0
        assert (await world.kinds()).count("instance.ended") == before


async def test_forgetting_a_model_lets_it_try_its_device_again(fleet_world: MakeWorld) -> None:
    async with fleet_world(sources=SOURCES) as world:
        world.order(oom_above_layers=0)
        await world.served_by()
        world.fleet.unload(TINY)
        await world.until_state(None)
        world.order()

        await world.records.history.forget(model_id=TINY)
        await world.served_by()

        assert world.seen().plan.n_gpu_layers > 0


async def test_a_model_that_can_concede_nothing_more_is_refused_for_a_while_with_the_cause(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        world.order(die_while_loading="host_oom")

        with pytest.raises(ModelUnavailable, match="out of host memory") as refused:
            await world.served_by()

        assert refused.value.retry_after_s == pytest.approx(OOM_RETRY_S, abs=2.0)
        assert (await world.kinds()).count("instance.started") <= MOST_TRIES + 1


async def test_what_nothing_can_be_conceded_to_does_not_keep_a_model_from_running_later(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        world.order(die_while_loading="host_oom")
        with pytest.raises(ModelUnavailable):
            await world.served_by()
        world.order()
        world.fleet.retry(TINY)
        await world.until_state(None)

        await world.served_by()

        assert world.state() is InstanceState.READY


async def test_a_child_that_runs_out_of_memory_at_work_is_launched_anew_with_less(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(sources=SOURCES) as world:
        world.order(die_before_reply=True, last_words="oom", launches=1)
        async with world.fleet.lease(TINY, caller="test") as lease:
            layers = world.seen().plan.n_gpu_layers
            async with client_of(lease.socket_path, timeout_s=10.0) as client:
                with pytest.raises(httpx.TransportError):
                    await client.post("/completion", json={"prompt": "one two"})

        await world.until(lambda: world.seen().restarts == 1)
        await world.served_by()

        assert 0 <= world.seen().plan.n_gpu_layers < layers
        assert world.state() is InstanceState.READY


async def test_a_load_that_ends_without_a_word_again_and_again_is_tried_with_less(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(sources=SOURCES, restart_limit=5) as world:
        world.order(die_while_loading="crash", launches=2)

        await world.served_by()

        assert world.seen().plan.n_gpu_layers == 0
        assert world.seen().restarts == 2
