"""Whose crash it is, decided on leases as they are granted."""

import pytest
from msgspec.structs import replace

from planners.model import ModelId
from planners.plan import InstanceId
from proxy.crashers import CRASHES, MOST_KEPT, REFUSED_S, Crashers, CrashesEngine
from supervisor.leases.lease import Lease
from tests.fakes.fleet_of_one import launch_plan, served_model

LEASE = Lease(
    instance_id=InstanceId("i1"),
    model_id=ModelId("tiny"),
    slot=0,
    socket_path="/run/i1-1.sock",
    context=4096,
    embedding=False,
    load_s=0.0,
    granted_at_s=0.0,
    plan=launch_plan(served_model(), n_ctx=4096, n_parallel=1),
)
PATH, BODY = b"/v1/completions", b'{"prompt":"poison"}'


def crashed(times: int, *, now_s: float = 0.0) -> Crashers:
    crashers = Crashers()
    for _ in range(times):
        crashers.note(LEASE, PATH, BODY, cause="signal SIGSEGV", now_s=now_s)
    return crashers


def test_a_request_that_crashed_once_may_try_again() -> None:
    crashed(CRASHES - 1).check(LEASE, PATH, BODY, now_s=1.0)


def test_a_request_that_crashed_twice_is_told_why_it_is_refused_and_for_how_long() -> None:
    with pytest.raises(CrashesEngine) as refused:
        crashed(CRASHES).check(LEASE, PATH, BODY, now_s=60.0)

    assert "crashed tiny 2 times" in str(refused.value)
    assert "(signal SIGSEGV); it is refused for 9m" in str(refused.value)


@pytest.mark.parametrize(
    ("lease", "path", "body", "now_s"),
    [
        (LEASE, PATH, b'{"prompt":"bread"}', 1.0),
        (LEASE, b"/completion", BODY, 1.0),
        (replace(LEASE, model_id=ModelId("other")), PATH, BODY, 1.0),
        (replace(LEASE, plan=launch_plan(served_model(), n_ctx=64, n_parallel=1)), PATH, BODY, 1.0),
        (LEASE, PATH, BODY, REFUSED_S),
    ],
    ids=["another body", "another route", "another model", "another launch", "much later"],
)
def test_nothing_else_is_refused(lease: Lease, path: bytes, body: bytes, now_s: float) -> None:
    crashed(CRASHES).check(lease, path, body, now_s=now_s)


def test_crashes_that_lie_far_apart_are_each_the_first() -> None:
    crashers = crashed(1)

    crashers.note(LEASE, PATH, BODY, cause="signal SIGSEGV", now_s=REFUSED_S)

    crashers.check(LEASE, PATH, BODY, now_s=REFUSED_S)


def test_the_oldest_give_way() -> None:
    crashers = crashed(CRASHES)

    for n in range(MOST_KEPT):
        crashers.note(LEASE, PATH, b"%d" % n, cause="signal SIGSEGV", now_s=1.0)

    crashers.check(LEASE, PATH, BODY, now_s=1.0)
