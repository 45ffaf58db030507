"""Migrations of a fleet of real processes, those of the fake engine: it saves no slots, so all that
runs is computed again. What goes along is tests/integration/test_migration.py's."""

import asyncio
import os
import signal

import pytest
from msgspec.structs import replace

from planners.moving.by_hand import BadMove, ByHand
from planners.settings import MemoryRule
from planners.view import InstanceState
from supervisor.moving.move import Moved, MoveFailed, Step
from tests.fakes.fleet_world import RULES, TINY, MakeWorld, World
from tests.fakes.processes import is_gone

WITHIN_S = 20.0


async def moved(
    world: World,
    *,
    layers: int | None = None,
    context: int | None = None,
    parallel: int | None = None,
) -> Moved:
    told = ByHand(layers=layers, context=context, parallel=parallel)
    async with asyncio.timeout(WITHIN_S):
        return await world.fleet.moving.by_hand(TINY, told, reason="a test")


def leave_room_for_one(world: World) -> None:
    """So much memory that a second process does not fit beside the first."""
    taken = sum(part.upper_bytes for part in world.seen().plan.predicted)
    world.rule(replace(RULES, memory=MemoryRule(int(taken * 1.5), 0)))


async def test_the_next_process_takes_over_and_the_last_one_ends(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        pid = await world.served_by()

        done = await moved(world, parallel=3)

        assert done.order.value == "make-before-break"
        await world.until(lambda: len(world.fleet.running()) == 1)
        assert world.seen().plan.n_parallel == 3
        assert world.seen().launch_key
        assert is_gone(pid)
        assert await world.served_by() == world.pid()
        kinds = await world.kinds()
        assert [kind for kind in kinds if kind.startswith("migration")] == [
            "migration.begun",
            "migration.done",
        ]


async def test_where_both_do_not_fit_the_last_one_ends_first(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        pid = await world.served_by()
        leave_room_for_one(world)

        done = await moved(world, parallel=1)

        assert done.order.value == "break-before-make"
        assert is_gone(pid)
        assert world.seen().plan.n_parallel == 1
        await world.served_by()


async def test_a_lease_is_told_that_its_child_made_way_and_finds_the_next(
    fleet_world: MakeWorld,
) -> None:
    parked: list[str] = []
    async with (
        fleet_world(leaving=parked.append) as world,
        world.fleet.lease(TINY, caller="a") as lease,
    ):
        assert world.fleet.moved(lease) is None
        await moved(world, parallel=3)

        assert parked[0] == lease.socket_path
        assert "a test" in (world.fleet.moved(lease) or "")
        async with asyncio.timeout(5):
            await world.fleet.until_gone(lease, within_s=60)
        async with world.fleet.lease(TINY, caller="a", after=lease) as following:
            assert following.instance_id != lease.instance_id
            assert following.restored_tokens == 0


async def test_what_an_engine_without_saved_slots_was_told_is_said_to_be_computed_again(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world, world.fleet.lease(TINY, caller="a"):
        await moved(world, parallel=3)

        events = await world.journal.events(model_id=None, since=0.0, limit=1000)
        reasons = [event.reason for event in events if event.kind == "migration.recomputes"]
        assert [reason.split(" ", 1)[1] for reason in reasons] == ["saves no slots"]


async def test_callers_wait_in_the_line_while_nothing_runs(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await world.served_by()
        leave_room_for_one(world)
        world.order(load_s=0.5)
        moving = asyncio.create_task(moved(world, parallel=1))
        await world.until(lambda: world.state() is InstanceState.LOADING)

        async with world.fleet.lease(TINY, caller="a") as lease:
            assert lease.instance_id == world.seen().instance_id
        await moving
        assert (await world.kinds()).count("instance.planned") == 2


async def test_a_model_unloaded_between_its_two_launches_stays_unloaded(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await world.served_by()
        leave_room_for_one(world)
        world.order(load_s=0.5)
        moving = asyncio.create_task(moved(world, parallel=1))
        async with asyncio.timeout(WITHIN_S):
            while world.fleet.running():
                await asyncio.sleep(0)  # each turn: there are only a few between both

        assert world.fleet.unload(TINY)

        with pytest.raises(MoveFailed, match="unload was asked for"):
            await moving
        assert world.fleet.running() == ()
        assert (await world.kinds()).count("instance.planned") == 1


async def test_a_model_unloaded_while_its_next_launch_loads_does_not_come_back(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await world.served_by()
        leave_room_for_one(world)
        world.order(load_s=5.0)
        moving = asyncio.create_task(moved(world, parallel=1))
        await world.until(lambda: world.state() is InstanceState.LOADING)

        assert world.fleet.unload(TINY)

        with pytest.raises(MoveFailed, match="unload was asked for"):
            await moving
        await world.until(lambda: not world.fleet.running())


async def test_what_can_not_pause_ends_first_where_the_math_is_another(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        async with world.fleet.lease(TINY, caller="a", can_pause=False) as lease:
            pid = world.pid()
            world.rule(replace(RULES, type_k="q8_0"))
            await world.until(lambda: Step.CUTTING in steps(world))
            assert world.fleet.moved(lease) is None
            assert not is_gone(pid)
        await world.until(lambda: world.fleet.moved(lease) is not None)
        await world.until(lambda: len(world.fleet.running()) == 1)
        assert world.seen().plan.type_k == "q8_0"


async def test_what_can_not_pause_goes_along_on_the_same_math(fleet_world: MakeWorld) -> None:
    async with (
        fleet_world() as world,
        world.fleet.lease(TINY, caller="a", can_pause=False) as lease,
    ):
        await moved(world, parallel=3)

        assert world.fleet.moved(lease) is not None


def steps(world: World) -> list[Step]:
    """What each move under way is at."""
    return [move.step for move in world.fleet.moving.seen()]


@pytest.mark.parametrize("has_room", [True, False], ids=["beside", "after"])
async def test_a_target_that_dies_while_it_loads_changes_nothing(
    fleet_world: MakeWorld, *, has_room: bool
) -> None:
    async with fleet_world() as world:
        await world.served_by()
        before = world.seen()
        if not has_room:
            leave_room_for_one(world)
        world.order(die_while_loading="bad_model", launches=1)

        with pytest.raises(MoveFailed, match="GGUF"):
            await moved(world, parallel=1)

        await world.until(lambda: len(world.fleet.running()) == 1)
        await world.until_state(InstanceState.READY)
        assert world.seen().plan.n_parallel == before.plan.n_parallel
        assert (world.pid() == before.pid) is has_room
        await world.served_by()
        assert "migration.failed" in await world.kinds()


async def test_a_target_killed_while_it_loads_changes_nothing(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        pid = await world.served_by()
        world.order(stuck_loading=True)
        moving = asyncio.create_task(moved(world, parallel=1))
        await world.until(lambda: len(world.fleet.running()) == 2)
        await world.until(lambda: world.fleet.running()[1].pid is not None)

        os.kill(world.fleet.running()[1].pid or 0, signal.SIGKILL)

        with pytest.raises(MoveFailed):
            await moving
        assert await world.served_by() == pid


async def test_a_source_that_dies_while_its_target_loads_is_followed_by_it(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        pid = await world.served_by()
        world.order(load_s=0.5)
        moving = asyncio.create_task(moved(world, parallel=1))
        await world.until(lambda: len(world.fleet.running()) == 2)

        os.kill(pid, signal.SIGKILL)
        await moving

        await world.until(lambda: len(world.fleet.running()) == 1)
        assert world.seen().plan.n_parallel == 1


async def test_an_unload_ends_both(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await world.served_by()
        world.order(stuck_loading=True)
        moving = asyncio.create_task(moved(world, parallel=1))
        await world.until(lambda: len(world.fleet.running()) == 2)

        world.fleet.unload(TINY)

        with pytest.raises(MoveFailed):
            await moving
        await world.until(lambda: not world.fleet.running())


async def test_the_daemons_end_is_not_held_up_by_a_move(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await world.served_by()
        world.order(stuck_loading=True)
        moving = asyncio.create_task(moved(world, parallel=1))
        await world.until(lambda: len(world.fleet.running()) == 2)

        world.fleet.stop()

        with pytest.raises(MoveFailed, match="stopping"):
            await moving


async def test_two_moves_of_one_model_do_not_meet(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await world.served_by()
        world.order(load_s=0.5)
        moving = asyncio.create_task(moved(world, parallel=1))
        await world.until(lambda: bool(world.fleet.moving.seen()))

        with pytest.raises(MoveFailed, match="moved already"):
            await moved(world, parallel=3)

        (seen,) = world.fleet.moving.seen()
        assert (seen.model_id, seen.step.value) == (TINY, "loading")
        await moving
        assert not world.fleet.moving.seen()


async def test_what_is_not_loaded_or_cannot_be_is_said(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        with pytest.raises(MoveFailed, match="not loaded and ready; load it first"):
            await moved(world, parallel=1)
        await world.served_by()

        with pytest.raises(MoveFailed, match="runs like that already"):
            await moved(world, layers=0)
        world.rule(replace(RULES, memory=MemoryRule(1, 0)))
        with pytest.raises(MoveFailed, match="does not even fit"):
            await moved(world, parallel=3)
        with pytest.raises(BadMove):
            await moved(world, context=1 << 30)


async def test_nothing_is_left_of_a_move(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await world.served_by()
        for parallel in (1, 3):
            await moved(world, parallel=parallel)
        world.fleet.unload(TINY)
        await world.until(lambda: not world.fleet.running())

        assert list(world.run_dir.iterdir()) == [world.run_dir / "cwd"]
