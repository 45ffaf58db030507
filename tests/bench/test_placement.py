import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from bench.placement import usual
from planners.graph.reservation import forget

ROWS = [*usual()]
MOST_STEPS = 270_000  # of one plan: lines of Python; the dearest took 258 000
MOST_STEPS_OF_ROW = {
    # Filled to the brim: laid out anew, for either engine, around the buffers of a pipeline.
    "8 unequal devices, 62 layers, drawn, windows": 380_000,
    # Kinds of layers take turns on devices that mingle them, and all are drawn.
    "8 equal devices, 48 layers, drawn, states and fewer experts": 420_000,
}


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
    most = MOST_STEPS_OF_ROW.get(title, MOST_STEPS)

    assert steps(work) < models * most
