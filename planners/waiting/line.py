"""A model's line: who is next, and who has no place in it. Pure.

Priorities share the turns by weight, 16 : 4 : 1 while all three wait; the callers of one priority
take turns; the requests of one caller keep their order. So nobody waits for ever, low ones
included: who is first of its caller's is served within `most_grants` turns, whatever others ask.
"""

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Generic, Protocol, TypeVar

from msgspec import Struct, field

LONGEST_RETRY_S = 60.0  # the clients of OpenAI and Anthropic heed no longer one


class Priority(Enum):
    """How urgent a caller's requests are."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


STRIDES = {Priority.HIGH: 1, Priority.NORMAL: 4, Priority.LOW: 16}
"""From one turn of a priority to its next, in the line's own time: the inverse of its weight."""


class Waiting(Protocol):
    """Who may stand in line."""

    @property
    def caller(self) -> str:
        """Whose turn its turn counts as."""

    @property
    def priority(self) -> Priority:
        """That of the caller as it asked."""


W = TypeVar("W", bound=Waiting)


def lower(one: Priority, other: Priority) -> Priority:
    """The less urgent of two."""
    return max(one, other, key=STRIDES.__getitem__)


def most_grants(priority: Priority, *, callers: int) -> int:
    """Grants after which the first request of a caller has been served.

    `callers`: those of its priority in line as it became first, itself included. Holds as long as
    whatever is granted suits it; other priorities may be as crowded as they like.
    """
    stride = STRIDES[priority]
    others = sum(stride // other + 1 for p, other in STRIDES.items() if p is not priority)
    return callers * (1 + others)


def retry_after_s(waiting: int, *, held_s: float, n_slots: int) -> float:
    """Seconds until a line of so many is likely to be served, 1 to 60.

    `held_s` is how long a slot is held.
    """
    return min(max(1.0, waiting * held_s / max(1, n_slots)), LONGEST_RETRY_S)


class _Rank(Struct, Generic[W]):
    """Those of one priority: a queue per caller, the caller whose turn it is first."""

    due: int = 0
    """When its next turn is, in the line's time."""
    by_caller: dict[str, deque[W]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[W]:
        for queue in self.by_caller.values():
            yield from queue

    def take(self, waiter: W) -> None:
        """Remove a waiter; its caller goes to the back of the round."""
        queue = self.by_caller.pop(waiter.caller)
        queue.remove(waiter)
        if queue:
            self.by_caller[waiter.caller] = queue

    def leave(self, waiter: W) -> bool:
        """Remove a waiter where it is there; the others keep their places."""
        queue = self.by_caller.get(waiter.caller)
        if queue is None or waiter not in queue:
            return False
        queue.remove(waiter)
        if not queue:
            del self.by_caller[waiter.caller]
        return True


class Line(Generic[W]):
    """Who waits for one model."""

    def __init__(self) -> None:
        self._ranks: dict[Priority, _Rank[W]] = {priority: _Rank() for priority in Priority}
        self._now = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[W]:
        for rank in self._ranks.values():
            yield from rank

    def join(self, waiter: W) -> None:
        """Stand behind the caller's own, and a new caller behind all of its priority."""
        rank = self._ranks[waiter.priority]
        if not rank.by_caller:
            # A turn saved up while nobody waited would be taken from those who did.
            rank.due = self._now + STRIDES[waiter.priority]
        rank.by_caller.setdefault(waiter.caller, deque()).append(waiter)
        self._length += 1

    def next(self, admits: Callable[[W], bool]) -> W | None:
        """Take out the first whose turn it is and whom `admits`; None where it admits none."""
        for priority in sorted(Priority, key=self._turn):
            rank = self._ranks[priority]
            waiter = next(filter(admits, rank), None)
            if waiter is not None:
                rank.take(waiter)
                self._length -= 1
                self._now = max(self._now, rank.due)
                rank.due = self._now + STRIDES[priority]
                return waiter
        return None

    def leave(self, waiter: W) -> None:
        """Take a waiter out, where it still stands."""
        self._length -= self._ranks[waiter.priority].leave(waiter)

    def surplus(self, newest: W) -> W:
        """Who goes when the line is too long: the last request of whoever has the most in it.

        That is `newest` unless another caller has more: nobody is refused for a greedier one.
        """
        longest = self._ranks[newest.priority].by_caller[newest.caller]
        for rank in self._ranks.values():
            for queue in rank.by_caller.values():
                if len(queue) > len(longest):
                    longest = queue
        return longest[-1]

    def in_order(self) -> Iterator[W]:
        """All of them in the order in which they will be served if nobody joins or leaves."""
        copy = Line[W]()
        copy._now, copy._length = self._now, self._length
        for priority, rank in self._ranks.items():
            queues = {caller: deque(queue) for caller, queue in rank.by_caller.items()}
            copy._ranks[priority] = _Rank(rank.due, queues)
        while (waiter := copy.next(lambda _: True)) is not None:
            yield waiter

    def _turn(self, priority: Priority) -> tuple[int, int]:
        return self._ranks[priority].due, STRIDES[priority]
