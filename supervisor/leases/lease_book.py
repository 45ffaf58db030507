"""Slots in use and the callers that wait for one. Synchronous, so atomic on the loop: no locks.

ask ─ the model's instance has a free slot → granted at once
    └ else → in line: one line a model, in the order of planners.waiting.line → granted in turn
leave, refuse, close: a waiter is out of the line, or is told why it will not be served
"""

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from planners.model import ModelId
from planners.plan import InstanceId
from planners.view import Demand, InLine, LineSeen
from planners.waiting.line import Line, Priority, retry_after_s
from supervisor.leases.desk import Desk, Opening, Waiter
from supervisor.leases.lease import RETRY_AFTER_S, Lease, LeaseError, LineFull, Stopping

HELD_WEIGHT = 0.2  # of the newest request in the moving average of how long slots are held


class LeaseBook:
    """The one owner of slots and lines. What changes them runs to its end without an await."""

    def __init__(self, *, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._desks: dict[InstanceId, Desk] = {}
        self._serving: dict[ModelId, Desk] = {}
        self._lines: dict[ModelId, Line[Waiter]] = {}
        """None of them is empty."""
        self._held_s: dict[ModelId, float] = {}
        """How long a slot is held, a moving average."""
        self._awaited: dict[tuple[InstanceId, int], asyncio.Event] = {}
        """Set once the lease on that slot is given back, where somebody waits for it."""
        self._stopping = False

    def ask(
        self,
        model_id: ModelId,
        *,
        caller: str,
        now_s: float,
        priority: Priority = Priority.NORMAL,
        context: int = 0,
        is_exact: bool = False,
        takes_slot: bool = True,
        can_pause: bool = True,
        after: Lease | None = None,
    ) -> Waiter:
        """A waiter, served at once when a slot is free. Raises LineFull, Stopping.

        A full line takes who has fewer places in it than another, whose last waiter is told then.
        `context`: tokens that it needs, `is_exact`: and no more of them; 0 is whatever there is.
        `after`: the lease of whose reply this is the rest; it finds a place in any line.
        """
        if self._stopping:
            raise Stopping
        line = self._lines.setdefault(model_id, Line())
        granted = asyncio.get_running_loop().create_future()
        waiter = Waiter(
            model_id, caller, now_s, granted, priority, context, is_exact, takes_slot, can_pause,
            after,
        )  # fmt: skip
        line.join(waiter)
        if (desk := self._serving.get(model_id)) and desk.has_place(takes_slot=takes_slot):
            self._grant(model_id, now_s=now_s)
        if after is None and not waiter.granted.done() and len(line) > self.max_waiting:
            self._turn_away(line.surplus(waiter), newest=waiter)
        return waiter

    def take(
        self,
        model_id: ModelId,
        *,
        now_s: float,
        context: int = 0,
        is_exact: bool = False,
        takes_slot: bool = True,
        can_pause: bool = True,
        after: Lease | None = None,
    ) -> Lease | None:
        """A free slot at once, as nearly always; None where there is none. Raises Stopping."""
        if self._stopping:
            raise Stopping
        desk = self._serving.get(model_id)
        if desk is None or model_id in self._lines:
            return None
        if not (desk.free if takes_slot else desk.has_place(takes_slot=False)):
            return None
        if context and not desk.admits(context, is_exact):
            return None
        return desk.take(
            now_s=now_s, waited_s=0.0, takes_slot=takes_slot, can_pause=can_pause, after=after
        )

    def _turn_away(self, waiter: Waiter, *, newest: Waiter) -> None:
        """Tell one that its place is gone; the newest hears of it by the raised LineFull."""
        self._withdraw(waiter)
        error = LineFull(
            model_id=waiter.model_id,
            waiting=self.max_waiting,
            retry_after_s=self.retry_after_s(waiter.model_id),
        )
        if waiter is newest:
            raise error
        if not waiter.granted.done():
            waiter.granted.set_exception(error)

    def leave(self, waiter: Waiter, *, now_s: float) -> None:
        """Take a waiter out, wherever it stands; a lease granted meanwhile is given back."""
        self._withdraw(waiter)
        granted = waiter.granted
        if not granted.done():
            granted.cancel()
        elif not granted.cancelled() and granted.exception() is None:
            self.give_back(granted.result(), now_s=now_s)

    def give_back(self, lease: Lease, *, now_s: float, is_done: bool = True) -> None:
        """Free the lease's slot for the next in line; a lease of a closed instance is just over.

        `is_done`: what it was taken for has come to its end; else the child may be at it still.
        """
        if desk := self._desks.get(lease.instance_id):
            if desk.put_back(lease, now_s=now_s) and lease.slot >= 0:
                held_s = now_s - lease.granted_at_s
                before_s = self._held_s.get(lease.model_id, held_s)
                self._held_s[lease.model_id] = before_s + HELD_WEIGHT * (held_s - before_s)
                desk.departures += not is_done
            if self._awaited and (back := self._awaited.pop((lease.instance_id, lease.slot), None)):
                back.set()
            if self._lines:
                self._grant(lease.model_id, now_s=now_s)

    def open(self, opening: Opening, *, now_s: float) -> None:
        """Offer a ready child's slots; the model's line moves at once."""
        slots = list(range(opening.n_slots))
        desk = Desk(opening, slots, opened_s=now_s, idle_since_s=now_s)
        self._desks[opening.instance_id] = self._serving[opening.model_id] = desk
        if opening.heirs:
            self._grant_heirs(desk, now_s=now_s)
        self._grant(opening.model_id, now_s=now_s)

    def _grant_heirs(self, desk: Desk, *, now_s: float) -> None:
        """Whose reply was begun goes before who has none yet, and to the slot that knows it."""
        line = self._lines.get(desk.opening.model_id, Line[Waiter]())
        for waiter in [waiter for waiter in line if desk.is_heir(waiter)]:
            line.leave(waiter)
            self._give(desk, waiter, now_s=now_s)

    def allow(self, instance_id: InstanceId, context: int, *, now_s: float) -> None:
        """Serve callers who ask for up to `context` with what is loaded, though it is less."""
        if desk := self._desks.get(instance_id):
            desk.opening = replace(desk.opening, serves=context)
            self._grant(desk.opening.model_id, now_s=now_s)

    def shut(self, instance_id: InstanceId) -> None:
        """Grant no more of this instance's slots; leases already held go on."""
        desk = self._desks.get(instance_id)
        if desk and self._serving.get(desk.opening.model_id) is desk:
            del self._serving[desk.opening.model_id]

    def close(self, instance_id: InstanceId) -> None:
        """Forget an instance whose child is gone; its leases are void."""
        self.shut(instance_id)
        if desk := self._desks.pop(instance_id, None):
            desk.idle.set()
            desk.closed.set()

    def refuse(self, model_id: ModelId, error: LeaseError) -> int:
        """End every wait for the model with `error`; how many there were."""
        waiters = list(self._lines.pop(model_id, ()))
        for waiter in waiters:
            if not waiter.granted.done():
                waiter.granted.set_exception(error)
        return len(waiters)

    def stop(self) -> None:
        """The daemon goes down: nobody new, and nobody waits in vain."""
        self._stopping = True
        for model_id in list(self._lines):
            self.refuse(model_id, Stopping())

    async def until_idle(self, instance_id: InstanceId) -> None:
        """Return once no lease is held on an instance."""
        if desk := self._desks.get(instance_id):
            await desk.idle.wait()

    async def until_busy(self, instance_id: InstanceId) -> None:
        """Return once a lease is held on an open instance."""
        desk = self._desks.get(instance_id)
        await (desk.busy if desk else asyncio.Event()).wait()  # none is held on a closed one

    async def until_gone(self, lease: Lease) -> None:
        """Return once the child behind `lease` is known to be gone, leases or not."""
        desk = self._desks.get(lease.instance_id)
        if desk and desk.opening.socket_path == lease.socket_path:
            await desk.closed.wait()

    def held(self, instance_id: InstanceId) -> tuple[Lease, ...]:
        """The leases on an instance."""
        desk = self._desks.get(instance_id)
        return tuple(desk.held.values()) if desk else ()

    async def until_back(self, lease: Lease) -> None:
        """Return once a lease is held no more."""
        if any(held is lease for held in self.held(lease.instance_id)):
            key = lease.instance_id, lease.slot
            await self._awaited.setdefault(key, asyncio.Event()).wait()

    def running(self, instance_id: InstanceId) -> int:
        """Leases held on an instance."""
        desk = self._desks.get(instance_id)
        return len(desk.held) if desk else 0

    def departures(self, instance_id: InstanceId) -> int:
        """Leases on an instance that were given back before what they were for was done."""
        desk = self._desks.get(instance_id)
        return desk.departures if desk else 0

    def idle_since_s(self, instance_id: InstanceId) -> float | None:
        """Since when no lease is held on an open instance; None while busy or not open."""
        desk = self._desks.get(instance_id)
        return desk.idle_since_s if desk else None

    def waiting(self, model_id: ModelId) -> int:
        """Callers in the model's line."""
        return len(self._lines.get(model_id, ()))

    @property
    def has_unserved(self) -> bool:
        """True while anybody waits for more than a slot of a child that is there."""
        return bool(self._lines) and any(self.lacks(model_id) for model_id in self._lines)

    def lacks(self, model_id: ModelId) -> bool:
        """Whether somebody in the model's line waits for a child, or for another one."""
        desk, line = self._serving.get(model_id), self._lines.get(model_id, ())
        return any(desk is None or not desk.serves(waiter) for waiter in line)

    def retry_after_s(self, model_id: ModelId) -> float:
        """When who finds no place may try again, by how long slots were held of late."""
        desk, held_s = self._serving.get(model_id), self._held_s.get(model_id)
        if held_s is None:
            return RETRY_AFTER_S
        n_slots = desk.opening.n_slots if desk else 1
        return retry_after_s(self.waiting(model_id), held_s=held_s, n_slots=n_slots)

    def place(self, waiter: Waiter) -> int:
        """Its number in its line, by the order in which they would be served; 1 is the next."""
        line = self._lines.get(waiter.model_id, Line[Waiter]())
        return next((n for n, other in enumerate(line.in_order(), 1) if other is waiter), 1)

    def lines(self, *, now_s: float) -> tuple[LineSeen, ...]:
        """Every line that somebody stands in, for people."""
        return tuple(
            LineSeen(
                model_id=model_id,
                waiting=len(line),
                oldest_wait_s=max(now_s - waiter.asked_at_s for waiter in line),
                callers=_in_line(line),
            )
            for model_id, line in self._lines.items()
        )

    def demand(self, *, now_s: float) -> Mapping[ModelId, Demand]:
        """Who wants what, by model."""
        return {
            model_id: Demand(
                waiting=len(line),
                oldest_wait_s=max(now_s - waiter.asked_at_s for waiter in line),
                context=self._lacking_context(model_id, line),
            )
            for model_id, line in self._lines.items()
        }

    def _lacking_context(self, model_id: ModelId, line: Line[Waiter]) -> int:
        """What to load for those whom no open desk admits; the one who waits longest decides."""
        desk = self._serving.get(model_id)
        lacking = [w for w in line if w.context and not (desk and desk.serves(w))]
        first = min(lacking, key=lambda waiter: waiter.asked_at_s, default=None)
        if first is None or first.is_exact:
            return first.context if first else 0
        return max(waiter.context for waiter in lacking)

    def _grant(self, model_id: ModelId, *, now_s: float) -> None:
        desk, line = self._serving.get(model_id), self._lines.get(model_id)
        while desk and line and (waiter := line.next(desk.can_serve)):
            self._give(desk, waiter, now_s=now_s)
        if line is not None and not line:
            del self._lines[model_id]

    def _give(self, desk: Desk, waiter: Waiter, *, now_s: float) -> None:
        if waiter.granted.done():
            return
        lease = desk.take(
            now_s=now_s,
            waited_s=now_s - waiter.asked_at_s,
            takes_slot=waiter.takes_slot,
            can_pause=waiter.can_pause,
            after=waiter.after,
        )
        waiter.granted.set_result(lease)

    def _withdraw(self, waiter: Waiter) -> None:
        line = self._lines.get(waiter.model_id)
        if line is None:
            return
        line.leave(waiter)
        if not line:
            del self._lines[waiter.model_id]


def _in_line(line: Line[Waiter]) -> tuple[InLine, ...]:
    """Each caller of a line once, in the order of their first ones."""
    waiting: dict[tuple[str, Priority], int] = {}
    first: dict[tuple[str, Priority], int] = {}
    for place, waiter in enumerate(line.in_order(), 1):
        who = (waiter.caller, waiter.priority)
        waiting[who] = waiting.get(who, 0) + 1
        first.setdefault(who, place)
    return tuple(InLine(*who, waiting[who], place) for who, place in first.items())
