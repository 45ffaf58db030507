"""A blocking read with a deadline: a driver or a disk that hangs costs one thread, never us."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Generic, TypeVar

from supervisor.errors import SupervisorError

T = TypeVar("T")


class NoAnswer(SupervisorError):
    """A source did not answer in time."""

    def __init__(self, *, source: str, limit_s: float) -> None:
        self.source, self.limit_s = source, limit_s
        super().__init__(f"{source}: no answer within {limit_s:g} s; its driver or disk may hang")


class PatientReader(Generic[T]):
    """Runs one blocking function at a time, in a thread of its own.

    The thread is a daemon thread, not a pool's: an executor joins its threads at exit, whatever
    shutdown(wait=False) says, and one that sits in a dead driver would keep us from ending.
    """

    def __init__(self, name: str, read: Callable[[], T], *, limit_s: float) -> None:
        self.name, self._read, self._limit_s = name, read, limit_s
        self._pending: asyncio.Future[T] | None = None
        self._begun_s = 0.0

    async def read(self) -> T:
        """What the function returns or raises; NoAnswer once limit_s have passed since it began."""
        pending = self._pending or self._begin()
        left_s = self._begun_s + self._limit_s - monotonic()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                return await asyncio.shield(pending)
        except TimeoutError as exc:
            raise NoAnswer(source=self.name, limit_s=self._limit_s) from exc

    def _begin(self) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        pending: asyncio.Future[T] = loop.create_future()
        self._pending, self._begun_s = pending, monotonic()
        pending.add_done_callback(_seen)

        def answered(settle: Callable[[], None]) -> None:
            self._pending = None  # before anybody hears of it: who asks from now on asks anew
            settle()

        def run() -> None:
            try:
                settle = partial(pending.set_result, self._read())
            except Exception as exc:  # not handled here: carried to whoever waits
                settle = partial(pending.set_exception, exc)
            with suppress(RuntimeError):  # the loop closed meanwhile: nobody listens any more
                loop.call_soon_threadsafe(answered, settle)

        threading.Thread(target=run, name=f"read-{self.name}", daemon=True).start()
        return pending


def _seen(pending: asyncio.Future[T]) -> None:
    pending.exception()  # after the deadline nobody else looks
