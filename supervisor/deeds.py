"""What reconcile's actions come to: instances begun, told to end, and who is told that none is.

The fleet's loop alone calls it, and so it is the one writer of the set of instances.
"""

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic

import structlog

from planners.backends import Engine
from planners.instances.actions import (
    Action,
    Allow,
    Move,
    Refuse,
    Restart,
    Start,
    Stop,
    Yield,
)
from planners.launch_key import launch_key
from planners.lessons.learning import learned_reasons
from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan
from planners.view import Observed
from supervisor.children.child_logs import ChildLog
from supervisor.desired import Desired
from supervisor.instance import Instance, Trial
from supervisor.leases.lease import ModelUnavailable
from supervisor.leases.lease_book import LeaseBook
from supervisor.leases.leasing import Leasing
from supervisor.machine import Machine
from supervisor.moving.asking import Moving
from supervisor.preflight import Preflights
from supervisor.records.kept import Records
from supervisor.shop import Shop

LONGEST_REPLY_S = 24 * 3600.0  # a drain that cuts nothing ends too

log = structlog.get_logger(__name__)


class Deeds:
    """Carries out one action after the other."""

    def __init__(
        self,
        shop: Shop,
        instances: dict[InstanceId, Instance],
        *,
        leasing: Leasing,
        machine: Machine,
        preflights: Preflights,
        records: Records,
        desired: Callable[[], Desired],
        running: Callable[[], Iterable[Observed]],
        moving: Callable[[], Moving],
        look: Callable[[], None],
    ) -> None:
        self.yielded_s: dict[ModelId, float] = {}
        """When models ended their turn, monotonic."""
        self.told: dict[ModelId, str] = {}
        """The launch of which whoever pinned the model was told that it cannot be."""
        self._shop, self._instances, self._leasing = shop, instances, leasing
        self._book: LeaseBook = shop.book
        self._machine, self._preflights = machine, preflights
        self._journal, self._history = records.journal, records.history
        self._child_logs = records.child_logs
        self._desired, self._running, self._moving, self._look = desired, running, moving, look
        self._launched = 0

    def begin(self, action: Action, tasks: asyncio.TaskGroup) -> None:
        """Begin it and return at once; what takes time is a task of `tasks`."""
        match action:
            case Start(plan) | Restart(_, plan) if plan.doubt is not None:
                self._preflights.begin(plan, engine=self._engine(plan), tasks=tasks)
            case Start():
                self._start(action, tasks)
            case Restart(instance_id, plan, reason, context):
                self._preflights.forget(plan.model_id)
                self.told.pop(plan.model_id, None)
                instance = self._instances[instance_id]
                instance.serves_context = context
                instance.resume(plan, self._engine(plan), reason=reason)
            case Stop(instance_id, reason, finishes=finishes):
                drain_s = LONGEST_REPLY_S if finishes else self._desired().settings.finish_s
                instance = self._instances[instance_id]
                instance.stop(reason, action.departure, drain_s=drain_s)
            case Yield(instance_id, reason):
                instance = self._instances[instance_id]
                self.yielded_s[instance.model_id] = monotonic()
                instance.stop(reason, action.departure, drain_s=LONGEST_REPLY_S)
            case Move(instance_id):
                self._moving().begin(self._instances[instance_id], action)
            case Allow(instance_id, context, reason):
                self._allow(self._instances[instance_id], context, reason)
            case Refuse():
                self._refuse(action)

    def _start(self, start: Start, tasks: asyncio.TaskGroup) -> None:
        self._preflights.forget(start.plan.model_id)
        plan = start.plan
        self.yielded_s.pop(plan.model_id, None)
        self.told.pop(plan.model_id, None)
        served = self._leasing.processes().models[plan.model_id]
        keep_alive_s = self._leasing.wishes.keep_alive_s(served)
        self.launch(start, tasks, keep_alive_s=keep_alive_s)

    def launch(
        self,
        start: Start,
        tasks: asyncio.TaskGroup,
        *,
        keep_alive_s: float,
        trial: Trial | None = None,
        engine: Engine | None = None,
    ) -> Instance:
        """A new instance, whose task has begun; `engine` where it counts for this launch alone."""
        self._launched += 1
        plan = start.plan
        instance_id = InstanceId(f"i{self._launched}")
        child_log = self._child_logs.open(plan.model_id, instance_id)
        instance = Instance(
            instance_id,
            plan=plan,
            engine=engine or self._engine(plan),
            launch_key=start.launch_key,
            keep_alive_s=keep_alive_s,
            shop=self._shop,
            child_log=child_log,
            trial=trial,
        )
        instance.serves_context = start.context
        self._instances[instance_id] = instance
        self._note_planned(instance_id, start)
        self._history.began(instance_id, self._machine.last, self._running())
        tasks.create_task(self._tend(instance, child_log), name=f"instance {instance_id}")
        return instance

    def _note_planned(self, instance_id: InstanceId, start: Start) -> None:
        plan = start.plan
        self._journal.record(
            "instance.planned",
            model_id=plan.model_id,
            instance_id=instance_id,
            reason="; ".join((start.reason, *map(str, plan.reasons))),
            backend=plan.backend,
            n_gpu_layers=plan.n_gpu_layers,
            n_ctx=plan.n_ctx,
        )
        for learned in learned_reasons(plan):
            self._journal.record(
                "plan.corrected", model_id=plan.model_id, instance_id=instance_id, reason=learned
            )

    def _allow(self, instance: Instance, context: int, reason: str) -> None:
        """Serve with what is loaded who asked for more, and say so."""
        instance.serves_context = context
        self._book.allow(instance.instance_id, context, now_s=monotonic())
        facts = {"model_id": instance.model_id, "instance_id": instance.instance_id}
        log.info("context.capped", reason=reason, n_ctx=context, **facts)
        self._journal.record(
            "context.capped",
            model_id=instance.model_id,
            instance_id=instance.instance_id,
            reason=reason,
            n_ctx=context,
        )

    def _engine(self, plan: LaunchPlan) -> Engine:
        desired = self._desired()
        there = (*(desired.engines or ()), *(newcomer.engine for newcomer in desired.newcomers))
        return next(engine for engine in there if engine.engine_id == plan.engine_id)

    def _refuse(self, refusal: Refuse) -> None:
        model_id, reason = refusal.model_id, refusal.reason
        error = ModelUnavailable(
            model_id=model_id,
            reason=reason,
            retry_after_s=refusal.retry_after_s,
            log_tail=refusal.log_tail,
        )
        self._preflights.forget(model_id)
        refused = self._book.refuse(model_id, error)
        if not refused and (served := self._leasing.processes().models.get(model_id)):
            self.told[model_id] = launch_key(served, self._desired().rules)
        log.warning("model.refused", model_id=model_id, reason=reason, callers=refused)
        self._journal.record("model.refused", model_id=model_id, reason=reason, callers=refused)

    async def _tend(self, instance: Instance, child_log: ChildLog) -> None:
        """Run one instance to its end, then forget it."""
        try:
            with child_log:
                await instance.run()
        finally:
            del self._instances[instance.instance_id]
            self._machine.ended(instance.observe())
            self._forget_keep_alive(instance.model_id)
            self._look()

    def _forget_keep_alive(self, model_id: ModelId) -> None:
        """What callers wished for ends with the instance, unless somebody already waits anew."""
        if not self._leasing.of(model_id):
            self._moving().forget(model_id)
        if not self._leasing.of(model_id) and not self._book.waiting(model_id):
            self._leasing.wishes.forget_keep_alive(model_id)
