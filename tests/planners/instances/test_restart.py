import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.instances.restart import (
    LONGEST_COOLDOWN_S,
    MOST_OWN_TRIALS,
    Death,
    History,
    OpenUntil,
    RestartAt,
    RestartRules,
    after_answer,
    after_death,
    left_alone,
    strikes,
    tries_by_itself,
)

RULES = RestartRules(window_s=600.0, limit=3, cooldown_s=60.0)
FRESH = History()
FAILED_LOAD = Death(at_s=0.0, lived_s=None, was_serving=False, had_answered=False)
WHILE_SERVING = Death(at_s=0.0, lived_s=1.0, was_serving=True, had_answered=False)
AFTER_ANSWERS = Death(at_s=0.0, lived_s=60.0, was_serving=True, had_answered=True)


def died(
    *deaths: Death, history: History = FRESH, rules: RestartRules = RULES
) -> tuple[History, RestartAt | OpenUntil]:
    """The history after each in turn, and the last verdict."""
    for death in deaths:
        history, verdict = after_death(history, death, rules=rules)
    return history, verdict


def at(death: Death, *times_s: float) -> list[Death]:
    return [replace(death, at_s=at_s) for at_s in times_s]


@pytest.mark.parametrize(
    ("n_deaths", "delay_s"),
    [(1, 0.0), (2, 1.0), (3, 2.0), (4, 4.0), (5, 8.0), (8, 60.0), (500, 60.0)],
)
def test_each_further_failed_load_waits_longer(n_deaths: int, delay_s: float) -> None:
    _, verdict = died(*at(FAILED_LOAD, *[100.0] * n_deaths), rules=replace(RULES, limit=1000))

    assert verdict == RestartAt(100.0 + delay_s)


def test_too_many_failed_loads_within_the_window_open_the_breaker() -> None:
    _, verdict = died(*at(FAILED_LOAD, 10.0, 20.0, 30.0))

    assert verdict == OpenUntil(90.0, deaths=3)


def test_deaths_of_long_ago_are_forgotten() -> None:
    _, verdict = died(*at(FAILED_LOAD, 10.0, 20.0, 900.0))

    assert verdict == RestartAt(900.0)


@pytest.mark.parametrize(
    ("death", "weight"),
    [
        (FAILED_LOAD, 1.0),
        (replace(WHILE_SERVING, was_serving=False), 1.0),
        (WHILE_SERVING, 0.5),
        (replace(AFTER_ANSWERS, was_serving=False), 0.5),
        (AFTER_ANSWERS, 0.25),
    ],
    ids=["failed load", "idle", "serving", "idle after answers", "serving after answers"],
)
def test_a_death_weighs_less_the_more_the_model_has_shown_that_it_runs(
    death: Death, weight: float
) -> None:
    assert strikes(death) == weight


def test_three_requests_that_each_kill_two_children_leave_the_breaker_closed() -> None:
    once_and_resent = (AFTER_ANSWERS, WHILE_SERVING)

    _, verdict = died(*once_and_resent * 3)

    assert isinstance(verdict, RestartAt)


def test_a_model_that_every_request_kills_opens_the_breaker_all_the_same() -> None:
    _, verdict = died(*[WHILE_SERVING] * 6)

    assert isinstance(verdict, OpenUntil)


def test_a_failed_trial_opens_the_breaker_for_twice_as_long_up_to_a_bound() -> None:
    history, verdict = died(*at(FAILED_LOAD, 0.0, 0.0, 0.0))
    now_s, cooldowns_s = 0.0, []
    for _ in range(6):
        assert isinstance(verdict, OpenUntil)
        cooldowns_s.append(verdict.at_s - now_s)
        now_s = verdict.at_s + 1.0
        history, verdict = died(replace(FAILED_LOAD, at_s=now_s), history=history)

    assert cooldowns_s == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0]


def test_an_answer_closes_a_breaker_and_forgives_what_opened_it() -> None:
    history, _ = died(*at(FAILED_LOAD, 0.0, 0.0, 0.0))

    _, verdict = died(replace(AFTER_ANSWERS, at_s=61.0), history=after_answer(history))

    assert verdict == RestartAt(61.0)


def test_an_answer_while_the_breaker_is_closed_forgives_nothing() -> None:
    history, _ = died(*at(FAILED_LOAD, 0.0, 1.0))

    assert after_answer(history) == history


def test_a_trial_that_lived_for_the_window_starts_afresh() -> None:
    history, _ = died(*at(FAILED_LOAD, 0.0, 0.0, 0.0))
    idle_for_long = Death(at_s=2000.0, lived_s=700.0, was_serving=False, had_answered=False)

    _, verdict = died(idle_for_long, history=history)

    assert verdict == RestartAt(2000.0)


def test_when_a_model_left_alone_is_tried_again_is_said() -> None:
    said = left_alone(OpenUntil(160.0, deaths=5), now_s=100.0, by_itself=False)

    assert "died 5 times" in said
    assert "after 1m" in said
    assert "inferenceosctl retry" in said


def test_a_pinned_model_says_that_it_is_tried_by_itself() -> None:
    said = left_alone(OpenUntil(160.0, deaths=5), now_s=100.0, by_itself=True)

    assert "is tried after 1m, since it is pinned" in said


def test_a_pinned_model_is_tried_by_itself_so_many_times_in_a_row() -> None:
    tried = [tries_by_itself(openings, is_pinned=True) for openings in range(MOST_OWN_TRIALS + 2)]

    assert tried == [False, *[True] * MOST_OWN_TRIALS, False]
    assert not tries_by_itself(1, is_pinned=False)


deaths = st.builds(
    Death,
    at_s=st.floats(0, 1000),
    lived_s=st.none() | st.floats(0, 1000),
    was_serving=st.booleans(),
    had_answered=st.booleans(),
)


@given(
    st.lists(deaths, min_size=1, max_size=50),
    st.builds(
        RestartRules,
        window_s=st.floats(1, 1000),
        limit=st.integers(1, 20),
        cooldown_s=st.floats(0.1, 900),
    ),
)
def test_nothing_is_ever_due_in_the_past_nor_later_than_the_bounds(
    each: list[Death], rules: RestartRules
) -> None:
    history = History()
    for death in sorted(each, key=lambda death: death.at_s):
        history, verdict = after_death(history, death, rules=rules)

        limit_s = 60.0 if isinstance(verdict, RestartAt) else LONGEST_COOLDOWN_S
        assert death.at_s <= verdict.at_s <= death.at_s + limit_s
        assert len(history.deaths) <= len(each)
