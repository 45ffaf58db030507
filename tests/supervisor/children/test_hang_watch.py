"""A hung child is told from a slow one, on real processes."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest

from planners.view import InstanceState
from supervisor.children.llama import client_of
from supervisor.leases.lease import Lease
from tests.fakes.fleet_world import TINY, MakeWorld, World


async def completed(lease: Lease, n_predict: int = 4) -> str:
    """What the lease's child answers, streamed to its end."""
    asked = {"prompt": "one two", "n_predict": n_predict, "id_slot": lease.slot, "stream": True}
    async with client_of(lease.socket_path, timeout_s=60.0) as client:
        return (await client.post("/completion", json=asked)).text


async def hung_reason(world: World) -> str:
    """Of the one child that was found to hang."""
    events = await world.journal.events(model_id=TINY, since=0.0, limit=100)
    (hung,) = [event for event in events if event.kind == "instance.hung"]
    return hung.reason


async def test_a_stopped_child_is_replaced_while_somebody_waits_for_it(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(hang_s=2.0) as world:
        async with world.fleet.lease(TINY, caller="a") as lease:
            pid = world.pid()
            os.kill(pid, signal.SIGSTOP)

            why = await world.fleet.until_gone(lease, within_s=15.0)

        assert why is not None
        assert "it hung" in why
        assert "/health" in await hung_reason(world)
        assert await world.served_by() != pid


async def test_a_decode_that_is_stuck_behind_a_healthy_door_is_replaced(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(hang_s=2.0) as world:
        world.order(hang_decode=True, stuck_slots=True, launches=1)
        async with world.fleet.lease(TINY, caller="a") as lease:
            try:
                await completed(lease)
            except httpx.TransportError:
                why = await world.fleet.until_gone(lease, within_s=5.0)

        assert why is not None
        assert "no token came" in await hung_reason(world)
        async with world.fleet.lease(TINY, caller="a") as lease:
            assert "two" in await completed(lease)


async def test_a_child_that_does_not_let_go_of_a_caller_who_left_is_replaced(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(hang_s=1.0) as world:
        world.order(prompt_s=600.0, burn=True, stuck_slots=True, launches=1)
        with pytest.raises(TimeoutError):
            async with world.fleet.lease(TINY, caller="a") as lease, asyncio.timeout(0.5):
                await completed(lease)

        async with world.fleet.lease(TINY, caller="b") as lease:
            why = await world.fleet.until_gone(lease, within_s=60.0)

        assert why is not None
        assert "a caller who left" in await hung_reason(world)
        async with world.fleet.lease(TINY, caller="b") as lease:
            assert "two" in await completed(lease)


async def test_a_child_that_lets_go_of_a_caller_who_left_is_left_alone(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(hang_s=1.0) as world:
        world.order(token_s=0.2)
        with pytest.raises(TimeoutError):
            async with world.fleet.lease(TINY, caller="a") as lease, asyncio.timeout(0.5):
                await completed(lease, n_predict=1000)
        pid = world.pid()

        async with world.fleet.lease(TINY, caller="b") as lease:
            assert "two" in await completed(lease, n_predict=12)

        assert world.pid() == pid
        assert "instance.hung" not in await world.kinds()


async def test_a_child_that_computes_for_long_is_left_alone(fleet_world: MakeWorld) -> None:
    async with fleet_world(hang_s=1.0) as world:
        world.order(prompt_s=3.0, burn=True)
        async with world.fleet.lease(TINY, caller="a") as lease:
            pid = world.pid()

            assert "two" in await completed(lease)

        assert world.pid() == pid


async def test_a_child_whose_slots_move_on_is_left_alone_however_idle_it_looks(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(hang_s=1.0) as world:
        world.order(token_s=0.5)
        async with world.fleet.lease(TINY, caller="a") as lease:
            pid = world.pid()

            assert "two" in await completed(lease, n_predict=6)

        assert world.pid() == pid


async def test_a_caller_who_asks_for_nothing_does_not_make_its_child_look_hung(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(hang_s=0.2) as world, world.fleet.lease(TINY, caller="a") as lease:
        await world.fleet.until_gone(lease, within_s=1.0)  # five times hang_s

        assert world.state() is InstanceState.READY
        assert "instance.hung" not in await world.kinds()


async def test_a_child_that_hangs_while_it_drains_is_not_given_all_of_finish_s(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(hang_s=1.0, finish_s=600.0) as world:
        async with world.fleet.lease(TINY, caller="a"):
            os.kill(world.pid(), signal.SIGSTOP)
            world.fleet.unload(TINY)

            await world.until_state(None)

        assert "instance.hung" in await world.kinds()


async def test_a_child_whose_socket_was_removed_is_replaced_once_somebody_misses_it(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        async with world.fleet.lease(TINY, caller="a") as lease:
            pid = world.pid()
            Path(lease.socket_path).unlink()

            why = await world.fleet.until_gone(lease, within_s=10.0)

        assert why is not None
        assert "its socket was removed" in why
        assert await world.served_by() != pid


async def test_a_child_whose_socket_was_removed_while_it_loads_is_replaced(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        world.order(load_s=1.0, launches=1)
        caller = asyncio.create_task(world.served_by())
        await world.until(lambda: bool(list(world.run_dir.glob("*.sock"))))

        next(world.run_dir.glob("*.sock")).unlink()

        assert await caller
        assert "its socket was removed" in await hung_reason(world)
