"""Where callers wait for a slot, under which name, and what they wish for. The fleet's front.

Owns no instance: it puts callers in line and has the fleet's loop look.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic

from planners.model import ModelId, ServedModel
from planners.plan import InstanceId
from planners.settings import ContextPolicy
from planners.twins import Shared, shared
from supervisor.catalogue import Catalogue
from supervisor.desired import Desired
from supervisor.instance import Instance
from supervisor.lease import Lease, LeaseBook, ModelUnavailable, WaitTimedOut
from supervisor.wishes import Wishes


class Leasing:
    """Leases on models by name."""

    def __init__(
        self,
        book: LeaseBook,
        catalogue: Catalogue,
        instances: Mapping[InstanceId, Instance],
        *,
        desired: Callable[[], Desired],
        look: Callable[[], None],
    ) -> None:
        self.wishes = Wishes()
        self._book, self._catalogue, self._instances = book, catalogue, instances
        self._desired, self._look = desired, look
        self._listing: Mapping[ModelId, ServedModel] = {}
        self._shared = shared({})

    def processes(self) -> Shared:
        """The models on offer, those that share a process as one."""
        if self._catalogue.models is not self._listing:
            self._listing = self._catalogue.models
            self._shared = shared(self._listing)
        return self._shared

    def of(self, model_id: ModelId) -> list[Instance]:
        """The instances that serve the model, under whichever of its names."""
        host = self.processes().host(model_id)
        return [i for i in self._instances.values() if i.model_id == host]

    @asynccontextmanager
    async def lease(
        self, model_id: ModelId, *, caller: str, keep_alive_s: float | None, context: int | None
    ) -> AsyncIterator[Lease]:
        """A slot of a ready child for as long as the block lasts. Raises LeaseError."""
        host = self.processes().host(model_id)
        while True:
            try:
                lease = await self._granted(
                    host, caller=caller, keep_alive_s=keep_alive_s, context=context
                )
                break
            except ModelUnavailable:
                before, host = host, self.processes().host(model_id)
                if host == before:
                    raise
                # A reload had it share another one's process meanwhile: wait in that one's line.
        try:
            yield lease
        finally:
            self._book.give_back(lease, now_s=monotonic())
            self._look()

    async def _granted(
        self, model_id: ModelId, *, caller: str, keep_alive_s: float | None, context: int | None
    ) -> Lease:
        settings = self._desired().settings
        waiter = self._book.ask(
            model_id,
            caller=caller,
            now_s=monotonic(),
            context=self._wanted_context(model_id, context),
            is_exact=settings.context_policy is ContextPolicy.CLIENT,
        )
        if keep_alive_s is not None:
            self._remember_keep_alive(model_id, keep_alive_s)
        self._look()
        granted = False
        try:
            async with asyncio.timeout(settings.wait_s):
                lease = await asyncio.shield(waiter.granted)
            granted = True
        except TimeoutError as exc:
            raise WaitTimedOut(model_id=model_id, waited_s=settings.wait_s) from exc
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
