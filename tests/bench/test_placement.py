import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from bench.placement import usual
from planners.graph.reservation import forget

ROWS = [*usual()]
MOST_STEPS = 650_000  # of one plan: lines of Python; the dearest took two thirds of that
MOST_STEPS_UNCOPIED = 1_000_000  # where layers with states are each drawn anew


def steps(work: Callable[[], object]) -> int:
    """How many lines of Python are run, whatever else the machine does."""
    count = 0

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return step

    before = sys.gettrace()
    forget()
    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(("title", "work"), ROWS, ids=[title for title, _ in ROWS])
def test_a_plan_takes_no_more_steps_than_it_may(title: str, work: Callable[[], object]) -> None:
    models = 9 if "together" in title else 1  # each of three, in three orders
    most = MOST_STEPS_UNCOPIED if "states and heads" in title else MOST_STEPS

    assert steps(work) < models * most
