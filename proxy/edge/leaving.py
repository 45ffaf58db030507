"""That the caller of a request has left, told without a task that waits for it.

The connection tells; whoever answers listens.
"""

from collections.abc import Callable

LEAVING = "inferenceosd.leaving"
"""The key of a request's Leaving in its scope."""


class Leaving:
    """Whether the caller of one request has left, and whom to tell."""

    __slots__ = ("_has_left", "_on_left")

    def __init__(self) -> None:
        self._has_left = False
        self._on_left: Callable[[], None] | None = None

    def listen(self, on_left: Callable[[], None] | None) -> None:
        """Have `on_left` called once the caller leaves, at once where it has; None: nobody."""
        self._on_left = on_left
        if on_left is not None and self._has_left:
            on_left()

    def tell(self) -> None:
        """The caller has left."""
        self._has_left = True
        if self._on_left is not None:
            self._on_left()
