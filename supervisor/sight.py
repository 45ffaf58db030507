"""What the fleet sees: each instance as it is, and all that reconcile decides by, at one moment."""

from collections.abc import Callable, Mapping
from math import inf
from time import monotonic

from msgspec.structs import replace

from planners.hardware import HardwareProfile
from planners.model import ModelId
from planners.plan import InstanceId
from planners.settings import ContextPolicy
from planners.view import Observed, View
from supervisor.deeds import Deeds
from supervisor.desired import Desired
from supervisor.instance import Instance
from supervisor.leases.lease_book import LeaseBook
from supervisor.leases.leasing import Leasing
from supervisor.machine import Machine
from supervisor.models.catalogue import Catalogue
from supervisor.moving.asking import Moving
from supervisor.preflight import Preflights
from supervisor.records.kept import Records


class Sight:
    """Reads its owners; owns nothing."""

    def __init__(
        self,
        instances: Mapping[InstanceId, Instance],
        *,
        book: LeaseBook,
        catalogue: Catalogue,
        leasing: Leasing,
        machine: Machine,
        preflights: Preflights,
        records: Records,
        desired: Callable[[], Desired],
        moving: Callable[[], Moving],
        deeds: Callable[[], Deeds],
    ) -> None:
        self._instances, self._book, self._catalogue = instances, book, catalogue
        self._leasing, self._machine, self._preflights = leasing, machine, preflights
        self._history, self._contexts = records.history, records.contexts
        self._desired, self._moving, self._deeds = desired, moving, deeds

    def running(self) -> tuple[Observed, ...]:
        """Every instance as it is now."""
        return tuple(map(self._seen, self._instances.values()))

    def last(self) -> View | None:
        """By the last reading of the machine; None before the first."""
        return None if self._machine.last is None else self.view(self._machine.last)

    def view(self, profile: HardwareProfile) -> View:
        """Everything, with `profile` where the machine was not read since."""
        now_s = monotonic()
        models, instances = self._leasing.processes().models, self.running()
        demand = self._book.demand(now_s=now_s)
        gone = {*demand, *(seen.model_id for seen in instances)}.difference(models)
        return View(
            models=models,
            instances=instances,
            demand=demand,
            hardware=self._machine.last or profile,
            engines=self._desired().engines,
            rules=self._desired().rules,
            settings=self._desired().settings,
            learned=self._history.learned,
            dry_runs=self._preflights.dry_runs,
            contexts=self.wanted_contexts(),
            yielded_s=dict(self._deeds().yielded_s),
            settling=self._machine.settling(),
            told=dict(self._deeds().told),
            broken=self._catalogue.why_broken(gone) if gone else {},
            moving=self._moving().models,
            resting=self._moving().resting(now_s),
            unmoved=dict(self._moving().unmoved),
            on_trial=frozenset(new.engine.engine_id for new in self._desired().newcomers),
        )

    def wanted_contexts(self) -> dict[ModelId, int]:
        """What callers once asked for, where the policy keeps to it."""
        ratchets = self._desired().settings.context_policy is ContextPolicy.RATCHET
        return dict(self._contexts.contexts) if ratchets else {}

    def _seen(self, instance: Instance) -> Observed:
        seen = instance.observe()
        if seen.expires_at is not None and self.is_pinned(seen.model_id):
            return replace(seen, expires_at=inf)
        return seen

    def is_pinned(self, model_id: ModelId) -> bool:
        """Whether the operator wants it to stay loaded."""
        served = self._leasing.processes().models.get(model_id)
        return served is not None and served.settings.pin
