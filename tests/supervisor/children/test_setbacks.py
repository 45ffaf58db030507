"""supervisor.children.setbacks: what an end that nobody wanted leaves an instance to do."""

from msgspec.structs import replace

from planners.hardware import HOST
from planners.instances.exits import Cause, ExitKind
from planners.instances.ladder import Rung
from planners.instances.last_rung import OOM_RETRY_S
from planners.instances.restart import Death, RestartRules
from planners.sizes import GIB
from planners.view import InstanceState
from supervisor.children.setbacks import CAUSE_LINES, ENGINE_RETRY_S, Setback, Setbacks
from tests.fakes.views import A, planned

RULES = RestartRules(window_s=600.0, limit=2, cooldown_s=60.0)
LOADING = Death(at_s=100.0, lived_s=None, was_serving=False, had_answered=False)
CRASH = Cause(ExitKind.CRASH, "it crashed", -11, tuple(map(str, range(100))))
OOM = Cause(ExitKind.HOST_OOM, "it ran out of host memory", 1, ())


def after(setbacks: Setbacks, cause: Cause, *, pin: bool = False) -> Setback:
    return setbacks.after(
        cause,
        LOADING,
        plan=planned(A),
        room_bytes={HOST: 4 * GIB},
        rules=RULES,
        is_pinned=pin,
    )


def test_a_crash_backs_off_and_keeps_its_last_lines() -> None:
    setback = after(Setbacks(Rung()), CRASH)

    assert (setback.state, setback.retry_at_s) == (InstanceState.BACKOFF, 100.0)
    assert setback.cause.log_tail == CRASH.log_tail[-CAUSE_LINES:]


def test_a_load_that_dies_of_memory_asks_for_less_at_once_and_is_no_strike() -> None:
    setbacks = Setbacks(Rung())

    setback = after(setbacks, OOM)

    assert (setback.state, setback.retry_at_s) == (InstanceState.BACKOFF, 100.0)
    assert setbacks.rung.hidden_bytes[HOST] > 0
    assert setbacks.openings == 0


def test_loads_that_die_without_a_word_ask_for_less_and_those_that_end_well_do_not() -> None:
    ended = replace(CRASH, summary="it ended by itself", returncode=0)
    crashing, ending = Setbacks(Rung()), Setbacks(Rung())

    for _ in range(3):
        after(crashing, CRASH)
        after(ending, ended)

    assert crashing.rung.hidden_bytes
    assert not ending.rung.hidden_bytes


def test_loads_that_another_process_kills_ask_for_no_less() -> None:
    setbacks = Setbacks(Rung())
    killed = Cause(ExitKind.KILLED_BY_PROCESS, "another process killed it", -9, ())

    for _ in range(3):
        after(setbacks, killed)

    assert not setbacks.rung.hidden_bytes
    assert setbacks.openings > 0


def test_where_there_is_no_less_it_waits_for_its_time() -> None:
    setbacks = Setbacks(Rung())
    for _ in range(20):
        setback = after(setbacks, OOM)

    assert (setback.state, setback.retry_at_s) == (InstanceState.FAILED, 100.0 + OOM_RETRY_S)


def test_what_cannot_get_better_has_no_time_to_try_again() -> None:
    setback = after(Setbacks(Rung()), replace(CRASH, kind=ExitKind.BAD_MODEL))

    assert (setback.state, setback.retry_at_s) == (InstanceState.FAILED, None)


def test_too_many_strikes_open_the_breaker_until_an_answer_closes_it() -> None:
    setbacks = Setbacks(Rung())
    after(setbacks, CRASH)

    opened = after(setbacks, CRASH)

    assert (opened.state, opened.retry_at_s, opened.deaths) == (InstanceState.FAILED, 160.0, 2)
    assert "first request after 1m" in opened.reason
    assert setbacks.openings == 1
    assert "since it is pinned" in after(setbacks, CRASH, pin=True).reason
    setbacks.answered()
    assert setbacks.openings == 0


def test_a_missing_engine_is_looked_for_again_soon_however_often_it_was_missing() -> None:
    setbacks = Setbacks(Rung())
    missing = replace(CRASH, kind=ExitKind.MISSING_ENGINE)

    *_, last = (after(setbacks, missing) for _ in range(9))

    assert (last.state, last.retry_at_s) == (InstanceState.FAILED, 100.0 + ENGINE_RETRY_S)
