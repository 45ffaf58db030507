"""How far work on a store has come, as values; blocking work followed from the event loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

from msgspec import Struct

TELL_S = 0.1  # between two lines about the same work; Ollama's clients redraw as often

T = TypeVar("T")
Told = Callable[[int], None]


class Progress(Struct, frozen=True):
    """One line about work that goes on."""

    status: str
    digest: str = ""
    total_bytes: int = 0
    """0 where it has no measure."""
    completed_bytes: int = 0


class Abandoned(Exception):
    """Nobody waits any more for what a thread does."""


class Work(Generic[T]):
    """A blocking function in a thread, which tells how many bytes it is through with."""

    def __init__(self, threads: Executor, function: Callable[[Told], T]) -> None:
        self._threads, self._function = threads, function
        self._n_bytes = 0
        self._is_abandoned = False
        self._results: list[T] = []

    @property
    def result(self) -> T:
        """What the function returned, once it is followed to its end."""
        return self._results[-1]

    def _tell(self, n_bytes: int) -> None:
        """In the thread. Raises Abandoned there."""
        if self._is_abandoned:
            raise Abandoned
        self._n_bytes = n_bytes

    async def follow(
        self, status: str, *, total_bytes: int, digest: str = ""
    ) -> AsyncGenerator[Progress, None]:
        """A line now and then until it is done. Raises what the function raises.

        Who leaves waits until the thread has noticed: it may use what is closed next.
        """
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, self._function, self._tell)
        shown = -1
        try:
            while True:
                done, _ = await asyncio.wait([running], timeout=TELL_S)
                if done:
                    break
                if self._n_bytes != shown:
                    shown = self._n_bytes
                    yield Progress(status, digest, total_bytes, shown)
        finally:
            self._is_abandoned = True
            if not running.done():
                await asyncio.wait([running])
                running.exception()  # Abandoned, or what nobody asks for any more
        self._results.append(running.result())
