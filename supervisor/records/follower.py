"""Somebody who reads what happens, as it happens, at a pace of his own."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

MAX_UNREAD = 1_000  # held for one follower; beyond it the oldest are skipped, and counted

T = TypeVar("T")


class Follower(Generic[T]):
    """A bounded line of what was told and not read yet."""

    def __init__(self) -> None:
        self._unread: deque[T] = deque(maxlen=MAX_UNREAD)
        self._skipped = 0
        self._has_ended = False
        self._news = asyncio.Event()

    def tell(self, item: T) -> None:
        """Add one; the oldest unread one may make way."""
        self._skipped += len(self._unread) == MAX_UNREAD
        self._unread.append(item)
        self._news.set()

    def end(self) -> None:
        """There will be no more."""
        self._has_ended = True
        self._news.set()

    async def unread(self, *, within_s: float) -> tuple[int, tuple[T, ...]] | None:
        """How many were skipped and those after them, () where none came; None at the end."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return 0, ()
        skipped, items = self._skipped, tuple(self._unread)
        if self._has_ended and not items:
            return None
        self._skipped = 0
        self._unread.clear()
        if not self._has_ended:
            self._news.clear()
        return skipped, items
