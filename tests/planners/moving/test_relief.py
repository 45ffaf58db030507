"""What our launches could do about memory that others want."""

from typing import Any

import pytest
from msgspec.structs import replace

from planners.hardware import HOST, DeviceId
from planners.model import ServedModel
from planners.moving.relief import last_resort, limited, ours_bytes, over_limits, rise, ways
from planners.placement import plan_launch
from planners.plan import InstanceId, LaunchPlan
from planners.pressure import Kind, relief
from planners.sizes import GIB, MIB
from planners.view import InstanceState, Observed, View
from tests.fakes.machines import CUDA, machine, nvidia
from tests.fakes.views import CARD, NOW_S, RULES, A, B, model, planned, seen, view

FULL = machine(nvidia(0, 24.0))


def on_card(
    model: ServedModel = A, state: InstanceState = InstanceState.READY, **facts: object
) -> Observed:
    """A model wholly on the card."""
    plan = plan_launch(model, hardware=FULL, engines=(CUDA,), rules=RULES, promised={})
    assert isinstance(plan, LaunchPlan)
    assert plan.n_gpu_layers == model.info.n_layer + 1
    return seen(model, state, plan=plan, **{"last_used_s": NOW_S - 60, **facts})


def world(*instances: Observed, free_gib: float = 20.0) -> View:
    hardware = machine(nvidia(0, 24.0, free_gib=free_gib))
    return view(A, B, instances=instances, machine=hardware, engines=(CUDA,))


def test_an_idle_model_can_end_or_take_less() -> None:
    found = ways(world(on_card()), {CARD: 512 * MIB}, now_s=NOW_S)

    assert [way.option.kind for way in found] == [Kind.UNLOAD, Kind.MIGRATE]
    assert found[0].plan is None
    assert found[1].plan is not None
    assert found[1].plan.n_gpu_layers < A.info.n_layer + 1
    assert found[1].option.frees[CARD] >= 512 * MIB
    assert found[1].option.cost_tokens_per_s > 0


def test_one_in_use_only_moves_with_its_context_slots_and_cache_types() -> None:
    busy = on_card(running=1, idle_since_s=None)

    (way,) = ways(world(busy), {CARD: 512 * MIB}, now_s=NOW_S)

    assert way.option.kind is Kind.MIGRATE
    assert not way.option.is_idle
    assert way.plan is not None
    same = ("context", "n_parallel", "type_k", "type_v", "flash_attn")
    assert all(getattr(way.plan, name) == getattr(busy.plan, name) for name in same)


def test_one_that_answered_a_moment_ago_ends_only_where_nothing_else_is_enough() -> None:
    warm = on_card(last_used_s=NOW_S - 5)
    both = world(warm, on_card(B))

    alone = ways(world(warm), {CARD: 512 * MIB}, now_s=NOW_S)
    beside = ways(both, {CARD: 512 * MIB}, now_s=NOW_S)
    all_of_it = ours_bytes(both.hardware, both.instances)[CARD]

    assert [way.option.kind for way in alone] == [Kind.UNLOAD_WARM, Kind.MIGRATE]
    assert [o.kind for o in relief([w.option for w in alone], {CARD: 512 * MIB})] == [Kind.MIGRATE]
    (chosen,) = relief([way.option for way in beside], {CARD: 512 * MIB})
    assert (chosen.kind, chosen.instance_id) == (Kind.UNLOAD, "b")
    most = relief([way.option for way in beside], {CARD: all_of_it})
    assert {o.kind for o in most} == {Kind.UNLOAD, Kind.UNLOAD_WARM}


@pytest.mark.parametrize(
    "instance",
    [
        on_card(state=InstanceState.LOADING),
        on_card(state=InstanceState.DRAINING),
        seen(A),
    ],
    ids=["loading", "draining", "on the host"],
)
def test_who_is_not_ready_or_not_there_can_do_nothing(instance: Observed) -> None:
    assert ways(world(instance), {CARD: 512 * MIB}, now_s=NOW_S) == []


def test_what_moves_already_is_left_alone() -> None:
    moving = replace(world(on_card()), moving=frozenset((A.model_id,)))

    assert ways(moving, {CARD: 512 * MIB}, now_s=NOW_S) == []


def test_all_our_launches_together_count_against_a_limit() -> None:
    both = (on_card(), on_card(B))
    ours = sum(instance.plan.bytes_on(CARD) for instance in both)

    over = over_limits(limited(FULL, {CARD: ours - 100}), both)

    assert over == {CARD: 100}
    assert over_limits(limited(FULL, {CARD: ours}), both) == {}


def test_a_limit_is_only_ever_lowered() -> None:
    own = replace(FULL, devices=(replace(FULL.devices[0], limit_bytes=5 * GIB),))

    assert limited(own, {CARD: 9 * GIB}).devices[0].limit_bytes == 5 * GIB
    assert limited(own, {CARD: GIB, HOST: GIB}).devices[0].limit_bytes == GIB
    assert limited(own, {HOST: GIB}).host.limit_bytes == GIB


def test_a_limit_is_met_by_the_idle_model_before_one_in_use_moves() -> None:
    instances = (on_card(), on_card(B, running=1, idle_since_s=None))
    found = ways(world(*instances), {CARD: 512 * MIB}, now_s=NOW_S)

    (chosen,) = relief([way.option for way in found], {CARD: 512 * MIB})

    assert (chosen.kind, chosen.instance_id) == (Kind.UNLOAD, "a")


def test_who_cannot_take_less_ends_where_the_operator_says_so() -> None:
    busy = on_card(running=1, idle_since_s=None)

    assert last_resort(world(busy), {CARD: GIB}, ()) == [busy]
    (way,) = ways(world(busy), {CARD: 512 * MIB}, now_s=NOW_S)
    assert last_resort(world(busy), {CARD: 512 * MIB}, (way,)) == []


def test_a_model_that_took_less_can_go_back_once_there_is_room() -> None:
    (_, lower) = ways(world(on_card()), {CARD: 512 * MIB}, now_s=NOW_S)
    assert lower.plan is not None
    lowered = seen(A, plan=lower.plan)

    found = rise(world(lowered), lowered)

    assert found is not None
    better, plan = found
    assert plan.n_gpu_layers == A.info.n_layer + 1
    assert better.takes[CARD] > 0
    assert better.gain_tokens_per_s > 0
    assert better.is_idle
    assert rise(world(on_card()), on_card()) is None


AUTOMATIC = replace(RULES, context=None)
CACHE = 256 * MIB


def caching(**facts: Any) -> Observed:
    """A model on the host that may save prompts, and is pinned where it is said."""
    used = {"last_used_s": NOW_S - 60, **facts}
    return seen(A, plan=replace(planned(A), cache_ram_mib=256), **used)


@pytest.mark.parametrize(
    ("caches", "freed"),
    [
        pytest.param(None, CACHE, id="nobody counted"),
        pytest.param({"i-a": 100 * MIB}, 100 * MIB, id="less was saved"),
        pytest.param({"i-a": 10 * MIB}, None, id="hardly anything was"),
        pytest.param({}, None, id="nothing was"),
    ],
)
def test_an_idle_model_can_let_go_of_the_prompts_it_saved(
    caches: dict[InstanceId, int] | None, freed: int | None
) -> None:
    found = ways(view(A, instances=(caching(),)), {HOST: GIB}, now_s=NOW_S, caches=caches)

    dropped = [way for way in found if way.option.kind is Kind.DROP_CACHE]
    assert len(dropped) == (freed is not None)
    if freed is not None:
        (way,) = dropped
        one_more = sum(part.kv_bytes for part in way.seen.plan.predicted)  # that it is saving
        assert freed <= way.option.frees[HOST] <= freed + one_more
        assert way.plan is not None
        assert way.plan.cache_ram_mib == 0
        assert replace(way.plan, cache_ram_mib=256, predicted=()) == replace(
            caching().plan, predicted=()
        )


def test_prompts_are_let_go_of_before_a_model_is_and_only_where_that_is_enough() -> None:
    found = ways(view(A, instances=(caching(),)), {HOST: 100 * MIB}, now_s=NOW_S)
    options = [way.option for way in found]

    assert [o.kind for o in relief(options, {HOST: 100 * MIB})] == [Kind.DROP_CACHE]
    assert [o.kind for o in relief(options, {HOST: GIB})] == [Kind.UNLOAD]


@pytest.mark.parametrize(
    ("instance", "place"),
    [
        pytest.param(caching(running=1, idle_since_s=None), HOST, id="in use"),
        pytest.param(on_card(), CARD, id="not of the card's memory"),
    ],
)
def test_nobody_else_lets_go_of_prompts(instance: Observed, place: DeviceId) -> None:
    world_ = world(instance) if place is CARD else view(A, instances=(instance,))

    found = ways(world_, {place: GIB}, now_s=NOW_S)

    assert Kind.DROP_CACHE not in {way.option.kind for way in found}


def wide(**facts: Any) -> View:
    """A pinned model on the host with a long context that nobody named."""
    pinned = model("a", pin=True)
    long = replace(pinned, settings=replace(pinned.settings, context=32768))
    instance = seen(pinned, plan=planned(long), **facts)
    return replace(view(pinned, instances=(instance,)), rules=AUTOMATIC)


def test_an_idle_model_that_may_neither_end_nor_move_shrinks_its_context() -> None:
    world_ = wide()
    (before,) = world_.instances

    (way,) = ways(world_, {HOST: MIB}, now_s=NOW_S, caches={})

    assert way.option.kind is Kind.SHRINK
    assert way.plan is not None
    assert way.plan.context == before.plan.context // 2
    assert way.option.frees[HOST] >= MIB


def test_it_shrinks_as_far_as_it_must_and_no_further_than_callers_have_asked_for() -> None:
    (way,) = ways(wide(), {HOST: 100 * GIB}, now_s=NOW_S, caches={})
    asked = replace(wide(), contexts={A.model_id: 20000})

    assert way.plan is not None
    assert way.plan.context == 4096
    assert ways(asked, {HOST: 100 * GIB}, now_s=NOW_S, caches={}) == []


@pytest.mark.parametrize(
    "world_",
    [
        pytest.param(wide(running=1, idle_since_s=None), id="in use"),
        pytest.param(replace(wide(), rules=RULES), id="the operator named the context"),
    ],
)
def test_no_other_context_shrinks(world_: View) -> None:
    assert ways(world_, {HOST: GIB}, now_s=NOW_S, caches={}) == []


def test_room_for_prompts_that_were_never_saved_is_no_reason_to_move() -> None:
    busy = seen(A, running=1, idle_since_s=None)
    world_ = view(A, instances=(busy,))

    assert busy.plan.cache_ram_mib
    assert ways(world_, {HOST: 64 * MIB}, now_s=NOW_S, caches={}) == []
    held = {busy.instance_id: 4 * GIB}
    (way,) = ways(world_, {HOST: 64 * MIB}, now_s=NOW_S, caches=held)
    assert way.option.kind is Kind.MIGRATE
    assert way.option.frees[HOST] > 0
