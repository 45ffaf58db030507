"""Several models and several wishes on one machine, on real processes."""

import asyncio
import re
import struct
from itertools import cycle, islice
from time import monotonic

import httpx
import pytest
from msgspec.structs import replace

from planners.instances.groups import Group
from planners.layout.outlook import Outlook
from planners.model import ModelId
from planners.plan import LaunchPlan
from planners.settings import ContextPolicy, MemoryRule, ModelRule
from planners.sizes import MIB
from planners.view import InstanceState
from supervisor.engines.tinymodel import N_CTX, tiny_model
from tests.fakes.fleet_world import TINY, MakeWorld, World
from tests.fakes.machines import PLAIN
from tests.fakes.processes import is_gone
from tests.fakes.serving import serving

OTHER = ModelId("other")
N_CTX_TRAIN = 16384
BOTH = ("tiny", "other")
SAID = [{"role": "user", "content": "hi"}]


async def loads(world: World) -> int:
    return (await world.kinds()).count("instance.started")


async def held(world: World, model_id: ModelId, *, hold_s: float) -> None:
    async with world.fleet.lease(model_id, caller="test"):
        await asyncio.sleep(hold_s)


def contexts_of(*planned: Outlook) -> list[int]:
    return [each.answer.context for each in planned if isinstance(each.answer, LaunchPlan)]


async def configured(world: World, *, context: int | None = 2048, parallel: int = 2) -> None:
    """Have "tiny" planned with this context; it was trained for N_CTX_TRAIN."""
    trained = b"llama.context_length" + struct.pack("<I", 4)  # GGUF's type of a uint32
    file = tiny_model().replace(
        trained + struct.pack("<I", N_CTX), trained + struct.pack("<I", N_CTX_TRAIN)
    )
    (world.models / "tiny.gguf").write_bytes(file)
    await world.catalogue.scan()
    world.rule(replace(world.desired.rules, context=context, parallel=parallel))


async def test_callers_of_two_models_in_turn_are_served_model_by_model(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(names=BOTH, max_loaded=1) as world:
        await asyncio.gather(
            *(held(world, model, hold_s=0.02) for model in islice(cycle((TINY, OTHER)), 6))
        )

        assert await loads(world) == 2


async def test_two_programs_that_ask_one_after_another_do_not_change_models_each_time(
    fleet_world: MakeWorld,
) -> None:
    async def program(world: World, model_id: ModelId) -> None:
        for _ in range(5):
            await held(world, model_id, hold_s=0.02)

    async with fleet_world(names=BOTH, max_loaded=1) as world:
        await asyncio.gather(program(world, TINY), program(world, OTHER))

        assert await loads(world) == 2


async def test_a_model_in_use_without_a_pause_makes_way_within_a_turn_and_cuts_nobody(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(names=BOTH, max_loaded=1, turn_s=0.5, finish_s=0.0) as world:
        stop = asyncio.Event()
        cut: list[int] = []

        async def keep_busy() -> None:
            while not stop.is_set():
                async with world.fleet.lease(TINY, caller="test"):
                    pid = world.pid()
                    await asyncio.sleep(0.3)
                    if is_gone(pid):
                        cut.append(pid)

        busy = [asyncio.create_task(keep_busy()) for _ in range(4)]
        await world.until_state(InstanceState.READY)

        began_s = monotonic()
        await world.served_by(OTHER)
        waited_s = monotonic() - began_s
        stop.set()
        await asyncio.gather(*busy)

        assert cut == []
        assert waited_s < 5.0
        assert await world.served_by() != 0  # those who waited meanwhile had their turn again


async def test_sizes_of_context_asked_for_in_turn_cost_one_launch_more(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await configured(world)
        for context in islice(cycle((2048, 4096, None)), 60):
            await world.served_by(context=context)

        assert await loads(world) == 2
        assert world.seen().plan.context == 4096
        assert world.seen().plan.n_ctx == 2 * 4096  # each of its two slots has it


async def test_a_running_request_goes_along_to_a_larger_context_and_keeps_nobody_waiting(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await configured(world)
        async with world.fleet.lease(TINY, caller="a") as lease, asyncio.timeout(15):
            async with world.fleet.lease(TINY, caller="b", context=4096) as larger:
                assert larger.instance_id != lease.instance_id
            assert "context 4096 is asked for" in (world.fleet.moved(lease) or "")
            async with world.fleet.lease(TINY, caller="a", after=lease) as following:
                assert following.context == 4096
        assert (await world.kinds()).count("migration.done") == 1


async def test_where_the_larger_launch_does_not_load_the_running_request_is_finished_first(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await configured(world)
        async with world.fleet.lease(TINY, caller="a"):
            first = world.pid()
            world.order(exit_code=1)
            larger = asyncio.create_task(world.served_by(context=4096))
            await world.until_state(InstanceState.DRAINING)
            assert not is_gone(first)
            world.order()

        async with asyncio.timeout(15):
            assert await larger != first
        assert (await world.kinds()).count("migration.failed") == 1


async def test_a_context_that_was_kept_is_launched_with_and_planned_with_until_forgotten(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await configured(world, context=2048)
        world.records.contexts.asked(TINY, 4096)
        served = world.catalogue.models[TINY]
        asked = replace(served, settings=replace(served.settings, context=1024))

        planned = await world.fleet.prospects.outlook(served)
        (beside,) = await world.fleet.prospects.outlooks([served])
        as_asked = await world.fleet.prospects.outlook(asked)
        await world.served_by()

        assert isinstance(planned.answer, LaunchPlan)
        assert any("a caller asked for it" in reason.text for reason in planned.answer.reasons)
        assert contexts_of(planned, beside, as_asked) == [4096, 4096, 1024]
        assert world.seen().plan.context == 4096

        await world.records.contexts.forget(TINY)
        world.fleet.unload(TINY)
        await world.until_state(None)
        await world.served_by()

        assert world.seen().plan.context == 2048
        assert contexts_of(await world.fleet.prospects.outlook(served)) == [2048]


async def test_a_context_once_asked_for_outlives_its_instance(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await configured(world)
        await world.served_by(context=4096)
        world.fleet.unload(TINY)
        await world.until_state(None)

        await world.served_by()

        assert world.seen().plan.context == 4096


async def test_more_context_than_finds_room_is_served_with_what_is_loaded_and_said(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await configured(world)
        first = await world.served_by()
        need_bytes = world.seen().plan.predicted[0].upper_bytes
        memory = MemoryRule(limit_bytes=need_bytes + 4 * MIB, reserve_bytes=0)
        world.rule(replace(world.desired.rules, memory=memory))

        assert await world.served_by(context=N_CTX_TRAIN) == first

        events = await world.journal.events(model_id=TINY, since=0.0, limit=100)
        (capped,) = [event.reason for event in events if event.kind == "context.capped"]
        assert f"context {N_CTX_TRAIN} is asked for, 2048 is loaded" in capped


async def test_under_fixed_no_request_changes_the_context(fleet_world: MakeWorld) -> None:
    async with fleet_world(context_policy=ContextPolicy.FIXED) as world:
        await configured(world)
        first = await world.served_by()

        assert await world.served_by(context=8192) == first
        assert world.seen().plan.context == 2048


async def test_under_client_the_launch_follows_its_callers(fleet_world: MakeWorld) -> None:
    async with fleet_world(context_policy=ContextPolicy.CLIENT, turn_s=0.1) as world:
        await configured(world, context=None)
        seen = []
        for context in (2048, 4096, 2048):
            await world.served_by(context=context)
            seen.append(world.seen().plan.context)

        assert seen == [2048, 4096, 2048]
        assert await loads(world) == 3


async def test_more_context_than_the_model_was_trained_for_is_no_reason_to_reload(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await configured(world, context=N_CTX_TRAIN)
        first = await world.served_by()

        assert await world.served_by(context=10 * N_CTX_TRAIN) == first
        assert world.seen().plan.context == N_CTX_TRAIN


@pytest.mark.parametrize("rules_path", [True, False], ids=["two rules", "a rule and a plain file"])
async def test_two_names_for_one_file_share_a_process(
    fleet_world: MakeWorld, rules_path: bool
) -> None:
    async with fleet_world() as world:
        path = str(world.models / "tiny.gguf")
        if rules_path:
            names = (ModelId("one"), ModelId("two"))
            rules = tuple(ModelRule(name, path, (), PLAIN) for name in names)
        else:
            (world.models / "link.gguf").symlink_to(path)
            names, rules = (TINY, ModelId("link")), ()
        world.catalogue.reconfigure(dirs=(str(world.models),), rules=rules, defaults=PLAIN)
        await world.catalogue.scan()
        assert {model.model_id for model in world.fleet.models()} == set(names)

        pids = []
        for name in names:
            async with world.fleet.lease(name, caller="test"):
                (seen,) = world.fleet.running()
                pids.append(seen.pid)

        assert pids[0] == pids[1]
        assert [world.fleet.resolve(name) for name in names] == 2 * [world.fleet.resolve(names[0])]
        assert world.fleet.unload(names[1])
        await world.until(lambda: not world.fleet.running())


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": SAID}),
        ("/v1/chat/completions", {"messages": SAID, "stream": True}),
        ("/v1/chat/completions", {"messages": SAID, "logprobs": True}),
        ("/v1/chat/completions", {"messages": SAID, "n": 2}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": "hi", "stream": True}),
        ("/v1/messages", {"messages": SAID, "max_tokens": 4}),
        ("/v1/messages", {"messages": SAID, "max_tokens": 4, "stream": True}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/responses", {"input": "hi", "stream": True}),
        ("/api/chat", {"messages": SAID}),
        ("/api/generate", {"prompt": "hi", "stream": False}),
    ],
    ids=lambda told: told if isinstance(told, str) else " ".join(told),
)
async def test_of_names_that_share_a_process_a_reply_tells_the_one_that_was_asked_for(
    fleet_world: MakeWorld, path: str, asked: dict[str, object]
) -> None:
    async with fleet_world() as world, serving(world.fleet) as served:
        (world.models / "zwilling.gguf").symlink_to(world.models / "tiny.gguf")
        await world.catalogue.scan()
        async with httpx.AsyncClient(base_url=served.url, timeout=30, trust_env=False) as client:
            reply = await client.post(path, json={"model": "zwilling", **asked})
            once_more = await client.post(path, json={"model": TINY, **asked})

    assert reply.status_code == 200, reply.text
    told = re.findall(r'"model": ?"([^"]*)"', reply.text)
    assert told
    assert set(told) == {"zwilling"}
    assert set(re.findall(r'"model": ?"([^"]*)"', once_more.text)) == {TINY}


async def test_an_error_names_the_model_that_was_asked_for(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world, serving(world.fleet) as served:
        (world.models / "zwilling.gguf").symlink_to(world.models / "tiny.gguf")
        await world.catalogue.scan()
        async with httpx.AsyncClient(base_url=served.url, timeout=30, trust_env=False) as client:
            reply = await client.post("/v1/rerank", json={"model": "zwilling", "query": "a",
                                                          "documents": ["b"]})  # fmt: skip

    assert reply.status_code >= 400
    assert "zwilling" in reply.text
    assert TINY not in reply.text


async def test_a_caller_who_waits_for_a_model_that_a_reload_makes_another_ones_twin_is_served(
    fleet_world: MakeWorld,
) -> None:
    one, two = ModelId("one"), ModelId("two")
    async with fleet_world() as world:
        path = str(world.models / "tiny.gguf")

        async def offer(**contexts: int) -> None:
            rules = tuple(
                ModelRule(ModelId(name), path, (), replace(PLAIN, context=context))
                for name, context in contexts.items()
            )
            world.catalogue.reconfigure(dirs=(), rules=rules, defaults=PLAIN)
            await world.catalogue.scan()
            world.fleet.look()

        async def instance_that_serves(name: ModelId) -> ModelId:
            async with world.fleet.lease(name, caller="test") as lease:
                return lease.model_id

        await offer(one=128, two=64)
        world.order(load_s=3.0, launches=1)
        waits = asyncio.create_task(instance_that_serves(two))
        await world.until_state(InstanceState.LOADING, two)

        await offer(one=128, two=128)

        assert await asyncio.wait_for(waits, 15.0) == one


async def test_a_member_of_an_exclusive_group_takes_the_place_of_the_other(
    fleet_world: MakeWorld,
) -> None:
    pair = Group("pair", BOTH, exclusive=True, alone=False)
    async with fleet_world(names=BOTH, groups=(pair,)) as world:
        first = await world.served_by()

        await world.served_by(OTHER)

        assert is_gone(first)
