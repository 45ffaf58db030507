"""The threads that a store's blocking calls run in: one for its manifests, a few for bytes."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

MOST_BULKY = 4  # copies and digests at once: a disk is no faster with more

P = ParamSpec("P")
T = TypeVar("T")


class StoreThreads:
    """What changes manifests runs one at a time; what only moves bytes beside it."""

    def __init__(self) -> None:
        self._store = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self.opening: asyncio.Task[None] | None = None
        """Clears away what a killed daemon left: until then, nothing is written that looks so."""
        self.bulk = ThreadPoolExecutor(max_workers=MOST_BULKY, thread_name_prefix="store-bytes")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns or raises, after those that were asked for before."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._store, lambda: function(*args, **kwargs))

    async def move(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Likewise, but beside others, once the store is open."""
        if self.opening is not None and not self.opening.done():
            await asyncio.wait({self.opening})
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.bulk, lambda: function(*args, **kwargs))
