"""One timer that is set, set anew and stopped, as connections have several."""

import asyncio
from collections.abc import Callable


class Timer:
    """One thing that is waited for, or not."""

    __slots__ = ("_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        """True until it is stopped, or has called."""
        return self._handle is not None

    def start(self, within_s: float, late: Callable[[], None]) -> None:
        """Calls `late` then, unless it is stopped before."""
        self.stop()
        self._handle = self._loop.call_later(within_s, self._call, late)

    def stop(self) -> None:
        """Forgets what was waited for."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _call(self, late: Callable[[], None]) -> None:
        self._handle = None
        late()
