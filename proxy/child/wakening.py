"""Waiting that ends in the very call of the event loop that brings what is waited for.

A future has its task run in a later turn of the loop. For a reply's bytes that is an order to
write, a look at all sockets and a wake-up more than it takes to pass them on.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Wakening:
    """What one task at a time awaits: a future to asyncio, as anything with these methods is.

    One object for as many waits as come after each other.
    """

    __slots__ = ("_asyncio_future_blocking", "_call", "_context", "_is_cancelled", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = False  # set while a task is about to take it over
        self._call: Callable[[Any], object] | None = None
        """What goes on with the task; None while none waits."""
        self._context: Context | None = None
        self._is_cancelled = False

    def __await__(self) -> Generator[Any, None, None]:
        self._is_cancelled = False
        self._asyncio_future_blocking = True
        yield self

    def wake(self) -> None:
        """Goes on with the task that waits, if one does.

        In a call of the event loop's own alone: asyncio has no task run within another.
        """
        call, context = self._call, self._context
        if call is not None and context is not None:
            self._call = self._context = None
            context.run(call, self)

    # What a task asks of a future.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Where it is awaited."""
        return self._loop

    def add_done_callback(self, call: Callable[[Any], object], *, context: Context) -> None:
        """The task waits from now on."""
        self._call, self._context = call, context

    def cancel(self, msg: object = None) -> bool:
        """The task is to go on with CancelledError; soon, since others are at work now."""
        call, context = self._call, self._context
        if call is None or context is None:
            return False
        self._call = self._context = None
        self._is_cancelled = True
        self._loop.call_soon(call, self, context=context)
        return True

    def result(self) -> None:
        """Raises CancelledError where the wait was given up."""
        if self._is_cancelled:
            raise asyncio.CancelledError
