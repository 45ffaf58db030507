"""Models that do not fit beside each other, both with callers: whose turn it is."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from planners.instances.actions import Action, Start, Stop, Yield
from planners.instances.groups import Group
from planners.model import ModelId, ServedModel
from planners.plan import InstanceId
from planners.reconcile import reconcile
from planners.settings import FleetSettings
from planners.sizes import GIB
from planners.view import Demand, InstanceState, Observed, View
from tests.fakes.machines import FLEET
from tests.fakes.views import NOW_S, busy, model, seen, view

TURN_S = FLEET.turn_s
A, B = model("a", weights_bytes=10 * GIB), model("b", weights_bytes=10 * GIB)
SMALL = model("small", weights_bytes=GIB)


def waits(oldest_wait_s: float) -> Demand:
    return Demand(waiting=1, oldest_wait_s=oldest_wait_s)


def at_work(served: ServedModel, *, ready_for_s: float = 2 * TURN_S, waiting: int = 1) -> Observed:
    return replace(busy(served), ready_since_s=NOW_S - ready_for_s, waiting=waiting)


def world(
    *instances: Observed,
    demand: Mapping[ServedModel, float],
    settings: FleetSettings = FLEET,
    yielded_s: Mapping[ModelId, float] | None = None,
) -> View:
    models = (A, B, SMALL)
    told = view(*models, instances=instances, settings=settings)
    waiting = {m.model_id: waits(wait_s) for m, wait_s in demand.items()}
    return replace(told, demand=waiting, yielded_s=yielded_s or {})


def actions(told: View) -> tuple[Action, ...]:
    return reconcile(told, now_s=NOW_S)


@pytest.mark.parametrize(
    ("ready_for_s", "waited_s"),
    [(2 * TURN_S, TURN_S - 1), (TURN_S - 1, 2 * TURN_S)],
    ids=["the other has not waited for a turn", "its own turn is not over"],
)
def test_a_model_in_use_goes_on_while(ready_for_s: float, waited_s: float) -> None:
    told = world(at_work(A, ready_for_s=ready_for_s), demand={A: 1.0, B: waited_s})

    assert actions(told) == ()


def test_a_model_in_use_makes_way_once_another_has_waited_for_a_turn() -> None:
    (action,) = actions(world(at_work(A), demand={A: 30.0, B: TURN_S}))

    assert isinstance(action, Yield)
    assert action.instance_id == "i-a"
    assert "b was waited for 15s" in action.reason


def test_a_turn_lasts_as_long_as_the_load_before_it_took() -> None:
    slow = replace(at_work(A, ready_for_s=2 * TURN_S), load_s=3 * TURN_S)

    assert actions(world(slow, demand={A: 1.0, B: 2 * TURN_S})) == ()


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(replace(at_work(A), state=InstanceState.LOADING), id="loads"),
        pytest.param(at_work(replace(A, settings=replace(A.settings, pin=True))), id="is pinned"),
    ],
)
def test_nobodys_turn_ends_that(kept: Observed) -> None:
    pinned = replace(A, settings=replace(A.settings, pin=kept.state is InstanceState.READY))
    told = world(kept, demand={B: 9 * TURN_S})

    decided = actions(replace(told, models={**told.models, A.model_id: pinned}))

    assert not [action for action in decided if isinstance(action, Stop | Yield)]


def test_a_model_whose_turn_ended_comes_after_one_that_waits_for_less_time() -> None:
    told = world(demand={A: 90.0, B: TURN_S}, yielded_s={A.model_id: NOW_S - 1})

    (start,) = [action for action in actions(told) if isinstance(action, Start)]

    assert start.plan.model_id == "b"


def test_memory_that_is_being_freed_for_one_goes_to_nobody_behind_it() -> None:
    leaving = replace(seen(A, InstanceState.DRAINING), running=1)
    told = world(leaving, demand={B: 30.0, SMALL: 1.0})

    assert actions(told) == ()


def test_memory_of_a_model_that_is_offered_no_longer_is_waited_for() -> None:
    leaving = replace(seen(A, InstanceState.DRAINING), running=1)
    told = world(leaving, demand={B: 30.0})

    assert actions(replace(told, models={B.model_id: B})) == ()


def test_a_model_that_fits_beside_the_others_waits_for_nobody() -> None:
    (start,) = actions(world(at_work(A), demand={SMALL: 1.0}))

    assert isinstance(start, Start)


def test_a_model_that_waits_for_a_busy_one_lets_smaller_ones_in_for_a_turn() -> None:
    told = world(at_work(A, ready_for_s=1.0), demand={B: 5.0, SMALL: 1.0})

    (start,) = actions(told)

    assert isinstance(start, Start)
    assert start.plan.model_id == "small"


def test_a_model_between_two_requests_of_one_program_is_not_stopped_in_its_turn() -> None:
    lingers = seen(A, idle_since_s=NOW_S - 0.1, ready_since_s=NOW_S - 1)

    assert actions(world(lingers, demand={B: 2.0})) == ()


def test_a_model_idle_for_longer_makes_way_before_its_turn_is_over() -> None:
    idle = seen(A, idle_since_s=NOW_S - 1, ready_since_s=NOW_S - 2)

    (stop,) = actions(world(idle, demand={B: 2.0}))

    assert isinstance(stop, Stop)


def test_a_load_that_nobody_waited_for_in_the_end_stays_warm_for_a_minute() -> None:
    unused = seen(A, idle_since_s=NOW_S - 59, ready_since_s=NOW_S - 59)
    older = seen(A, idle_since_s=NOW_S - 60, ready_since_s=NOW_S - 60)

    assert actions(world(unused, demand={B: 50.0})) == ()
    assert isinstance(actions(world(older, demand={B: 50.0}))[0], Stop)


def test_a_load_that_nobody_waited_for_stays_no_longer_than_its_keep_alive() -> None:
    unused = seen(A, idle_since_s=NOW_S - 3, ready_since_s=NOW_S - 3, keep_alive_s=2.0)

    assert isinstance(actions(world(unused, demand={}))[0], Stop)


def test_at_the_limit_of_loaded_models_the_one_that_was_ready_longest_makes_way() -> None:
    first = replace(at_work(SMALL), ready_since_s=NOW_S - 90)
    other = model("other")
    told = world(first, at_work(A), demand={B: TURN_S}, settings=replace(FLEET, max_loaded=2))
    told = replace(told, models={**told.models, other.model_id: other})

    (action,) = actions(told)

    assert isinstance(action, Yield)
    assert action.instance_id == "i-small"


def group(*, exclusive: bool, alone: bool) -> FleetSettings:
    return replace(FLEET, groups=(Group("g", ("SMALL", "b"), exclusive=exclusive, alone=alone),))


TINY_B = model("b")


def grouped(*instances: Observed, demand: Mapping[ServedModel, float], rule: FleetSettings) -> View:
    told = world(*instances, demand=demand, settings=rule)
    return replace(told, models={**told.models, TINY_B.model_id: TINY_B, A.model_id: model("a")})


def test_members_of_an_exclusive_group_take_each_others_place() -> None:
    told = grouped(seen(SMALL), demand={TINY_B: 1.0}, rule=group(exclusive=True, alone=False))

    (stop,) = actions(told)

    assert stop == Stop(
        InstanceId("i-small"), "to load b: group 'g' runs one model at a time", TINY_B.model_id
    )


def test_a_member_in_use_keeps_its_place_for_its_turn() -> None:
    rule = group(exclusive=True, alone=False)

    assert actions(grouped(at_work(SMALL), demand={TINY_B: 1.0}, rule=rule)) == ()
    (action,) = actions(grouped(at_work(SMALL), demand={TINY_B: TURN_S}, rule=rule))
    assert isinstance(action, Yield)


def test_a_group_that_comes_with_a_reload_stops_the_member_that_was_used_longer_ago() -> None:
    older, newer = seen(SMALL, last_used_s=NOW_S - 9), seen(TINY_B, last_used_s=NOW_S - 3)
    rule = group(exclusive=True, alone=False)

    assert actions(grouped(older, newer, demand={}, rule=rule)) == (
        Stop(older.instance_id, "b runs, and group 'g' runs one model at a time"),
    )
    assert actions(grouped(at_work(SMALL), at_work(TINY_B), demand={}, rule=rule)) == ()


def test_two_members_asked_for_at_once_do_not_both_start() -> None:
    told = grouped(demand={TINY_B: 2.0, SMALL: 1.0}, rule=group(exclusive=True, alone=False))

    (start,) = actions(told)

    assert isinstance(start, Start)
    assert start.plan.model_id == "b"


def test_a_group_that_runs_alone_has_all_others_stopped() -> None:
    rule = group(exclusive=False, alone=True)
    told = grouped(seen(model("a")), demand={TINY_B: 1.0}, rule=rule)

    (stop,) = actions(told)

    assert stop == Stop(InstanceId("i-a"), "to load b: group 'g' runs alone", TINY_B.model_id)


def test_a_member_is_refused_while_a_pinned_one_holds_its_place() -> None:
    pinned = model("small", pin=True)
    rule = group(exclusive=True, alone=False)
    told = grouped(seen(pinned), demand={TINY_B: 1.0}, rule=rule)

    (refusal,) = actions(replace(told, models={**told.models, pinned.model_id: pinned}))

    assert "small is pinned" in refusal.reason


def test_a_model_that_would_fit_alone_is_not_refused_for_what_starts_before_it() -> None:
    told = world(demand={A: 2.0, B: 1.0})

    (start,) = actions(told)

    assert isinstance(start, Start)
    assert start.plan.model_id == "a"
