import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.restart import GiveUp, RestartAt, next_restart


@pytest.mark.parametrize(
    ("n_deaths", "delay_s"),
    [(1, 0.0), (2, 1.0), (3, 2.0), (4, 4.0), (5, 8.0), (8, 60.0), (500, 60.0)],
)
def test_each_further_death_waits_longer(n_deaths: int, delay_s: float) -> None:
    verdict = next_restart([100.0] * n_deaths, now_s=100.0, window_s=600.0, limit=1000)

    assert verdict == RestartAt(100.0 + delay_s)


def test_too_many_deaths_within_the_window_end_it() -> None:
    verdict = next_restart([10.0, 20.0, 30.0], now_s=30.0, window_s=60.0, limit=3)

    assert verdict == GiveUp(deaths=3, window_s=60.0)


def test_deaths_of_long_ago_are_forgotten() -> None:
    verdict = next_restart([10.0, 20.0, 900.0], now_s=900.0, window_s=60.0, limit=3)

    assert verdict == RestartAt(900.0)


@given(
    deaths=st.lists(st.floats(0, 1000), max_size=50),
    window_s=st.floats(1, 1000),
    limit=st.integers(1, 20),
)
def test_a_restart_is_never_in_the_past_nor_later_than_a_minute(
    deaths: list[float], window_s: float, limit: int
) -> None:
    match next_restart(sorted(deaths), now_s=1000.0, window_s=window_s, limit=limit):
        case RestartAt(at_s):
            assert 1000.0 <= at_s <= 1060.0
        case GiveUp(n_deaths, _):
            assert n_deaths >= limit
