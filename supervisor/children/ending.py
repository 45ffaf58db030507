"""How an instance is asked to end: once, and after that only sooner."""

import asyncio
from math import inf

from planners.instances.actions import Departure


class Ending:
    """Nothing asked yet, or for what and until when at most."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        """Set by each wish, so that who waits by the last one looks again; they clear it."""
        self.departure: Departure | None = None
        """Of the newest wish."""
        self._drain_until_s = inf

    @property
    def is_asked(self) -> bool:
        """Whether there was any wish."""
        return self.asked.is_set()

    def ask(self, departure: Departure, *, drain_s: float, now_s: float) -> bool:
        """Whether this is the first wish. The shortest drain of all of them counts."""
        self._drain_until_s = min(self._drain_until_s, now_s + drain_s)
        self.departure = departure
        self.hurried.set()
        is_first = not self.is_asked
        self.asked.set()
        return is_first

    def left_s(self, *, now_s: float) -> float:
        """How long running requests may still take; below 0 when that is over."""
        return self._drain_until_s - now_s
