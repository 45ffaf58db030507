import pytest
from msgspec.structs import replace

from planners.instances.progress import (
    Alive,
    Course,
    HangLimits,
    Hung,
    Signs,
    Slow,
    Verdict,
    begun,
    continued,
    hang_limits,
    resumed,
    verdict,
)
from planners.plan import LaunchPlan
from tests.fakes.fleet_of_one import launch_plan, served_model

LIMITS = HangLimits(
    hang_s=60.0, spin_s=600.0, left_s=60.0, frozen_s=10.0, sample_s=2.5, answer_s=2.0
)
STUCK = ((7, 512, 3), (-1, 0, 0))
FIRST = Signs(
    at_s=100.0,
    heard_bytes=1000,
    cpu_s=50.0,
    disk_reads=10,
    is_runnable=False,
    is_answering=True,
    steps=STUCK,
    busy_slots=1,
    departures=0,
)


def seen_for(
    seconds: float,
    *,
    cores: float = 0.0,
    is_answering: bool = True,
    bytes_per_s: float = 0.0,
    reads_per_s: float = 0.0,
    is_runnable: bool = False,
    tokens_per_s: float = 0.0,
    has_slots: bool = True,
    busy_slots: int = 1,
    departures: int = 0,
    course: Course | None = None,
) -> Course:
    """The course of a child that goes on like this, sampled as it would be."""
    course = course or begun(FIRST)
    first = course.last
    for n in range(1, int(seconds / LIMITS.sample_s) + 1):
        passed_s = n * LIMITS.sample_s
        decoded = 3 + int(passed_s * tokens_per_s)
        signs = Signs(
            at_s=first.at_s + passed_s,
            heard_bytes=first.heard_bytes + int(passed_s * bytes_per_s),
            cpu_s=first.cpu_s + passed_s * cores,
            disk_reads=first.disk_reads + int(passed_s * reads_per_s),
            is_runnable=is_runnable,
            is_answering=is_answering,
            steps=((7, 512, decoded), (-1, 0, 0)) if has_slots else None,
            busy_slots=busy_slots if has_slots else None,
            departures=departures,
        )
        course = continued(course, signs, limits=LIMITS)
    return course


def judged(seconds: float, **signs: float | bool) -> Verdict:
    return verdict(seen_for(seconds, **signs), limits=LIMITS)  # type: ignore[arg-type]  # its names


@pytest.mark.parametrize(
    "signs",
    [{"bytes_per_s": 1.0}, {"tokens_per_s": 0.4}, {"busy_slots": 0}],
    ids=["a reply comes in", "slots move on", "callers have not asked, or are slow to read"],
)
def test_a_child_that_gets_on_is_alive_however_long_it_takes(signs: dict[str, float]) -> None:
    assert judged(7200.0, **signs) == Alive()


@pytest.mark.parametrize(
    "signs",
    [
        {"cores": 2.0, "has_slots": False},
        {"reads_per_s": 100.0},
        {"cores": 0.06},
        {"is_runnable": True, "is_answering": False, "has_slots": False},
    ],
    ids=["a long batch", "weights from a slow disk", "a small share", "starved by others"],
)
def test_a_child_at_work_is_slow_and_not_hung(signs: dict[str, float]) -> None:
    assert judged(500.0, **signs) == Slow(500.0)


@pytest.mark.parametrize("has_slots", [True, False], ids=["slots stand still", "slots are mute"])
def test_a_child_that_shows_no_work_hangs_though_its_health_answers(has_slots: bool) -> None:
    assert judged(57.5, has_slots=has_slots) == Slow(57.5)

    hung = judged(60.0, has_slots=has_slots)

    assert isinstance(hung, Hung)
    assert "for 60 s no token came" in hung.reason


def test_a_stopped_child_is_told_much_sooner() -> None:
    assert isinstance(judged(7.5, is_answering=False, has_slots=False), Slow)

    hung = judged(10.0, is_answering=False, has_slots=False)

    assert isinstance(hung, Hung)
    assert "neither answered /health nor used the processor" in hung.reason


def test_a_child_too_busy_to_answer_health_is_slow() -> None:
    assert judged(300.0, is_answering=False, has_slots=False, cores=8.0) == Slow(300.0)


def test_a_child_that_spins_hangs_in_the_end() -> None:
    assert isinstance(judged(597.5, cores=1.0), Slow)

    hung = judged(600.0, cores=1.0)

    assert isinstance(hung, Hung)
    assert "for 600 s it has computed" in hung.reason


def test_a_child_that_computes_on_for_a_caller_who_left_hangs() -> None:
    course = seen_for(30.0, cores=1.0, has_slots=False)
    assert verdict(course, limits=LIMITS) == Slow(30.0)

    still = seen_for(57.5, cores=1.0, has_slots=False, departures=1, course=course)
    hung = verdict(
        seen_for(2.5, cores=1.0, has_slots=False, departures=1, course=still), limits=LIMITS
    )

    assert verdict(still, limits=LIMITS) == Slow(87.5)
    assert isinstance(hung, Hung)
    assert "not let go of the request of a caller who left" in hung.reason


@pytest.mark.parametrize(
    "signs",
    [
        {"has_slots": False, "bytes_per_s": 1.0},
        {"tokens_per_s": 0.4},
        {"has_slots": True},
        {"has_slots": False, "cores": 0.5},
    ],
    ids=["it answers others", "its slots move on", "/slots is answered", "it is starved"],
)
def test_a_child_that_still_comes_round_or_lacks_a_processor_is_not_held_to_who_left(
    signs: dict[str, float],
) -> None:
    told = judged(80.0, **{"cores": 1.0, "departures": 1, **signs})

    assert not isinstance(told, Hung)


def test_a_child_that_rests_after_a_caller_left_is_no_longer_looked_at() -> None:
    assert seen_for(2.5, cores=1.0, has_slots=False, departures=1).is_left
    assert not seen_for(2.5, has_slots=False, departures=1).is_left
    assert not seen_for(2.5, cores=1.0, busy_slots=0, departures=1).is_left


def test_what_a_watcher_that_did_not_run_missed_is_no_evidence() -> None:
    course = seen_for(50.0)
    late = replace(course.last, at_s=course.last.at_s + 3600.0)

    assert verdict(continued(course, late, limits=LIMITS), limits=LIMITS) == Alive()


def test_callers_who_give_up_one_by_one_do_not_hide_a_child_that_hangs() -> None:
    course = seen_for(30.0)
    later = replace(course.last, at_s=course.last.at_s + 1000.0)
    course = resumed(course, later)
    assert verdict(course, limits=LIMITS) == Slow(30.0)

    assert isinstance(verdict(seen_for(30.0, course=course), limits=LIMITS), Hung)


def test_an_answer_between_two_requests_clears_a_child_of_its_silence() -> None:
    course = seen_for(30.0)
    later = replace(course.last, at_s=course.last.at_s + 1000.0, heard_bytes=2000)

    assert verdict(resumed(course, later), limits=LIMITS) == Alive()


def plan(**facts: object) -> LaunchPlan:
    made = launch_plan(served_model(), n_ctx=4096, n_parallel=1)
    return replace(made, **facts)


def test_the_operators_limit_is_a_floor() -> None:
    limits = hang_limits(plan(n_batch=512, predicted_prompt_tokens_per_s=1000.0), hang_s=60.0)

    assert (limits.hang_s, limits.spin_s, limits.frozen_s) == (60.0, 600.0, 10.0)


def test_a_launch_whose_batches_take_long_is_given_ten_of_them() -> None:
    limits = hang_limits(plan(n_batch=512, predicted_prompt_tokens_per_s=5.0), hang_s=60.0)

    assert limits.hang_s == pytest.approx(1024.0)


@pytest.mark.parametrize(
    "facts",
    [
        {"predicted_prompt_tokens_per_s": None},
        {"predicted_prompt_tokens_per_s": 1000.0, "mmproj_path": "/m/mmproj.gguf"},
        {"predicted_prompt_tokens_per_s": 1000.0, "rpc_servers": ("10.0.0.2:50052",)},
    ],
    ids=["no prediction", "images", "another machine"],
)
def test_who_left_shortens_no_time_where_a_step_may_take_who_knows_how_long(
    facts: dict[str, object],
) -> None:
    assert hang_limits(plan(**facts), hang_s=60.0).left_s == 600.0
    assert hang_limits(plan(predicted_prompt_tokens_per_s=1000.0), hang_s=60.0).left_s == 60.0


def test_idle_processors_prove_nothing_where_another_machine_computes() -> None:
    limits = hang_limits(plan(rpc_servers=("10.0.0.2:50052",)), hang_s=60.0)

    assert limits.hang_s == limits.spin_s == 600.0
