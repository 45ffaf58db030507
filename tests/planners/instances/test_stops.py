"""What ends of its own accord, and what stays: by a pass over a whole world."""

from math import inf

import pytest
from msgspec.structs import replace

from planners.instances.actions import Move, Stop
from planners.launch_key import launch_key
from planners.model import ModelSettings, ServedModel
from planners.plan import InstanceId
from planners.view import InstanceState, Observed
from tests.fakes.views import (
    NOW_S,
    RULES,
    A,
    B,
    actions,
    busy,
    model,
    planned,
    seen,
    view,
)


def test_an_instance_stops_once_its_keep_alive_is_over() -> None:
    idle = seen(A, idle_since_s=NOW_S - 300)

    assert actions(view(A, instances=(idle,))) == (
        Stop(idle.instance_id, "unused for 5m, its keep_alive is 5m", is_unused=True),
    )


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(seen(A, idle_since_s=NOW_S - 299), id="keep_alive not over"),
        pytest.param(seen(A, idle_since_s=NOW_S - 9999, keep_alive_s=inf), id="kept forever"),
        pytest.param(busy(A), id="a request runs"),
        pytest.param(seen(A, InstanceState.LOADING), id="loading, though its callers left"),
    ],
)
def test_an_instance_stays_while(kept: Observed) -> None:
    assert actions(view(A, instances=(kept,))) == ()


def test_a_pinned_instance_outlives_its_keep_alive() -> None:
    pinned = model("a", pin=True)
    idle = replace(seen(pinned), idle_since_s=0.0)

    assert actions(view(pinned, instances=(idle,))) == ()


def test_a_caller_in_line_keeps_an_expired_instance() -> None:
    idle = seen(A, idle_since_s=0.0)

    assert actions(view(A, instances=(idle,), waiting=(A,))) == ()


def test_keep_alive_zero_unloads_as_soon_as_the_request_is_over() -> None:
    idle = seen(A, idle_since_s=NOW_S, keep_alive_s=0.0)

    (stop,) = actions(view(A, instances=(idle,)))

    assert isinstance(stop, Stop)


def test_a_model_on_the_processor_is_stopped_once_that_is_denied() -> None:
    world = view(A, instances=(busy(A),))

    (stop,) = actions(replace(world, rules=replace(RULES, allows_cpu_fallback=False)))

    assert isinstance(stop, Stop)
    assert "models.cpu_fallback is deny" in stop.reason


def test_a_model_on_a_server_no_longer_configured_goes_on_elsewhere() -> None:
    remote = replace(planned(A), rpc_servers=("10.0.0.2:50052",))
    world = view(A, instances=(replace(busy(A), plan=remote),))
    configured = replace(RULES, rpc_servers=("10.0.0.2:50052",))
    why = "10.0.0.2:50052 is no longer one of rpc.servers"

    (move,) = actions(world)
    (stop,) = actions(view(A, instances=(replace(seen(A), plan=remote),)))

    assert move == Move(InstanceId("i-a"), planned(A), launch_key(A, RULES), why)
    assert stop == Stop(InstanceId("i-a"), why)
    assert actions(replace(world, rules=configured)) == ()


def test_a_model_no_longer_offered_is_stopped() -> None:
    (stop,) = actions(view(B, instances=(busy(A),)))

    assert stop == Stop(InstanceId("i-a"), "the model is no longer offered")


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(replace(A, file_key="2"), id="the file"),
        pytest.param(replace(A, settings=replace(A.settings, context=512)), id="the context"),
        pytest.param(replace(A, settings=replace(A.settings, flags=("--x",))), id="the flags"),
    ],
)
def test_a_changed_model_that_nobody_uses_is_stopped(changed: ServedModel) -> None:
    assert actions(view(changed, instances=(seen(A),))) == (
        Stop(InstanceId("i-a"), "its file or its settings changed"),
    )


def test_a_model_whose_file_changed_is_drained_whoever_uses_it() -> None:
    assert actions(view(replace(A, file_key="2"), instances=(busy(A),))) == (
        Stop(InstanceId("i-a"), "its file or its settings changed"),
    )


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(replace(A.settings, pin=True), id="pin"),
        pytest.param(replace(A.settings, keep_alive_s=1.0), id="keep_alive"),
    ],
)
def test_settings_that_need_no_launch_leave_the_child_alone(changed: ModelSettings) -> None:
    assert actions(view(replace(A, settings=changed), instances=(seen(A),))) == ()


def test_an_instance_in_backoff_that_nobody_would_still_keep_is_let_go() -> None:
    fallen = seen(A, InstanceState.BACKOFF, retry_at_s=NOW_S, last_used_s=NOW_S - 301, running=0)

    (stop,) = actions(view(A, instances=(fallen,)))

    assert isinstance(stop, Stop)
