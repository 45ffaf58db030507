"""What is launched, what makes room, and who is told that there is none: by a pass each."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from planners.backends import Engine
from planners.hardware import HOST, Device, DeviceKind
from planners.instances.actions import Refuse, Restart, Start, Stop
from planners.instances.exits import Cause, ExitKind
from planners.instances.restart import MOST_OWN_TRIALS
from planners.launch_key import launch_key
from planners.model import ModelId, ServedModel
from planners.placement import plan_launch
from planners.plan import LaunchPlan
from planners.settings import FleetSettings
from planners.sizes import GIB, MIB
from planners.view import InstanceState, Observed, View
from tests.fakes import machines
from tests.fakes.machines import FLEET, machine, served
from tests.fakes.views import (
    CARD,
    ENGINE,
    NOW_S,
    RULES,
    A,
    B,
    actions,
    busy,
    hardware,
    model,
    planned,
    seen,
    view,
)


@pytest.mark.parametrize(
    "state",
    [InstanceState.LOADING, InstanceState.READY, InstanceState.DRAINING, InstanceState.STOPPING],
)
def test_a_model_whose_instance_lives_is_not_started_again(state: InstanceState) -> None:
    assert actions(view(A, instances=(seen(A, state),), waiting=(A,))) == ()


def test_a_pinned_model_starts_without_a_caller() -> None:
    pinned = model("a", pin=True)

    (start,) = actions(view(pinned))

    assert isinstance(start, Start)


def test_without_an_engine_callers_are_told_how_to_build_one() -> None:
    (refusal,) = actions(view(A, waiting=(A,), engines=()))

    assert isinstance(refusal, Refuse)
    assert "scripts/build_backends.sh cpu" in refusal.reason


def test_an_instance_in_backoff_waits_for_its_time() -> None:
    fallen = seen(A, InstanceState.BACKOFF, retry_at_s=NOW_S + 1, running=0)

    assert actions(view(A, instances=(fallen,), waiting=(A,))) == ()


def test_an_instance_in_backoff_restarts_when_its_time_has_come() -> None:
    fallen = seen(A, InstanceState.BACKOFF, retry_at_s=NOW_S, running=0)

    (restart,) = actions(view(A, instances=(fallen,)))

    assert isinstance(restart, Restart)
    assert restart.instance_id == "i-a"


def test_one_that_died_and_that_nobody_asks_for_stops_no_other_for_its_return() -> None:
    big = model("big", weights_bytes=10 * GIB)
    fallen = seen(big, InstanceState.BACKOFF, retry_at_s=NOW_S, running=0)
    idle = seen(B)
    full = hardware(available_bytes=4 * GIB)
    counted = replace(FLEET, max_loaded=1)

    assert actions(view(big, B, instances=(fallen, idle), machine=full)) == ()
    assert actions(view(big, B, instances=(fallen, idle), settings=counted)) == ()

    asked_for = view(big, B, instances=(fallen, idle), waiting=(big,), settings=counted)
    (stop,) = actions(asked_for)
    assert isinstance(stop, Stop)


def test_callers_of_a_failed_model_are_refused_with_its_cause_and_last_words() -> None:
    cause = Cause(ExitKind.BAD_MODEL, "its file is cut short", 1, ("failed to load",))
    failed = seen(A, InstanceState.FAILED, cause=cause, running=0)

    assert actions(view(A, instances=(failed,), waiting=(A,))) == (
        Refuse(A.model_id, "its file is cut short", None, ("failed to load",)),
    )


def test_callers_of_a_model_left_alone_are_told_when_it_is_tried_again() -> None:
    failed = seen(A, InstanceState.FAILED, retry_at_s=NOW_S + 42, running=0)

    (refusal,) = actions(view(A, instances=(failed,), waiting=(A,)))

    assert isinstance(refusal, Refuse)
    assert refusal.retry_after_s == 42.0


def test_a_failed_model_that_may_be_tried_again_is() -> None:
    failed = seen(A, InstanceState.FAILED, retry_at_s=NOW_S, running=0)

    (restart,) = actions(view(A, instances=(failed,), waiting=(A,)))

    assert isinstance(restart, Restart)


def test_a_pinned_model_is_tried_again_by_itself_once_its_cooldown_is_over() -> None:
    pinned = model("a", pin=True)
    failed = seen(pinned, InstanceState.FAILED, retry_at_s=NOW_S, running=0, openings=1)
    too_often = replace(failed, openings=MOST_OWN_TRIALS + 1)
    cooling = replace(failed, retry_at_s=NOW_S + 1)
    hopeless = replace(failed, retry_at_s=None)

    (restart,) = actions(view(pinned, instances=(failed,)))

    assert isinstance(restart, Restart)
    assert "it is pinned" in restart.reason
    for other in (too_often, cooling, hopeless):
        assert actions(view(pinned, instances=(other,))) == ()


def test_a_failed_model_without_callers_stays_as_it_is() -> None:
    failed = seen(A, InstanceState.FAILED, running=0)

    assert actions(view(A, instances=(failed,))) == ()


def test_a_model_too_large_for_the_machine_is_refused_with_the_numbers() -> None:
    large = model("large", weights_bytes=64 * GIB)

    (refusal,) = actions(view(large, waiting=(large,)))

    assert isinstance(refusal, Refuse)
    assert "GiB" in refusal.reason


def test_an_idle_model_makes_room_for_one_that_is_asked_for() -> None:
    big_a, big_b = model("a", weights_bytes=10 * GIB), model("b", weights_bytes=10 * GIB)
    idle = seen(big_a)

    (stop,) = actions(view(big_a, big_b, instances=(idle,), waiting=(big_b,)))

    assert isinstance(stop, Stop)
    assert stop.instance_id == "i-a"
    assert "b" in stop.reason


def test_no_more_models_make_way_than_their_processes_free_memory() -> None:
    a, b, c = (model(name, weights_bytes=5 * GIB) for name in "abc")
    machine = hardware(available_bytes=16 * GIB)
    measured = tuple(replace(p, overhead_bytes=0) for p in planned(a).predicted)
    limit_bytes = 2 * planned(a).bytes_on(HOST) + 64 * MIB
    limited = replace(machine, host=replace(machine.host, limit_bytes=limit_bytes))
    idle = tuple(seen(m, measured=measured) for m in (a, b))

    stops = actions(view(a, b, c, instances=idle, waiting=(c,), machine=limited))

    assert len(stops) == 1


def gpu_machine(*, free_bytes: int) -> View:
    """A 12 GiB card with 10 GiB models a (idle, loaded on it) and b (asked for)."""
    card = Device(
        device_id=CARD,
        kind=DeviceKind.DISCRETE,
        name="a card",
        engine_names=(("vulkan", "Vulkan0"),),
        total_bytes=12 * GIB,
        free_bytes=free_bytes,
    )
    big_a, big_b = model("a", weights_bytes=10 * GIB), model("b", weights_bytes=10 * GIB)
    engine = replace(ENGINE, backend="vulkan")
    empty = replace(card, free_bytes=12 * GIB)
    plan = plan_launch(
        big_a, hardware=hardware(devices=(empty,)), engines=(engine,), rules=RULES, promised={}
    )
    assert isinstance(plan, LaunchPlan)
    assert plan.bytes_on(CARD) > 10 * GIB
    return view(
        big_a,
        big_b,
        instances=(seen(big_a, plan=plan),),
        waiting=(big_b,),
        machine=hardware(devices=(card,)),
        engines=(engine,),
    )


def test_an_idle_model_on_the_gpu_makes_way_rather_than_the_next_running_on_the_cpu() -> None:
    (stop,) = actions(gpu_machine(free_bytes=GIB))

    assert isinstance(stop, Stop)
    assert stop.instance_id == "i-a"


def test_a_busy_gpu_leaves_the_next_model_what_the_host_has() -> None:
    world = gpu_machine(free_bytes=GIB)
    working = replace(world.instances[0], running=1, idle_since_s=None)

    (start,) = actions(replace(world, instances=(working,)))

    assert isinstance(start, Start)
    assert start.plan.bytes_on(HOST) > 9 * GIB


@pytest.mark.parametrize(
    "holder",
    [
        pytest.param(busy, id="busy"),
        pytest.param(lambda m: seen(m, InstanceState.LOADING), id="loading"),
        pytest.param(lambda m: seen(m, InstanceState.STOPPING), id="stopping"),
    ],
)
def test_a_model_waits_for_room_that_a_working_instance_holds(
    holder: Callable[[ServedModel], Observed],
) -> None:
    big_a, big_b = model("a", weights_bytes=10 * GIB), model("b", weights_bytes=10 * GIB)

    assert actions(view(big_a, big_b, instances=(holder(big_a),), waiting=(big_b,))) == ()


def test_of_two_models_asked_for_at_once_the_one_without_room_waits() -> None:
    big_a, big_b = model("a", weights_bytes=10 * GIB), model("b", weights_bytes=10 * GIB)

    asked_for = actions(view(big_a, big_b, waiting=(big_a, big_b)))

    assert [type(action) for action in asked_for] == [Start]


def test_a_pinned_model_is_never_stopped_to_make_room() -> None:
    pinned = model("a", weights_bytes=10 * GIB, pin=True)
    big_b = model("b", weights_bytes=10 * GIB)

    world = view(pinned, big_b, instances=(seen(pinned),), waiting=(big_b,))

    assert not [action for action in actions(world) if isinstance(action, Stop)]


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_who_finds_room_only_in_the_place_of_pinned_models_is_told_at_once(is_busy: bool) -> None:
    pinned = model("a", weights_bytes=10 * GIB, pin=True)
    big_b = model("b", weights_bytes=10 * GIB)
    holder = busy(pinned) if is_busy else seen(pinned)

    (refusal,) = actions(view(pinned, big_b, instances=(holder,), waiting=(big_b,)))

    assert isinstance(refusal, Refuse)
    assert "b does not fit" in refusal.reason
    assert "beside what is pinned: a" in refusal.reason


def test_who_waits_for_a_pinned_model_to_be_loaded_may_find_room_beside_it() -> None:
    pinned = model("a", weights_bytes=10 * GIB, pin=True)
    big_b = model("b", weights_bytes=10 * GIB)
    loading = seen(pinned, InstanceState.LOADING)

    assert actions(view(pinned, big_b, instances=(loading,), waiting=(big_b,))) == ()


def test_where_all_that_may_be_loaded_are_pinned_callers_of_others_are_told() -> None:
    pinned = model("a", pin=True)
    settings = replace(FLEET, max_loaded=1)

    (refusal,) = actions(
        view(pinned, B, instances=(seen(pinned),), waiting=(B,), settings=settings)
    )

    assert isinstance(refusal, Refuse)
    assert refusal.reason == "1 models at once is the limit, and pinned are a"


@pytest.mark.parametrize("engines", [(), (ENGINE,)], ids=["no engine", "no room"])
def test_a_pinned_model_that_cannot_be_launched_is_told_once(engines: tuple[Engine, ...]) -> None:
    huge = model("a", weights_bytes=900 * GIB, pin=True)
    world = view(huge, engines=engines)

    (refusal,) = actions(world)

    assert isinstance(refusal, Refuse)
    assert actions(replace(world, told={huge.model_id: launch_key(huge, RULES)})) == ()
    assert actions(replace(world, told={huge.model_id: "of another file"})) == (refusal,)


def test_nobody_is_told_of_a_model_that_comes_back_without_an_engine_and_unasked() -> None:
    fallen = seen(A, InstanceState.BACKOFF, retry_at_s=NOW_S, running=0)

    assert actions(view(A, instances=(fallen,), engines=())) == ()


def test_the_longest_idle_model_makes_way_at_the_limit_of_loaded_models() -> None:
    c = model("c")
    older, newer = seen(A, idle_since_s=NOW_S - 20), seen(B, idle_since_s=NOW_S - 5)
    world = view(
        A, B, c, instances=(newer, older), waiting=(c,), settings=replace(FLEET, max_loaded=2)
    )

    (stop,) = actions(world)

    assert isinstance(stop, Stop)
    assert stop.instance_id == "i-a"


def test_two_starts_in_one_pass_stay_within_the_limit_of_loaded_models() -> None:
    world = view(A, B, waiting=(A, B), settings=replace(FLEET, max_loaded=1))

    (start,) = actions(world)

    assert isinstance(start, Start)


def test_a_restart_counts_towards_the_limit_of_loaded_models() -> None:
    fallen = seen(A, InstanceState.BACKOFF, retry_at_s=NOW_S, running=0)
    world = view(
        A, B, instances=(fallen, busy(B)), waiting=(A,), settings=replace(FLEET, max_loaded=1)
    )

    assert actions(world) == ()


def test_two_starts_in_one_pass_never_claim_the_same_memory() -> None:
    big_a, big_b = model("a", weights_bytes=10 * GIB), model("b", weights_bytes=10 * GIB)

    started = [
        a for a in actions(view(big_a, big_b, waiting=(big_a, big_b))) if isinstance(a, Start)
    ]

    assert len(started) == 1


def pinned_twins() -> tuple[ServedModel, ServedModel]:
    """Two 8B models, pinned, whose contexts are left to us."""
    one, other = (replace(served(), model_id=ModelId(name)) for name in ("one", "other"))
    return (
        replace(one, settings=replace(one.settings, pin=True)),
        replace(other, settings=replace(other.settings, pin=True)),
    )


def world_of(*models: ServedModel, card_gib: float, settings: FleetSettings = FLEET) -> View:
    one_card = machine(machines.nvidia(0, card_gib), host_gib=64)
    world = view(*models, machine=one_card, engines=(machines.CUDA,), settings=settings)
    return replace(world, rules=machines.RULES)


def test_pinned_models_are_planned_together_so_that_none_takes_all() -> None:
    starts = actions(world_of(*pinned_twins(), card_gib=12.5))

    plans = [start.plan for start in starts if isinstance(start, Start)]
    assert [plan.model_id for plan in plans] == ["one", "other"]
    assert [plan.n_gpu_layers for plan in plans] == [33, 33]
    assert sum(plan.predicted[1].upper_bytes for plan in plans) <= 12.5 * GIB


def test_a_model_that_comes_alone_has_all_there_is() -> None:
    one, _ = pinned_twins()

    (start,) = actions(world_of(one, card_gib=12.5))

    assert isinstance(start, Start)
    assert start.plan.context == 32768


def test_models_that_do_not_fit_together_are_planned_one_by_one() -> None:
    one, other = pinned_twins()
    tight = world_of(one, replace(other, settings=replace(other.settings, context=131072)),
                     card_gib=12.5)  # fmt: skip
    small = replace(tight, hardware=machine(machines.nvidia(0, 12.5), host_gib=4))

    (start,) = actions(small)

    assert isinstance(start, Start)
    assert start.plan.model_id == "one"
    assert start.plan.context == 32768


def test_more_pinned_models_than_may_be_loaded_are_not_planned_together() -> None:
    (start,) = actions(
        world_of(*pinned_twins(), card_gib=12.5, settings=replace(FLEET, max_loaded=1))
    )

    assert isinstance(start, Start)
    assert start.plan.context == 32768
