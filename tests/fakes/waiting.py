"""Waiting for what no event tells, with an end."""

import time
from collections.abc import Callable

LOOK_S = 0.02  # cadence


def until(
    holds: Callable[[], object], *, within_s: float, told: Callable[[], object] = lambda: ""
) -> None:
    """Return once `holds` does; fail after `within_s`, saying what `told` then knows."""
    give_up_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up_s, told()
        time.sleep(LOOK_S)
