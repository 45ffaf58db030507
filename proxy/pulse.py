"""Small signs of life in a reply that has not begun, at a cadence, until it begins."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pulse:
    """What keeps proxies and callers from giving up a stream of events that says nothing yet."""

    data: bytes
    """A whole event, or a comment."""
    every_s: float
    """0 is never."""


class Beats:
    """Sends a pulse until it is stopped; a timer alone, until the first one is due."""

    __slots__ = ("_every_s", "_is_stopped", "_send", "_task", "_timer")

    def __init__(self, send: Callable[[], Awaitable[None]], *, every_s: float) -> None:
        self._send, self._every_s = send, every_s
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self._timer = self._due()

    async def stop(self) -> None:
        """Returns when none is being sent, nor will be."""
        self._is_stopped = True
        self._timer.cancel()
        if self._task is not None:
            await self._task

    async def abort(self) -> None:
        """The same, without waiting for a caller who reads slowly."""
        self._is_stopped = True
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _due(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._every_s, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        await self._send()
        if not self._is_stopped:
            self._timer = self._due()
