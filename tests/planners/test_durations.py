import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.durations import (
    FOREVER_S,
    BadDuration,
    format_duration,
    parse_duration,
    wished_duration,
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        pytest.param(300, 300.0, id="a whole number"),
        pytest.param(0.5, 0.5, id="a fraction"),
        pytest.param(0, 0.0, id="zero is now"),
        pytest.param(-1, FOREVER_S, id="negative is forever"),
        pytest.param(-0.001, FOREVER_S, id="however little"),
        pytest.param(10**400, FOREVER_S, id="more than a float holds"),
        pytest.param("5m", 300.0, id="minutes"),
        pytest.param("1h30m", 5400.0, id="hours and minutes"),
        pytest.param("1h15m30.918273645s", 4530.918273645, id="all of them"),
        pytest.param("300ms", 0.3, id="milliseconds"),
        pytest.param("10us", 1e-5, id="us"),
        pytest.param("10µs", 1e-5, id="micro sign"),
        pytest.param("10μs", 1e-5, id="Greek mu"),
        pytest.param("100ns", 1e-7, id="nanoseconds"),
        pytest.param(".5m", 30.0, id="no digit before the point"),
        pytest.param("5.m", 300.0, id="no digit after the point"),
        pytest.param("+5m", 300.0, id="plus"),
        pytest.param("-5m", FOREVER_S, id="minus"),
        pytest.param("0", 0.0, id="bare zero"),
        pytest.param("-0s", 0.0, id="negative zero"),
        pytest.param("-1", FOREVER_S, id="bare minus one"),
        pytest.param("1m1m", 120.0, id="a unit twice, as Go allows"),
    ],
)
def test_durations_are_read_as_go_reads_them(value: object, seconds: float) -> None:
    assert parse_duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        pytest.param("", 'time: invalid duration ""', id="empty"),
        pytest.param("abc", 'time: invalid duration "abc"', id="a word"),
        pytest.param("m", 'time: invalid duration "m"', id="a unit alone"),
        pytest.param(" 5m", 'time: invalid duration " 5m"', id="a space"),
        pytest.param("5 m", 'time: missing unit in duration "5 m"', id="a space inside"),
        pytest.param("1d", 'time: unknown unit "d" in duration "1d"', id="days"),
        pytest.param("5M", 'time: missing unit in duration "5M"', id="a capital"),
        pytest.param("1h-30m", 'time: invalid duration "1h-30m"', id="a sign inside"),
        pytest.param("--5m", 'time: invalid duration "--5m"', id="two signs"),
        pytest.param("1e3s", 'time: unknown unit "e" in duration "1e3s"', id="an exponent"),
        pytest.param("٥m", 'time: invalid duration "٥m"', id="other digits"),
        pytest.param(
            "9999999999h", 'time: invalid duration "9999999999h"', id="more than 292 years"
        ),
        pytest.param(True, "Unsupported type: 'bool'", id="a boolean"),
        pytest.param([5], "Unsupported type: '[]interface {}'", id="a list"),
        pytest.param(math.nan, 'time: invalid duration "NaN"', id="no number"),
    ],
)
def test_what_go_refuses_is_refused_in_its_words(value: object, why: str) -> None:
    with pytest.raises(BadDuration) as caught:
        parse_duration(value)

    assert str(caught.value) == why


def test_a_number_without_a_unit_is_refused() -> None:
    with pytest.raises(BadDuration, match='missing unit in duration "5"'):
        parse_duration("5")


def test_a_very_long_text_is_refused_without_being_repeated() -> None:
    with pytest.raises(BadDuration) as caught:
        parse_duration("9" * 10_000)

    assert len(str(caught.value)) < 120


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except BadDuration:
        return
    assert seconds >= 0


@given(st.integers(0, 10**7))
def test_what_is_written_is_read_back(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (59.6, "1m"), (90.0, "1m30s"), (3600.0, "1h"), (FOREVER_S, "forever")],
)
def test_durations_are_written_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_duration_that_a_request_leaves_out_is_no_wish() -> None:
    assert wished_duration(None) is None
    assert wished_duration("5m") == 300.0
