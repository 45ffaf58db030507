"""Each test is an action, what happened while it was thought out, and whether it is still done."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from planners.instances.actions import Action, Allow, Move, Refuse, Restart, Start, Stop, Yield
from planners.instances.present import still_true
from planners.plan import InstanceId
from planners.reconcile import reconcile
from planners.view import Demand, InstanceState, Observed, View
from tests.fakes.machines import PLAIN, engine, machine, nvidia
from tests.fakes.views import NOW_S, A, B, busy, hardware, model, seen, view

DOWN = seen(A, InstanceState.BACKOFF, retry_at_s=NOW_S - 1)
IDLE = seen(A)
HUGE = model("huge", weights_bytes=1 << 40)

START = view(A, waiting=(A,))
RESTART = view(A, instances=(DOWN,))
EXPIRED = view(A, instances=(replace(IDLE, keep_alive_s=1.0),))
OFFERED_NO_MORE = view(instances=(IDLE,))
TIGHT = hardware(available_bytes=1 << 30)
EVICTION = view(A, B, instances=(IDLE,), waiting=(B,), machine=TIGHT)
UNMET_PIN = view(replace(HUGE, settings=replace(HUGE.settings, pin=True)))
REFUSAL = view(A, HUGE, instances=(IDLE,), waiting=(HUGE,))


def kept(decided_on: View, now: View) -> tuple[Action, ...]:
    """What is left of the decision, which was one action of the world as it was."""
    decided = reconcile(decided_on, now_s=NOW_S)
    assert len(decided) == 1
    return still_true(decided, decided_on=decided_on, view=now, now_s=NOW_S)


@pytest.mark.parametrize(
    ("world", "kind"),
    [
        pytest.param(START, Start, id="start"),
        pytest.param(RESTART, Restart, id="restart"),
        pytest.param(EXPIRED, Stop, id="expired"),
        pytest.param(OFFERED_NO_MORE, Stop, id="offered no more"),
        pytest.param(EVICTION, Stop, id="eviction"),
        pytest.param(REFUSAL, Refuse, id="refusal"),
        pytest.param(UNMET_PIN, Refuse, id="pin without room"),
    ],
)
def test_in_an_unchanged_world_every_action_is_carried_out(world: View, kind: type[Action]) -> None:
    (action,) = kept(world, world)

    assert isinstance(action, kind)


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(START, id="start"),
        pytest.param(RESTART, id="restart"),
        pytest.param(EXPIRED, id="expired"),
        pytest.param(EVICTION, id="eviction"),
        pytest.param(REFUSAL, id="refusal"),
    ],
)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda v: replace(v, engines=(engine("cuda"),)), id="engines"),
        pytest.param(lambda v: replace(v, rules=replace(v.rules, parallel=2)), id="rules"),
        pytest.param(lambda v: replace(v, settings=replace(v.settings, max_loaded=1)), id="limits"),
    ],
)
def test_what_was_decided_under_other_settings_is_void(
    world: View, change: Callable[[View], View]
) -> None:
    assert not kept(world, change(world))


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(view(A), id="its caller left"),
        pytest.param(view(waiting=(A,)), id="it is no longer offered"),
        pytest.param(view(replace(A, file_key="2"), waiting=(A,)), id="its file changed"),
        pytest.param(
            view(replace(A, settings=replace(PLAIN, context=512)), waiting=(A,)),
            id="its settings changed",
        ),
        pytest.param(view(A, instances=(busy(A),), waiting=(A,)), id="it runs already"),
    ],
)
def test_a_start_is_void_once(now: View) -> None:
    assert not kept(START, now)


def test_a_start_on_a_device_that_is_gone_is_void() -> None:
    there = view(A, waiting=(A,), machine=machine(nvidia(0, 24)), engines=(engine("cuda"),))

    assert not kept(there, replace(there, hardware=hardware()))


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(view(A), id="it is gone"),
        pytest.param(view(A, instances=(seen(A, InstanceState.STOPPING),)), id="it is stopped"),
        pytest.param(view(instances=(DOWN,)), id="its model is no longer offered"),
        pytest.param(view(replace(A, file_key="2"), instances=(DOWN,)), id="its file changed"),
    ],
)
def test_a_restart_is_void_once(now: View) -> None:
    assert not kept(RESTART, now)


def test_a_failed_instance_for_which_nobody_waits_any_more_is_not_tried_again() -> None:
    failed = seen(A, InstanceState.FAILED, retry_at_s=NOW_S - 1)
    world = view(A, instances=(failed,), waiting=(A,))

    assert kept(world, world)
    assert not kept(world, view(A, instances=(failed,)))


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(view(A, instances=(busy(A),)), id="it is busy"),
        pytest.param(view(A, instances=(IDLE,), waiting=(A,)), id="somebody waits for it"),
        pytest.param(view(A, instances=(IDLE,)), id="its keep_alive was lengthened"),
        pytest.param(view(A), id="it is gone"),
    ],
)
def test_an_unloading_is_void_once(now: View) -> None:
    assert not kept(EXPIRED, now)


def test_a_model_that_is_no_longer_offered_is_stopped_though_it_became_busy() -> None:
    assert kept(OFFERED_NO_MORE, view(instances=(busy(A),)))


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(
            view(A, B, instances=(busy(A),), waiting=(B,), machine=TIGHT), id="it is busy"
        ),
        pytest.param(
            view(A, B, instances=(IDLE,), waiting=(A, B), machine=TIGHT), id="somebody waits for it"
        ),
        pytest.param(
            view(
                replace(A, settings=replace(PLAIN, pin=True)),
                B,
                instances=(IDLE,),
                waiting=(B,),
                machine=TIGHT,
            ),
            id="it is pinned",
        ),
        pytest.param(view(A, B, instances=(IDLE,), machine=TIGHT), id="nobody wants the room"),
        pytest.param(view(A, B, waiting=(B,), machine=TIGHT), id="it is gone"),
    ],
)
def test_an_eviction_is_void_once(now: View) -> None:
    assert not kept(EVICTION, now)


def test_of_evictions_for_one_model_all_are_void_once_one_is() -> None:
    stops = tuple(Stop(InstanceId(f"i-{name}"), "to make room", B.model_id) for name in "ac")
    c = model("c")
    before = view(A, B, c, instances=(IDLE, seen(c)), waiting=(B,))
    now = view(A, B, c, instances=(IDLE, busy(c)), waiting=(B,))

    assert still_true(stops, decided_on=before, view=before, now_s=NOW_S) == stops
    assert not still_true(stops, decided_on=before, view=now, now_s=NOW_S)


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(view(A, HUGE, instances=(IDLE,)), id="nobody waits any more"),
        pytest.param(view(A, HUGE, waiting=(HUGE,)), id="memory came free"),
        pytest.param(
            view(A, HUGE, instances=(seen(A, InstanceState.STOPPING),), waiting=(HUGE,)),
            id="memory is about to come free",
        ),
        pytest.param(
            view(A, replace(HUGE, file_key="2"), instances=(IDLE,), waiting=(HUGE,)),
            id="its file changed",
        ),
    ],
)
def test_a_refusal_is_void_once(now: View) -> None:
    assert not kept(REFUSAL, now)


def wanting(*instances: Observed, context: int) -> View:
    told = view(A, B, instances=instances, waiting=(A, B))
    return replace(
        told,
        demand={
            A.model_id: Demand(waiting=1, oldest_wait_s=1.0, context=context),
            B.model_id: Demand(waiting=1, oldest_wait_s=1.0),
        },
    )


FOR_CONTEXT = (
    Stop(InstanceId("i-a"), "context 4096 is asked for", finishes=True),
    Yield(InstanceId("i-a"), "context 4096 is asked for"),
    Allow(InstanceId("i-a"), 4096, "no room"),
    Move(InstanceId("i-a"), busy(A).plan, busy(A).launch_key, "context 4096 is asked for"),
)


@pytest.mark.parametrize("action", FOR_CONTEXT, ids=["stop", "yield", "allow", "move"])
def test_what_is_done_for_a_context_holds_while_somebody_waits_for_one(
    action: Stop | Yield | Allow | Move,
) -> None:
    before = wanting(busy(A), context=4096)

    for now, left in ((before, (action,)), (wanting(busy(A), context=0), ())):
        assert still_true((action,), decided_on=before, view=now, now_s=NOW_S) == left


def test_a_turn_ends_only_for_a_model_that_is_still_waited_for() -> None:
    action = Yield(InstanceId("i-a"), "its turn is over", B.model_id)
    before = view(A, B, instances=(busy(A),), waiting=(A, B))

    for now, left in ((before, (action,)), (view(A, B, instances=(busy(A),)), ())):
        assert still_true((action,), decided_on=before, view=now, now_s=NOW_S) == left
