import pytest
from msgspec.structs import replace

from planners.lessons.samples import LaunchKey, LaunchSample
from planners.model import ModelId
from planners.rollout import (
    MOST_FAILURES,
    PROOF_ANSWERS,
    Newcomer,
    Proven,
    RolledBack,
    canary,
    judged,
)
from planners.view import InstanceState, Observed
from tests.fakes.machines import engine
from tests.fakes.views import A, B, seen

SINCE = 1_800_000_000.0
NEW = replace(engine("cpu"), engine_id="new")
NEWCOMER = Newcomer(NEW, "old", SINCE)
A_ID = ModelId("a")


def launch(engine_id: str, outcome: str, *, at: float) -> LaunchSample:
    key = LaunchKey(engine_id, "digest", "", "flags")
    return LaunchSample(f"{engine_id}-{at}", at, A_ID, key, 2048, outcome, (), cause="it crashed")


def on(engine_id: str, one: Observed) -> Observed:
    return replace(one, plan=replace(one.plan, engine_id=engine_id))


def test_an_engine_that_answered_enough_is_proven() -> None:
    assert judged(NEWCOMER, (), answers=PROOF_ANSWERS - 1) is None
    assert isinstance(judged(NEWCOMER, (), answers=PROOF_ANSWERS), Proven)


def test_an_engine_whose_launches_fail_again_and_again_is_rolled_back() -> None:
    failures = [launch("new", "died", at=SINCE + i) for i in range(MOST_FAILURES)]

    assert judged(NEWCOMER, failures[:-1], answers=0) is None
    told = judged(NEWCOMER, failures, answers=PROOF_ANSWERS)
    assert isinstance(told, RolledBack)
    assert "2 launches of a failed" in told.reason
    assert "it crashed" in told.reason


@pytest.mark.parametrize(
    "launches",
    [
        [launch("old", "died", at=1.0), *[launch("new", "died", at=SINCE + i) for i in range(3)]],
        [launch("new", "died", at=SINCE - 1 - i) for i in range(3)],
        [launch("new", "stopped", at=SINCE + i) for i in range(3)],
        [launch("other", "died", at=SINCE + i) for i in range(3)],
    ],
    ids=["dies-on-the-old-one-too", "before-it-was-chosen", "wanted-ends", "another-engine"],
)
def test_what_does_not_speak_against_the_engine_does_not_count(
    launches: list[LaunchSample],
) -> None:
    assert judged(NEWCOMER, launches, answers=0) is None


def test_the_least_busy_ready_model_of_the_old_engine_tries_the_new_one() -> None:
    idle, working = on("old", seen(B)), on("old", seen(A, running=2))

    assert canary(NEWCOMER, [working, idle], moving=()) == idle


@pytest.mark.parametrize(
    ("running", "moving"),
    [
        ([on("old", seen(A)), on("new", seen(B))], ()),
        ([on("old", seen(A))], (A_ID,)),
        ([on("old", seen(A, InstanceState.LOADING))], ()),
        ([on("other", seen(A))], ()),
        ([], ()),
    ],
    ids=["one-tries-it", "one-moves", "none-is-ready", "none-on-the-old-one", "none"],
)
def test_nobody_tries_it_while(running: list[Observed], moving: tuple[ModelId, ...]) -> None:
    assert canary(NEWCOMER, running, moving=moving) is None
