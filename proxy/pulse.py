"""Small signs of life in a reply that has not begun, at a cadence, until it begins."""

import asyncio
from collections.abc import Callable

import msgspec


class Pulse(msgspec.Struct, frozen=True):
    """What keeps proxies and callers from giving up a stream of events that says nothing yet."""

    data: bytes
    """A whole event, or a comment."""
    every_s: float
    """0 is never."""


class Beats:
    """Sends a pulse until it is stopped."""

    __slots__ = ("_every_s", "_send", "_timer")

    def __init__(self, send: Callable[[], None], *, every_s: float) -> None:
        self._send, self._every_s = send, every_s
        self._timer = self._due()

    def stop(self) -> None:
        """None will be sent any more."""
        self._timer.cancel()

    def _due(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._every_s, self._beat)

    def _beat(self) -> None:
        self._timer = self._due()
        self._send()
