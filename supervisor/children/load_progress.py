"""Whether a load gets on: by new lines of its log, steps it tells, and what it reads.

A line or a step that comes again is no progress, and no load goes on for ever.
"""

import re
from collections.abc import Callable

from msgspec import Struct

LOOK_S = 1.0  # of silence, after which its disk reads are looked at
MAX_LINES = 5_000  # that count; a load at -lv 4 writes some 400

_STAMP = re.compile(r"[\d.:, TZ\[\]-]*(?:[IWED] )?")
"""What llama-server writes before a line: a time, and a letter for the level."""


class LoadLimits(Struct, frozen=True):
    """How long a load may take, in seconds."""

    stall_s: float
    """Without progress."""
    total_s: float
    """With it."""


class LoadProgress:
    """Of one load; times are monotonic."""

    def __init__(self, *, now_s: float) -> None:
        self._began_s = self._progressed_s = now_s
        self._lines: set[int] = set()
        self._step: tuple[str, float | None] | None = None
        self._reads = 0

    def logged(self, line: str, *, now_s: float) -> None:
        """Take a line of its log; one like it before, but for its time, tells nothing."""
        if len(self._lines) == MAX_LINES:
            return
        known = len(self._lines)
        self._lines.add(hash(line[_stamp_end(line) :]))
        if len(self._lines) > known:
            self._progressed_s = now_s

    def stepped(self, state: str, progress: float | None, *, now_s: float) -> None:
        """Take a state that it told, and how far it has come in it."""
        if (state, progress) != self._step:
            self._step = (state, progress)
            self._progressed_s = now_s

    def why_stalled(
        self, limits: LoadLimits, *, reads: Callable[[], int | None], now_s: float
    ) -> str | None:
        """Why it will not get ready, as half a sentence; None while it may.

        `reads` is what its process has read so far, asked for only after some silence.
        """
        if now_s - self._began_s > limits.total_s:
            return f"it was not ready after loading for {limits.total_s:.0f} s"
        if now_s - self._progressed_s > min(limits.stall_s, LOOK_S):
            read = reads() or 0
            if read > self._reads:
                self._reads, self._progressed_s = read, now_s
        if now_s - self._progressed_s > limits.stall_s:
            return f"it made no progress while loading for {limits.stall_s:.0f} s"
        return None


def _stamp_end(line: str) -> int:
    match = _STAMP.match(line)
    return match.end() if match else 0
