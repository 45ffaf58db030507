"""Where callers wait for a slot, under which name, and what they wish for. The fleet's front.

Owns no instance: it puts callers in line and has the fleet's loop look.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from types import TracebackType

from planners.instances.purposes import with_embedders
from planners.instances.twins import Shared, shared
from planners.model import ModelId, ServedModel
from planners.plan import InstanceId
from planners.settings import ContextPolicy
from planners.waiting.line import Priority, lower
from supervisor.desired import Desired
from supervisor.instance import Instance
from supervisor.leases.desk import Waiter
from supervisor.leases.lease import Lease, ModelUnavailable, WaitTimedOut
from supervisor.leases.lease_book import LeaseBook
from supervisor.leases.wishes import Wishes
from supervisor.models.catalogue import Catalogue
from supervisor.records.kept_contexts import KeptContexts

SOON_S = 1.0  # a model that is to go within that is not left to the loop's cadence


class Leased:
    """The block of a lease: a ready child, and a slot of it, for as long as it lasts.

    By hand, since every request passes here. Entering it raises LeaseError.
    """

    __slots__ = (
        "_lease", "_leasing", "after", "caller", "can_pause", "context", "keep_alive_s", "model_id",
        "priority", "takes_slot",
    )  # fmt: skip

    _lease: Lease

    def __init__(
        self,
        leasing: "Leasing",
        model_id: ModelId,
        caller: str,
        keep_alive_s: float | None,
        context: int | None,
        priority: Priority,
        takes_slot: bool,
        can_pause: bool,
        after: Lease | None,
    ) -> None:
        self._leasing, self.model_id, self.caller = leasing, model_id, caller
        self.keep_alive_s, self.context, self.takes_slot = keep_alive_s, context, takes_slot
        self.can_pause, self.after = can_pause, after
        self.priority = priority
        """The request's own, which can only lower its caller's."""

    async def __aenter__(self) -> Lease:
        at_once = self._leasing.taken_at_once(self)
        self._lease = at_once if at_once is not None else await self._leasing.taken(self)
        return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leasing.give_back(self._lease, is_done=exc is None)


class Leasing:
    """Leases on models by name."""

    def __init__(
        self,
        book: LeaseBook,
        catalogue: Catalogue,
        instances: Mapping[InstanceId, Instance],
        *,
        contexts: KeptContexts,
        desired: Callable[[], Desired],
        look: Callable[[], None],
    ) -> None:
        self.wishes = Wishes(contexts)
        self._book, self._catalogue, self._instances = book, catalogue, instances
        self._desired, self._look = desired, look
        self._listing: Mapping[ModelId, ServedModel] = {}
        self._shared = shared({})

    def processes(self) -> Shared:
        """The models on offer, those that share a process as one."""
        if self._catalogue.models is not self._listing:
            self._listing = self._catalogue.models
            self._shared = shared(with_embedders(self._listing))
        return self._shared

    def of(self, model_id: ModelId) -> list[Instance]:
        """The instances that serve the model, under whichever of its names."""
        host = self.processes().host(model_id)
        return [i for i in self._instances.values() if i.model_id == host]

    def taken_at_once(self, wish: Leased) -> Lease | None:
        """A free slot, where whoever asks wishes for nothing else. Raises Stopping."""
        if wish.keep_alive_s is not None or wish.context is not None:
            return None
        model_id = wish.model_id
        return self._book.take(
            self.processes().hosts.get(model_id, model_id),
            now_s=monotonic(),
            takes_slot=wish.takes_slot,
            can_pause=wish.can_pause,
            after=wish.after,
        )

    async def taken(self, wish: Leased) -> Lease:
        """The lease that is wished for. Raises LeaseError."""
        host = self.processes().host(wish.model_id)
        while True:
            try:
                return await self._granted(host, wish)
            except ModelUnavailable:
                before, host = host, self.processes().host(wish.model_id)
                if host == before:
                    raise
                # A reload had it share another one's process meanwhile: wait in that one's line.

    def give_back(self, lease: Lease, *, is_done: bool) -> None:
        """Frees the slot for whoever is next; `is_done` is False where its caller broke off."""
        self._book.give_back(lease, now_s=monotonic(), is_done=is_done)
        instance = self._instances.get(lease.instance_id)
        ends_soon = instance is not None and instance.keep_alive_s < SOON_S
        if ends_soon or self._book.has_unserved:
            self._look()  # else the loop's own cadence is soon enough

    async def _granted(self, model_id: ModelId, wish: Leased) -> Lease:
        settings = self._desired().settings
        if wish.keep_alive_s is not None:
            self._remember_keep_alive(model_id, wish.keep_alive_s)
        context = self._wanted_context(model_id, wish.context)
        is_exact = settings.context_policy is ContextPolicy.CLIENT
        now_s, takes_slot = monotonic(), wish.takes_slot
        at_once = self._book.take(
            model_id,
            now_s=now_s,
            context=context,
            is_exact=is_exact,
            takes_slot=takes_slot,
            can_pause=wish.can_pause,
            after=wish.after,
        )
        if at_once is not None:
            return at_once
        waiter = self._book.ask(
            model_id,
            caller=wish.caller,
            now_s=now_s,
            priority=lower(wish.priority, settings.callers.priority(wish.caller)),
            context=context,
            is_exact=is_exact,
            takes_slot=takes_slot,
            can_pause=wish.can_pause,
            after=wish.after,
        )
        if self._book.lacks(model_id):
            self._look()  # else a slot comes free by itself
        return await self._in_line(waiter, wait_s=settings.wait_s)

    async def _in_line(self, waiter: Waiter, *, wait_s: float) -> Lease:
        """What it is granted within `wait_s`; whoever leaves, and why, is in no line."""
        granted = False
        try:
            async with asyncio.timeout(wait_s):
                lease = await asyncio.shield(waiter.granted)
            granted = True
        except TimeoutError as exc:
            model_id = waiter.model_id
            raise WaitTimedOut(
                model_id=model_id,
                waited_s=wait_s,
                place=self._book.place(waiter),
                waiting=self._book.waiting(model_id),
                retry_after_s=self._book.retry_after_s(model_id),
            ) from exc
        finally:
            if not granted:
                self._book.leave(waiter, now_s=monotonic())
        return lease

    def _wanted_context(self, model_id: ModelId, asked: int | None) -> int:
        served = self.processes().models.get(model_id)
        if served is None:  # it went while its caller was read
            return 0
        policy, rules = self._desired().settings.context_policy, self._desired().rules
        return self.wishes.context(served, asked, policy=policy, rules=rules)

    def _remember_keep_alive(self, model_id: ModelId, keep_alive_s: float) -> None:
        self.wishes.keep_alive(model_id, keep_alive_s)
        for instance in self.of(model_id):
            instance.keep_alive_s = keep_alive_s
