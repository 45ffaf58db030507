"""Callers who want more context than is loaded."""

from msgspec.structs import replace

from planners.hardware import HOST
from planners.instances.actions import Action, Allow, Move, Start, Stop, Yield
from planners.model import ServedModel
from planners.plan import LaunchPlan
from planners.reconcile import reconcile
from planners.settings import ContextPolicy
from planners.sizes import GIB
from planners.view import Demand, Observed, View
from tests.fakes import machines
from tests.fakes.machines import FLEET
from tests.fakes.views import NOW_S, busy, hardware, model, seen, view

A, B = model("a"), model("b", weights_bytes=10 * GIB)
LOADED = 2048
CLIENT = replace(FLEET, context_policy=ContextPolicy.CLIENT)


def wanting(
    context: int,
    *instances: Observed,
    models: tuple[ServedModel, ...] = (A, B),
    available_gib: int = 16,
) -> View:
    told = view(*models, instances=instances, waiting=(A,))
    demand = {A.model_id: Demand(waiting=1, oldest_wait_s=1.0, context=context)}
    return replace(told, demand=demand, hardware=hardware(available_bytes=available_gib * GIB))


def actions(told: View) -> tuple[Action, ...]:
    return reconcile(told, now_s=NOW_S)


def started(told: View) -> LaunchPlan:
    (start,) = actions(told)
    assert isinstance(start, Start)
    return start.plan


ASKED = "context 8192 is asked for, 2048 is loaded"


def test_a_larger_context_moves_what_is_in_use() -> None:
    loaded = busy(A)

    (move,) = actions(wanting(8192, loaded))

    assert isinstance(move, Move)
    assert (move.instance_id, move.launch_key) == (loaded.instance_id, loaded.launch_key)
    assert (move.plan.context, move.reason) == (8192, ASKED)


def test_a_larger_context_ends_what_nobody_uses() -> None:
    loaded = seen(A)

    assert actions(wanting(8192, loaded)) == (Stop(loaded.instance_id, ASKED, finishes=True),)


def test_where_the_larger_launch_did_not_come_to_serve_replies_are_finished_first() -> None:
    loaded = busy(A)
    told = replace(wanting(8192, loaded), unmoved={A.model_id: loaded.launch_key})

    assert actions(told) == (Stop(loaded.instance_id, ASKED, finishes=True),)


def test_what_moved_just_now_serves_awhile_before_a_still_larger_context() -> None:
    assert actions(replace(wanting(8192, busy(A)), resting=frozenset((A.model_id,)))) == ()


def test_the_next_launch_has_what_was_asked_for() -> None:
    assert started(wanting(8192)).context == 8192


def test_a_context_once_asked_for_is_what_later_launches_have() -> None:
    assert started(replace(wanting(0), contexts={A.model_id: 8192})).context == 8192


def test_a_smaller_context_than_configured_starts_no_smaller_child() -> None:
    assert started(replace(wanting(1024), contexts={A.model_id: 1024})).context == LOADED


def test_an_automatic_context_is_at_least_what_was_asked_for() -> None:
    told = replace(wanting(40_000), rules=replace(machines.RULES, parallel=1))

    assert started(told).context == 40_192  # a multiple of 256


def test_a_context_that_finds_no_room_leaves_the_instance_alone_and_says_why() -> None:
    (allow,) = actions(wanting(100_000, seen(A), available_gib=2))

    assert isinstance(allow, Allow)
    assert allow.context == 100_000
    assert "100000 is asked for, 2048 is loaded, more finds no room" in allow.reason


def test_a_launch_that_cannot_have_the_context_has_less() -> None:
    (start,) = actions(wanting(100_000, available_gib=2))

    assert isinstance(start, Start)
    assert (start.plan.context, start.context) == (LOADED, 100_000)
    assert "the context of 100000 that finds no room" in start.reason


def test_an_idle_model_makes_room_for_a_larger_context() -> None:
    idle = seen(B)
    held = idle.plan.bytes_on(HOST)
    told = wanting(100_000, idle)
    need = started(wanting(100_000)).predicted[0].upper_bytes
    short = replace(told, hardware=hardware(available_bytes=need + held // 2))

    (stop,) = actions(short)

    assert isinstance(stop, Stop)
    assert stop.instance_id == idle.instance_id


def test_under_client_the_launch_has_the_size_that_was_asked_for() -> None:
    told = replace(wanting(4096), settings=CLIENT, rules=replace(machines.RULES, parallel=1))

    assert started(told).context == 4096


def test_under_client_another_size_waits_for_the_turn_of_the_loaded_one() -> None:
    fresh = replace(busy(A), ready_since_s=NOW_S - 1)
    spent = replace(busy(A), ready_since_s=NOW_S - FLEET.turn_s)

    assert actions(replace(wanting(4096, fresh), settings=CLIENT)) == ()
    assert isinstance(actions(replace(wanting(4096, spent), settings=CLIENT))[0], Yield)
