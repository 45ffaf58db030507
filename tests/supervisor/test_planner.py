"""Plans are thought out beside the loop, and what changes meanwhile counts."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from planners.instances.actions import Refuse, Start
from planners.layout.outlook import Surroundings
from planners.model import ModelId, ServedModel
from planners.plan import LaunchPlan
from planners.view import InstanceState
from supervisor.leases.lease import ModelUnavailable, Stopping
from supervisor.planner import Planner, PlanTookTooLong
from tests.fakes.fleet_world import TINY, MakeWorld, World
from tests.fakes.gate import HeldEngines, OddEngines
from tests.fakes.machines import CPU, RULES, machine, served
from tests.fakes.views import A, B, view

OTHER = ModelId("other")
MACHINE = machine()


def hold(world: World) -> HeldEngines:
    """From now on every launch is held while it is planned."""
    assert world.desired.engines is not None
    held = HeldEngines(world.desired.engines)
    world.desired = replace(world.desired, engines=held)
    world.fleet.apply(world.desired)
    return held


@asynccontextmanager
async def asked(world: World, model_id: ModelId) -> AsyncIterator["asyncio.Task[int]"]:
    """Somebody who waits for a model; gone with the block."""
    caller = asyncio.create_task(world.served_by(model_id))
    try:
        yield caller
    finally:
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)


async def test_a_launch_that_is_planned_keeps_nobody_else_waiting(fleet_world: MakeWorld) -> None:
    async with fleet_world(names=("tiny", "other")) as world:
        pid = await world.served_by()
        engines = hold(world)
        async with asked(world, OTHER) as caller:
            await world.until(engines.reached.is_set)

            assert await world.served_by() == pid
            assert not caller.done()
            engines.opened.set()
            assert await caller != pid


async def test_a_model_that_became_busy_meanwhile_is_not_evicted(fleet_world: MakeWorld) -> None:
    async with fleet_world(names=("tiny", "other"), max_loaded=1) as world:
        await world.served_by()
        engines = hold(world)
        async with asked(world, OTHER) as caller:
            await world.until(engines.reached.is_set)

            async with world.fleet.lease(TINY, caller="late"):
                engines.opened.set()
                await world.until(lambda: engines.passes > 1)
                assert world.state() is InstanceState.READY
            await caller


async def test_a_model_that_is_gone_meanwhile_is_not_launched(fleet_world: MakeWorld) -> None:
    async with fleet_world(names=("tiny", "other")) as world:
        engines = hold(world)
        async with asked(world, OTHER) as caller:
            await world.until(engines.reached.is_set)
            (world.models / "other.gguf").unlink()
            await world.catalogue.scan()

            engines.opened.set()
            with pytest.raises(ModelUnavailable, match="taken off the offer"):
                await caller

            assert world.state(OTHER) is None


async def test_a_file_that_changes_meanwhile_is_planned_anew(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        engines = hold(world)
        async with asked(world, TINY) as caller:
            await world.until(engines.reached.is_set)
            os.utime(world.models / "tiny.gguf", (1, 1))
            await world.catalogue.scan()

            engines.opened.set()
            await caller

            resolved = world.fleet.resolve("tiny")
            assert resolved is not None
            assert world.seen().plan.file_key == resolved.file_key
            assert (await world.kinds()).count("instance.planned") == 1


async def test_an_engine_that_is_replaced_meanwhile_launches_nothing(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        engines = hold(world)
        async with asked(world, TINY) as caller:
            await world.until(engines.reached.is_set)
            newer = tuple(replace(engine, engine_id="newer") for engine in list(engines))
            world.fleet.apply(replace(world.desired, engines=newer))

            engines.opened.set()
            await caller

            assert world.seen().plan.engine_id == "newer"


async def test_a_caller_who_leaves_meanwhile_triggers_no_load(fleet_world: MakeWorld) -> None:
    async with fleet_world(names=("tiny", "other")) as world:
        engines = hold(world)
        async with asked(world, OTHER):
            await world.until(engines.reached.is_set)

        engines.opened.set()
        await world.served_by()

        assert world.state(OTHER) is None
        assert (await world.kinds()).count("instance.planned") == 1


async def test_an_instance_that_is_unloaded_meanwhile_is_not_restarted(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(names=("tiny", "other")) as world:
        pid = await world.served_by()
        engines = hold(world)
        os.kill(pid, signal.SIGKILL)
        await world.until(engines.reached.is_set)
        assert world.state() is InstanceState.BACKOFF

        world.fleet.unload(TINY)
        engines.opened.set()
        await world.until_state(None)
        await world.served_by(OTHER)

        assert world.state() is None
        assert "instance.resumed" not in await world.kinds()


async def test_a_fleet_stops_while_it_plans(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        engines = hold(world)
        async with asked(world, TINY) as caller:
            await world.until(engines.reached.is_set)

            world.fleet.stop()

            with pytest.raises(Stopping):
                await caller
        engines.opened.set()


async def test_a_plan_that_somebody_asks_for_keeps_no_caller_waiting(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        pid = await world.served_by()
        engines = hold(world)
        model = world.fleet.resolve("tiny")
        assert model is not None

        async with asyncio.TaskGroup() as tasks:
            plan = tasks.create_task(world.fleet.prospects.outlook(model))
            await world.until(engines.reached.is_set)
            assert await world.served_by() == pid
            assert not plan.done()
            engines.opened.set()

        assert isinstance(plan.result().answer, LaunchPlan)


async def test_a_plan_that_waits_too_long_for_others_is_given_up() -> None:
    engines = HeldEngines((CPU,))
    around = Surroundings(engines, RULES, {}, {})
    async with Planner(changed=lambda: None, outlook_s=0.1) as planner, asyncio.timeout(10):
        first = asyncio.create_task(planner.outlook(served(), MACHINE, around))
        while not engines.reached.is_set():
            await asyncio.sleep(0)

        with pytest.raises(PlanTookTooLong) as caught:
            await planner.outlook(served(), MACHINE, around)
        engines.opened.set()

        assert caught.value.limit_s == 0.1
        with pytest.raises(PlanTookTooLong):
            await first


async def test_plans_of_several_models_are_thought_out_beside_the_loop_too() -> None:
    engines = HeldEngines((CPU,))
    around = Surroundings(engines, RULES, {}, {})
    one, other = (replace(served(), model_id=ModelId(name)) for name in ("one", "other"))
    async with Planner(changed=lambda: None) as planner, asyncio.timeout(10):
        plans = asyncio.create_task(planner.outlooks((one, other), MACHINE, around))
        while not engines.reached.is_set():
            await asyncio.sleep(0)  # the loop runs while the plan waits
        assert not plans.done()
        engines.opened.set()

        assert [each.served for each in await plans] == [one, other]


async def test_a_planner_that_is_over_plans_no_more() -> None:
    async with Planner(changed=lambda: None) as planner:
        pass

    with pytest.raises(Stopping):
        await planner.outlook(served(), MACHINE, Surroundings((CPU,), RULES, {}, {}))


def unplannable(model: ServedModel) -> ServedModel:
    """`model` with more parameters than a float can count, which no file can have."""
    return replace(model, info=replace(model.info, n_params=10**400))


@pytest.mark.parametrize("is_pinned", [False, True], ids=["asked for", "pinned"])
async def test_a_bug_in_planning_one_model_is_that_models(is_pinned: bool) -> None:
    odd = unplannable(A)
    odd = replace(odd, settings=replace(odd.settings, pin=is_pinned))
    now = view(odd, B, waiting=(B,) if is_pinned else (odd, B))
    looks = 0

    def changed() -> None:
        nonlocal looks
        looks += 1

    async with Planner(changed=changed) as planner:
        assert await planner.decided(lambda: now) == ()
        assert looks == 1  # at once
        actions = await planner.decided(lambda: now)

    assert [a.plan.model_id for a in actions if isinstance(a, Start)] == [B.model_id]
    refused = [a for a in actions if isinstance(a, Refuse)]
    assert [a.model_id for a in refused] == ([] if is_pinned else [A.model_id])
    assert all(a.reason.startswith("planning it failed: ") for a in refused)
    assert all(a.reason.endswith("; this is a bug") for a in refused)
    assert all(a.retry_after_s is None for a in refused)


async def test_a_model_whose_planning_failed_is_planned_again_once_it_changed() -> None:
    odd = unplannable(A)
    async with Planner(changed=lambda: None) as planner:
        before = view(odd, waiting=(odd,))
        await planner.decided(lambda: before)
        assert [type(a) for a in await planner.decided(lambda: before)] == [Refuse]

        mended = replace(A, file_key="another")
        after = view(mended, waiting=(mended,))
        (start,) = await planner.decided(lambda: after)

    assert isinstance(start, Start)


async def test_callers_of_a_model_that_cannot_be_planned_are_told_and_others_served(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(names=("tiny", "other")) as world:
        assert world.desired.engines is not None
        engines = OddEngines(world.desired.engines)
        world.desired = replace(world.desired, engines=engines)
        world.fleet.apply(world.desired)
        bug = "planning it failed: odd engines; this is a bug"

        with pytest.raises(ModelUnavailable, match=bug):
            await world.served_by()
        engines.are_odd = False

        assert await world.served_by(OTHER)
        with pytest.raises(ModelUnavailable, match=bug):
            await world.served_by()
        assert (await world.kinds()).count("plan.failed") == 1
