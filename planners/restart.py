"""When a child that died is started again: at once, then ever later, then not at all."""

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Start it again at `at_s` (monotonic)."""

    at_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It died too often; only a change or an operator starts it again."""

    deaths: int
    window_s: float


def next_restart(
    deaths: Sequence[float], *, now_s: float, window_s: float, limit: int
) -> RestartAt | GiveUp:
    """What to do after the last of `deaths` (monotonic, oldest first).

    Only those within the last `window_s` count: an instance that lived long starts afresh.
    """
    recent = sum(now_s - window_s < at_s <= now_s for at_s in deaths)
    if recent >= limit:
        return GiveUp(deaths=recent, window_s=window_s)
    return RestartAt(now_s + _delay_s(recent))


def _delay_s(recent: int) -> float:
    """0, 1, 2, 4 … 60 s: the first death restarts at once, callers are waiting."""
    if recent <= 1:
        return 0.0
    exponent = min(recent - 2, 10)  # beyond it the bound is long reached
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2**exponent))
