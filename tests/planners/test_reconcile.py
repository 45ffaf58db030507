"""Each test is a world, a pass over it, and the actions that pass asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.backends import Engine
from planners.instances.actions import Refuse, Start, Stop
from planners.launch_key import launch_key
from planners.sizes import GIB
from planners.view import InstanceState
from tests.fakes.views import (
    ENGINE,
    NOW_S,
    RULES,
    A,
    B,
    actions,
    hardware,
    model,
    seen,
    view,
)


def test_an_idle_machine_with_no_callers_needs_nothing() -> None:
    assert actions(view(A, B)) == ()


def test_a_caller_in_line_starts_the_model() -> None:
    (start,) = actions(view(A, B, waiting=(A,)))

    assert isinstance(start, Start)
    assert start.plan.model_id == "a"
    assert start.launch_key == launch_key(A, RULES)


@pytest.mark.parametrize("engines", [None, (), (ENGINE,)], ids=["untried", "none", "one"])
def test_callers_of_what_is_no_longer_on_offer_are_told(engines: tuple[Engine, ...] | None) -> None:
    (refusal,) = actions(view(B, waiting=(A,), engines=engines))

    assert isinstance(refusal, Refuse)
    assert refusal.model_id == A.model_id


def test_callers_of_what_is_no_longer_a_model_are_told_what_is_wrong_with_its_file() -> None:
    world = replace(view(B, waiting=(A,)), broken={A.model_id: "not a GGUF file"})

    (refusal,) = actions(world)

    assert isinstance(refusal, Refuse)
    assert "cannot be used: not a GGUF file" in refusal.reason
    assert refusal.retry_after_s is None


def test_callers_of_a_model_that_goes_while_it_loads_are_told() -> None:
    loading = seen(A, state=InstanceState.LOADING)

    stop, refusal = actions(view(B, instances=(loading,), waiting=(A,)))

    assert isinstance(stop, Stop)
    assert isinstance(refusal, Refuse)


def test_nothing_starts_while_engines_are_still_being_tried() -> None:
    assert actions(view(A, waiting=(A,), engines=None)) == ()


states = st.sampled_from(list(InstanceState))
times = st.floats(0.0, 2 * NOW_S)


@given(
    st.lists(st.tuples(states, times, st.booleans(), times), max_size=4),
    st.sets(st.integers(0, 5)),
    st.integers(0, 20),
)
def test_no_pass_stops_what_works_for_another_or_starts_a_model_twice(
    histories: list[tuple[InstanceState, float, bool, float]],
    waiting: set[int],
    available_gib: int,
) -> None:
    models = [model(f"m{n}", weights_bytes=(n + 1) * GIB, pin=n == 3) for n in range(6)]
    instances = tuple(
        replace(
            seen(models[n], state),
            running=int(is_busy),
            idle_since_s=None if is_busy or state is not InstanceState.READY else since_s,
            retry_at_s=retry_at_s,
        )
        for n, (state, since_s, is_busy, retry_at_s) in enumerate(histories)
    )
    world = view(
        *models,
        instances=instances,
        waiting=tuple(models[n] for n in waiting),
        machine=hardware(available_bytes=available_gib * GIB),
    )

    done = actions(world)

    by_id = {i.instance_id: i for i in world.instances}
    for stop in (action for action in done if isinstance(action, Stop)):
        stopped = by_id[stop.instance_id]
        assert stopped.model_id != "m3"
        assert stopped.state in (InstanceState.READY, InstanceState.BACKOFF)
        assert not stopped.running or stopped.state is InstanceState.BACKOFF
    started = [action.plan.model_id for action in done if isinstance(action, Start)]
    assert len(set(started)) == len(started)
    assert not set(started) & {i.model_id for i in world.instances}
