"""The slots of one open instance: who holds them, and whom they suit. Of lines the book knows.

A slot is free, held by a lease, or kept for the heir of what was restored into it.
"""

import asyncio
from heapq import heapify, heappop, heappush

from msgspec import Struct, field

from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan
from planners.waiting.line import Priority
from supervisor.leases.lease import Lease

HEIRS_S = 60.0  # a reply that is to go on is in line long before; who has not come by then left
QUESTIONS = 8  # at once beside the slots: each takes a connection, and a thread of the child


class Opening(Struct, frozen=True):
    """A ready child's slots, as its instance offers them."""

    instance_id: InstanceId
    model_id: ModelId
    socket_path: str
    n_slots: int
    context: int
    embedding: bool
    serves: int = 0
    """The context that callers may ask for though `context` is less: more was not to be had."""
    plan: LaunchPlan | None = None
    heirs: tuple["Heir", ...] = ()
    """Who finds what another child knew of it."""


class Heir(Struct, frozen=True):
    """The slot in which the cache of another child's slot was restored."""

    instance_id: InstanceId
    slot: int
    """There."""
    to_slot: int
    """Here."""
    n_tokens: int
    ids: tuple[int, ...] = ()
    """These tokens, where they are known."""


class Waiter(Struct, eq=False):
    """One caller in line. `granted` gets the lease, or the LeaseError that ends the wait."""

    model_id: ModelId
    caller: str
    asked_at_s: float
    granted: asyncio.Future[Lease]
    priority: Priority = Priority.NORMAL
    context: int = 0
    """Tokens that it needs; 0 is whatever there is."""
    is_exact: bool = False
    """Whether more than `context` will not do either."""
    takes_slot: bool = True
    """False for a question that the child answers beside its slots."""
    can_pause: bool = True
    after: Lease | None = None
    """The lease that it had on a child which made way for this one."""


class Desk(Struct):
    """One open instance: who holds which slot."""

    opening: Opening
    free: list[int]
    """A heap: the lowest slot is granted first."""
    opened_s: float
    idle_since_s: float | None
    held: dict[int, Lease] = field(default_factory=dict)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no lease is held."""
    busy: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while one is."""
    departures: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    heirs: dict[tuple[InstanceId, int], Heir] = field(default_factory=dict)
    """Those who have not come yet, by the lease they had."""

    def __post_init__(self) -> None:
        self.idle.set()
        self.heirs.update({(heir.instance_id, heir.slot): heir for heir in self.opening.heirs})

    def admits(self, context: int, is_exact: bool) -> bool:
        """Whether its context is what a caller may have who asks for `context`."""
        offered = (self.opening.context, self.opening.serves)
        if not context or context in offered:
            return True
        return not is_exact and context <= max(offered)

    def serves(self, waiter: Waiter) -> bool:
        """The same of a waiter."""
        return self.admits(waiter.context, waiter.is_exact)

    def has_place(self, *, takes_slot: bool) -> bool:
        """Whether one more can be served now."""
        if takes_slot:
            return bool(self.free)
        return sum(slot < 0 for slot in self.held) < QUESTIONS

    def can_serve(self, waiter: Waiter) -> bool:
        """Whether the waiter could be served now."""
        return self.has_place(takes_slot=waiter.takes_slot) and self.serves(waiter)

    def is_heir(self, waiter: Waiter) -> bool:
        """Whether its cache is here, and its slot free."""
        after = waiter.after
        heir = self.heirs.get((after.instance_id, after.slot)) if after is not None else None
        return heir is not None and heir.to_slot in self.free

    def take(
        self,
        *,
        now_s: float,
        waited_s: float,
        takes_slot: bool,
        can_pause: bool = True,
        after: Lease | None = None,
    ) -> Lease:
        """A lease on its heir's slot, on the lowest free one, or on none where none is needed."""
        # Held all the same: a child is not stopped while it is asked something.
        heir = None
        if self.heirs and now_s - self.opened_s > HEIRS_S:
            self.heirs.clear()
        if not takes_slot:
            slot = min((0, *self.held)) - 1
        elif self.heirs:
            slot, heir = self._inherited(after)
        else:
            slot = heappop(self.free)
        opening = self.opening
        lease = self.held[slot] = Lease(
            opening.instance_id,
            opening.model_id,
            slot,
            opening.socket_path,
            opening.context,
            opening.embedding,
            waited_s,
            now_s,
            opening.plan,
            can_pause,
            heir.n_tokens if heir is not None else 0,
            heir.ids if heir is not None else (),
        )
        if self.idle_since_s is not None:
            self.idle_since_s = None
            self.idle.clear()
            self.busy.set()
        return lease

    def _inherited(self, after: Lease | None) -> tuple[int, Heir | None]:
        """The slot for whoever comes while heirs are awaited, and whose heir it is."""
        heir = self.heirs.pop((after.instance_id, after.slot), None) if after is not None else None
        if heir is not None and heir.to_slot in self.free:
            slot = heir.to_slot
        else:
            heir = None
            kept = {heir.to_slot for heir in self.heirs.values()}
            slot = min(self.free, key=lambda slot: (slot in kept, slot))
            self.heirs = {key: h for key, h in self.heirs.items() if h.to_slot != slot}
        self.free.remove(slot)
        heapify(self.free)
        return slot, heir

    def put_back(self, lease: Lease, *, now_s: float) -> bool:
        """Free the slot of a lease; False where that lease does not hold it any more."""
        # By identity: a restarted instance keeps its id, and the slot may be another caller's now.
        if self.held.get(lease.slot) is not lease:
            return False
        del self.held[lease.slot]
        if lease.slot >= 0:
            heappush(self.free, lease.slot)
        if not self.held:
            self.idle_since_s = now_s
            self.idle.set()
            self.busy.clear()
        return True
