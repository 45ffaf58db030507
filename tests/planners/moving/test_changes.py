"""Each test is a running model that is wanted otherwise, and what becomes of it."""

from collections.abc import Mapping
from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from planners.backends import Engine
from planners.instances.actions import Action, Move, Stop
from planners.instances.present import still_true
from planners.launch_key import launch_key
from planners.moving.changes import rest_s
from planners.plan import InstanceId
from planners.reconcile import awaits_launch, reconcile
from planners.sizes import GIB
from planners.view import Demand, InstanceState, Observed, View
from tests.fakes.views import ENGINE, NOW_S, RULES, A, B, busy, hardware, model, planned, seen, view

WIDER = replace(A, settings=replace(A.settings, context=4096))
KEY = launch_key(WIDER, RULES)
NEWER = replace(ENGINE, engine_id="newer")


def actions(world: View) -> tuple[Action, ...]:
    return reconcile(world, now_s=NOW_S)


def only(world: View) -> Action:
    (action,) = actions(world)
    return action


def test_a_model_in_use_moves_to_the_launch_that_is_wanted_now() -> None:
    world = view(WIDER, instances=(busy(A),))

    move = only(world)

    assert move == Move(InstanceId("i-a"), planned(WIDER), KEY, "its file or its settings changed")
    assert awaits_launch(world, now_s=NOW_S)


@pytest.mark.parametrize(
    "seen_as",
    [
        pytest.param(replace(seen(A), waiting=1), id="somebody waits for it"),
        pytest.param(busy(A), id="it answers"),
    ],
)
def test_whoever_needs_it_has_it_move(seen_as: Observed) -> None:
    waiting = (WIDER,) if seen_as.waiting else ()

    assert isinstance(only(view(WIDER, instances=(seen_as,), waiting=waiting)), Move)


def test_a_pinned_model_moves_though_nobody_uses_it() -> None:
    pinned = model("a", pin=True)
    wider = replace(pinned, settings=replace(pinned.settings, context=4096))

    assert isinstance(only(view(wider, instances=(seen(pinned, expires_at=inf),))), Move)


def test_settings_that_come_to_the_same_launch_move_it_to_none() -> None:
    same = replace(A, settings=replace(A.settings, context=2048))

    move = only(view(same, instances=(busy(A),)))

    assert isinstance(move, Move)
    assert move.plan.digest == busy(A).plan.digest


def test_one_that_moved_just_now_serves_on_for_as_long_as_that_took() -> None:
    world = replace(view(WIDER, instances=(busy(A),)), resting=frozenset((A.model_id,)))

    assert actions(world) == ()
    assert (rest_s(0.1), rest_s(4.0)) == (1.0, 4.0)


def test_what_finds_no_room_beside_others_is_drained() -> None:
    full = hardware(available_bytes=GIB // 2)

    stop = only(view(WIDER, instances=(busy(A),), machine=full))

    assert isinstance(stop, Stop)
    assert "finds no room" in stop.reason


def test_its_own_memory_counts_as_room_for_it() -> None:
    tight = hardware(available_bytes=2 * GIB)  # its weights lie in the page cache, and count twice

    assert isinstance(only(view(WIDER, instances=(busy(A),), machine=tight)), Move)


def test_a_launch_that_did_not_come_to_serve_is_not_tried_again_until_something_changes() -> None:
    world = replace(view(WIDER, instances=(busy(A),)), unmoved={A.model_id: KEY})
    idle = replace(view(WIDER, instances=(seen(A),)), unmoved={A.model_id: KEY})

    assert actions(world) == ()
    assert actions(idle) == ()
    assert isinstance(only(replace(world, unmoved={A.model_id: "another"})), Move)


def test_one_that_may_not_stay_where_it_is_is_drained_once_its_move_came_to_nothing() -> None:
    remote = replace(planned(A), rpc_servers=("10.0.0.2:50052",))
    world = view(A, instances=(replace(busy(A), plan=remote),))

    stop = only(replace(world, unmoved={A.model_id: launch_key(A, RULES)}))

    assert isinstance(stop, Stop)
    assert "did not come to serve" in stop.reason


@pytest.mark.parametrize(
    ("engines", "is_moved"),
    [
        pytest.param((NEWER,), True, id="another build of its kind"),
        pytest.param((replace(NEWER, backend="cuda"),), False, id="none of its kind"),
        pytest.param((ENGINE, NEWER), False, id="its own too"),
    ],
)
def test_a_model_in_use_moves_to_the_llama_server_that_took_the_place_of_its_own(
    engines: tuple[Engine, ...], is_moved: bool
) -> None:
    found = actions(view(A, instances=(busy(A),), engines=engines))

    assert [type(action) for action in found] == [Move] * is_moved


@pytest.mark.parametrize(("waited_s", "is_stopped"), [(1.0, True), (60.0, False)])
def test_a_storm_of_changes_puts_off_nobody_who_has_waited_for_a_turn(
    waited_s: float, is_stopped: bool
) -> None:
    loading = seen(A, InstanceState.LOADING, waiting=1)
    world = view(WIDER, instances=(loading,))
    world = replace(world, demand={A.model_id: Demand(1, waited_s)})

    assert [type(action) for action in actions(world)] == [Stop] * is_stopped


def test_it_is_left_alone_while_it_moves_whatever_its_callers_ask_for() -> None:
    asking = {A.model_id: Demand(1, 1.0, context=8192)}
    world = replace(view(WIDER, instances=(busy(A),)), demand=asking)

    assert actions(replace(world, moving=frozenset((A.model_id,)))) == ()


def test_a_model_that_waits_is_planned_beside_one_that_is_told_to_move() -> None:
    found = actions(view(WIDER, B, instances=(busy(A),), waiting=(B,)))

    assert [type(action).__name__ for action in found] == ["Move", "Start"]


@pytest.mark.parametrize(
    ("now", "is_kept"),
    [
        pytest.param({}, True, id="all as it was"),
        pytest.param({"moving": frozenset((A.model_id,))}, False, id="it moves already"),
        pytest.param({"models": {A.model_id: A}}, False, id="it is wanted as it was"),
        pytest.param({"instances": ()}, False, id="it is gone"),
    ],
)
def test_a_move_that_was_thought_out_is_made_only_where_it_is_still_wanted(
    now: Mapping[str, Any], is_kept: bool
) -> None:
    before = view(WIDER, instances=(busy(A),))
    found = actions(before)

    kept = still_true(found, decided_on=before, view=replace(before, **now), now_s=NOW_S)

    assert kept == (found if is_kept else ())


def test_the_caches_types_stay_where_the_operator_names_none() -> None:
    world = view(WIDER, instances=(replace(busy(A), plan=replace(planned(A), type_k="q8_0")),))

    move = only(replace(world, rules=replace(RULES, type_k=None, type_v=None)))

    assert isinstance(move, Move)
    assert move.plan.type_k == "q8_0"
