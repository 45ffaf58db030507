"""What becomes of requests under leases, as their callers' side tells it, and of their children."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import structlog

from planners.lessons.usage import Usage
from planners.plan import InstanceId, LaunchPlan
from supervisor.engines.rollout import Rollout
from supervisor.instance import Instance
from supervisor.leases.lease import Lease
from supervisor.leases.lease_book import LeaseBook
from supervisor.machine import Machine
from supervisor.models.catalogue import Catalogue
from supervisor.records.kept import Records

log = structlog.get_logger(__name__)


class Outcomes:
    """Hands on what is told to whom it concerns: instances, an engine on trial, the records."""

    def __init__(
        self,
        instances: Mapping[InstanceId, Instance],
        *,
        book: LeaseBook,
        catalogue: Catalogue,
        machine: Machine,
        records: Records,
        rollout: Rollout,
    ) -> None:
        self._instances, self._book, self._catalogue = instances, book, catalogue
        self._machine, self._rollout = machine, rollout
        self._journal, self._history = records.journal, records.history

    async def until_gone(self, lease: Lease, *, within_s: float) -> str | None:
        """Return once the child behind `lease` is known to be gone, or `within_s` have passed.

        Asked by who could not reach it, or lost it: one that runs on where nobody reaches it ends.
        Why it ended, as a clause; None where that is not known.
        """
        if missed := self._instances.get(lease.instance_id):
            missed.missed(lease.socket_path)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._book.until_gone(lease)
        instance = self._instances.get(lease.instance_id)
        return instance.why_ended(lease.socket_path) if instance is not None else None

    def crashed_alone(self, lease: Lease) -> bool:
        """Whether the child behind `lease`, which is gone, crashed and did nothing else then."""
        instance = self._instances.get(lease.instance_id)
        return instance is not None and instance.crashed_alone(lease.socket_path)

    def blames_engine(self, lease: Lease) -> bool:
        """Whether the end of the child behind `lease` is held against its engine, not a request."""
        plan = lease.plan
        return plan is not None and self._rollout.is_suspect(plan.engine_id, plan.model_id)

    def answered(self, lease: Lease) -> None:
        """A request under `lease` was answered: the model can run."""
        if instance := self._instances.get(lease.instance_id):
            instance.answered(lease.socket_path)
        if lease.plan is not None:
            self._rollout.answered(lease.plan.engine_id)

    def resumed(
        self, lease: Lease, *, cause: str, way: str, pause_s: float, n_computed: int
    ) -> None:
        """A reply whose child was lost goes on under `lease`."""
        facts = {"way": way, "pause_s": round(pause_s, 3), "n_computed": n_computed}
        log.info("stream.resumed", model_id=lease.model_id, reason=cause, **facts)
        self._journal.record(
            "stream.resumed",
            model_id=lease.model_id,
            instance_id=lease.instance_id,
            reason=cause,
            way=way,
            pause_s=round(pause_s, 3),
            n_computed=n_computed,
        )

    def report(self, lease: Lease, usage: Usage) -> None:
        """What an exchange under `lease` did."""
        if instance := self._instances.get(lease.instance_id):
            instance.served(usage)
            if lease.plan is not None and self._book.running(instance.instance_id) == 1:
                self._learn(lease.plan, usage)

    def _learn(self, plan: LaunchPlan, usage: Usage) -> None:
        """Take a request that had its child to itself into the rates of the devices."""
        served, hardware = self._catalogue.models.get(plan.model_id), self._machine.last
        if hardware is None or served is None:
            return
        self._history.served(usage, hardware=hardware, model=served.info, plan=plan)
