"""What the daemon is told by signals: to stop, to stop at once, to read its settings again."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from inferenceosd.start import came_early

EDIT_S = 0.25  # between two edits of one spree
EDITS_S = 2.0  # as long as a spree is waited for
STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*STOPPING_SIGNALS, signal.SIGHUP)


class Signals:
    """What came so far. Each signal only sets an event: whoever waits for it acts."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        """Asked a second time to stop."""
        self._reload = asyncio.Event()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Within: signals are taken; after it they are nobody's, until the process ends."""
        loop = asyncio.get_running_loop()
        if came_early(signal.SIGHUP):  # what was read then may be older than what it is about
            self._reload.set()
        for number in STOPPING_SIGNALS:
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        try:
            yield
        finally:
            # Else the loop takes its handlers with it, a moment before the process: what comes in
            # between would kill it. To block them here leaves them to threads that do not.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            for number in SIGNALS:
                loop.remove_signal_handler(number)
            ignore()

    async def until_reload(self) -> None:
        """Return once settings are to be read again: of many SIGHUPs in a row the last counts."""
        await self._reload.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(EDITS_S):
                while self._reload.is_set():
                    self._reload.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(EDIT_S):
                            await self._reload.wait()
        self._reload.clear()

    def _asked_to_stop(self) -> None:
        """The first time in peace, after that at once."""
        (self.hurry if self.stop.is_set() else self.stop).set()


def ignore() -> None:
    """The process ends, and in peace."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
