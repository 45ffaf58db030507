"""The loop that brings the machine to what is desired, and the door through which slots are leased.

Level-triggered, one writer: an event says "look", never "do"; only Fleet.run changes the instances.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from math import inf
from time import monotonic

import structlog
from msgspec.structs import replace

from planners.backends import Engine
from planners.hardware import HardwareProfile
from planners.instances.actions import (
    Action,
    Allow,
    Departure,
    Move,
    Refuse,
    Restart,
    Start,
    Stop,
    Yield,
)
from planners.launch_key import launch_key
from planners.lessons.learning import learned_reasons
from planners.lessons.usage import Usage
from planners.model import BrokenFile, ModelId, ServedModel
from planners.plan import InstanceId, LaunchPlan
from planners.settings import ContextPolicy
from planners.view import LineSeen, Observed, View
from planners.waiting.line import Priority
from supervisor.children.child_logs import ChildLog
from supervisor.desired import Desired, Ground
from supervisor.engines.rollout import Rollout, Tried
from supervisor.instance import Instance, Trial
from supervisor.leases.lease import Lease, ModelUnavailable
from supervisor.leases.lease_book import LeaseBook
from supervisor.leases.leasing import Leased, Leasing
from supervisor.machine import FRESH_S, Machine
from supervisor.models.catalogue import Catalogue
from supervisor.moving.asking import Moving
from supervisor.moving.kept_slots import KeptSlots
from supervisor.moving.pressure_watch import PressureWatch, Watched
from supervisor.moving.slots import SlotShelf
from supervisor.planner import Planner
from supervisor.preflight import PreflightCache, Preflights
from supervisor.probe import HardwareProbe
from supervisor.prospects import Prospects
from supervisor.records.kept import Records
from supervisor.settling import SAMPLE_S
from supervisor.shop import Shop

SLOT_FILES_BYTES = 8 << 30  # of all conversations on disk at once; the disk keeps its own part
TICK_S = 1.0  # cadence of a look when nothing happens; what a lost event costs at most
LONGEST_REPLY_S = 24 * 3600.0  # a drain that cuts nothing ends too
PROFILE_S = 15.0  # cadence of a new profile when nothing is launched

log = structlog.get_logger(__name__)


class Fleet:
    """All instances, and who may use them. `run` is its one task; the rest asks or waits."""

    def __init__(
        self,
        desired: Desired,
        *,
        catalogue: Catalogue,
        probe: HardwareProbe,
        records: Records,
        ground: Ground,
        leaving: Callable[[str], None],
        heard_bytes: Callable[[str], int],
    ) -> None:
        self._desired = desired
        self._catalogue, self._journal = catalogue, records.journal
        self._history, self._child_logs = records.history, records.child_logs
        self._contexts = records.contexts
        self._probe = probe
        self._machine = Machine(
            probe, journal=records.journal, history=records.history, running=self.running
        )
        self._book = LeaseBook(max_waiting=desired.settings.max_waiting)
        self._instances: dict[InstanceId, Instance] = {}
        self._leasing = Leasing(
            self._book,
            catalogue,
            self._instances,
            contexts=records.contexts,
            desired=lambda: self._desired,
            look=self.look,
        )
        self._yielded_s: dict[ModelId, float] = {}
        self._told: dict[ModelId, str] = {}
        self._launched = 0
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._planner = Planner(changed=self.look, journal=records.journal)
        self._preflights = Preflights(
            PreflightCache(ground.preflights),
            environ=ground.environ,
            cwd=ground.cwd,
            changed=self.look,
        )
        self.prospects = self._new_prospects()
        self._shelf = SlotShelf(
            quota_bytes=SLOT_FILES_BYTES,
            thread=ThreadPoolExecutor(max_workers=1, thread_name_prefix="slots"),
        )
        self._shop = self._new_shop(ground, leaving=leaving, heard_bytes=heard_bytes)
        self.moving = self._new_moving()
        self.pressure = self._new_pressure()
        self.rollout = self._new_rollout()

    def _new_prospects(self) -> Prospects:
        return Prospects(
            self._planner,
            history=self._history,
            preflights=self._preflights,
            desired=lambda: self._desired,
            running=self.running,
            processes=self._leasing.processes,
            contexts=self._wanted_contexts,
            profile=self.profile,
        )

    def _new_moving(self) -> Moving:
        return Moving(
            self._shop,
            self._shelf,
            machine=self._machine,
            planner=self._planner,
            desired=lambda: self._desired,
            running=self.running,
            of=self._leasing.of,
            served=lambda model_id: self._leasing.processes().models.get(model_id),
            launch=self._launch,
            stopping=self._stopping,
        )

    def _new_pressure(self) -> PressureWatch:
        watched = Watched(
            view=lambda: None if self._machine.last is None else self._view(self._machine.last),
            read=lambda max_age_s: self._machine.read(max_age_s=max_age_s),
            instance=lambda seen: self._instances.get(seen.instance_id),
            move=self.moving.moved,
            hold_back=self._machine.hold_back,
            planner=self._planner,
            journal=self._journal,
            finish_s=lambda: self._desired.settings.finish_s,
            changed=self.look,
        )
        return PressureWatch(watched)

    def _new_rollout(self) -> Rollout:
        tried = Tried(
            newcomers=lambda: self._desired.newcomers,
            running=self.running,
            moving=lambda: self.moving.models,
            instance=lambda seen: self._instances.get(seen.instance_id),
            launches=self._history.launches,
            move=self.moving.moved,
            journal=self._journal,
        )
        return Rollout(tried)

    def _new_shop(
        self, ground: Ground, *, leaving: Callable[[str], None], heard_bytes: Callable[[str], int]
    ) -> Shop:
        """What every instance works with."""
        slots_dir = ground.slots or ground.run_dir
        return Shop(
            book=self._book,
            journal=self._journal,
            history=self._history,
            settings=lambda: self._desired.settings,
            environ=ground.environ,
            run_dir=ground.run_dir,
            slots_dir=slots_dir,
            kept_slots=KeptSlots(
                self._shelf,
                slots_dir / "kept.slots",
                journal=self._journal,
                served=lambda model_id: self._leasing.processes().models.get(model_id),
                is_on=lambda: self._desired.settings.keeps_conversations,
            ),
            cwd=ground.cwd,
            leaving=leaving,
            heard_bytes=heard_bytes,
            changed=self.look,
            device_lost=self._machine.watch.device_lost,
            is_pinned=self._is_pinned,
            room_bytes=self._machine.room_bytes,
        )

    async def run(self) -> None:
        """Look and act until stop() was called and every child is reaped."""
        async with self._planner, asyncio.TaskGroup() as tasks:
            self.moving.born_in(tasks)
            asking = tasks.create_task(self._probe.attend(self.look), name="rpc servers")
            loop = tasks.create_task(self._look_forever(tasks), name="fleet loop")
            watching = tasks.create_task(self.pressure.run(), name="memory pressure")
            trying = tasks.create_task(self.rollout.run(), name="engines on trial")
            await self._stopping.wait()
            loop.cancel()  # it may be waiting for a driver that hangs
            asking.cancel()
            watching.cancel()
            trying.cancel()
            self._preflights.stop()
            self.hurry(within_s=self._desired.settings.drain_s)
        self._shop.kept_slots.clear()

    def look(self) -> None:
        """Have the loop look at the world soon."""
        self._woken.set()

    def stop(self) -> None:
        """No new leases, drain, stop every child; run() returns when all are reaped."""
        self._stopping.set()
        self._book.stop()

    def hurry(self, *, within_s: float) -> None:
        """Have every child end, its replies within `within_s`; an earlier, shorter bound holds."""
        for instance in self._instances.values():
            instance.stop("the daemon is stopping", Departure.STOPPING, drain_s=within_s)

    def apply(self, desired: Desired) -> None:
        """Replace what is desired; instances that it does not touch keep their child."""
        self._desired = desired
        self._book.max_waiting = desired.settings.max_waiting
        self._machine.outdate()
        self.rollout.look()
        self.look()

    # What callers ask for.

    def resolve(self, name: str) -> ServedModel | None:
        """The model a caller means by `name`; of several that share a process, the one it has.

        Its recipe is that of the name: a process does not know of it.
        """
        served, processes = self._catalogue.resolve(name), self._leasing.processes()
        named = served.model_id if served else ModelId(name)  # as a launch for embeddings has
        host = processes.models.get(processes.host(named))
        if host is None or served is None or host.recipe is served.recipe:
            return host
        return replace(host, recipe=served.recipe)

    def offered(self, name: str) -> ServedModel | None:
        """Likewise, but as it is offered itself, also where it shares another's process."""
        return self._catalogue.resolve(name)

    def models(self) -> tuple[ServedModel, ...]:
        """All that is offered, by name."""
        return tuple(sorted(self._catalogue.models.values(), key=lambda m: m.model_id.lower()))

    def processes(self) -> tuple[ServedModel, ...]:
        """What may run: of names that share a process one, and launches for embeddings too."""
        return tuple(self._leasing.processes().models.values())

    def broken(self) -> tuple[BrokenFile, ...]:
        """Files that look like models and are none."""
        return self._catalogue.broken

    def running(self) -> tuple[Observed, ...]:
        """Every instance as it is now."""
        return tuple(map(self._seen, self._instances.values()))

    def lines(self) -> tuple[LineSeen, ...]:
        """Every model's line that somebody stands in."""
        return self._book.lines(now_s=monotonic())

    def _seen(self, instance: Instance) -> Observed:
        seen = instance.observe()
        if seen.expires_at is not None and self._is_pinned(seen.model_id):
            return replace(seen, expires_at=inf)
        return seen

    def _is_pinned(self, model_id: ModelId) -> bool:
        served = self._leasing.processes().models.get(model_id)
        return served is not None and served.settings.pin

    def lease(
        self,
        model_id: ModelId,
        *,
        caller: str,
        keep_alive_s: float | None = None,
        context: int | None = None,
        priority: Priority = Priority.HIGH,
        takes_slot: bool = True,
        can_pause: bool = True,
        after: Lease | None = None,
    ) -> AbstractAsyncContextManager[Lease]:
        """A slot of a ready child for as long as the block lasts. Raises LeaseError.

        `context`: tokens that the caller wants; what comes of it is models.context_policy's.
        `priority`: the request's own, which can only lower its caller's. Without `takes_slot` the
        child alone, however busy it is. `can_pause`: whether what it is for can go on under another
        lease, or be asked again. `after`: the lease under which it was begun.
        """
        return Leased(
            self._leasing, model_id, caller, keep_alive_s, context, priority, takes_slot, can_pause,
            after,
        )  # fmt: skip

    def moved(self, lease: Lease) -> str | None:
        """Why the child behind `lease` made way for another of its model; None: it did not."""
        return self.moving.why_left(lease)

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

    def answered(self, lease: Lease) -> None:
        """A request under `lease` was answered: the model can run."""
        if instance := self._instances.get(lease.instance_id):
            instance.answered(lease.socket_path)
        if lease.plan is not None:
            self.rollout.answered(lease.plan.engine_id)

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

    async def load(
        self, model_id: ModelId, *, keep_alive_s: float | None = None, context: int | None = None
    ) -> float:
        """Seconds until the model was ready, 0.0 where it was. Raises LeaseError."""
        async with self.lease(
            model_id, caller="", keep_alive_s=keep_alive_s, context=context
        ) as lease:
            return lease.load_s

    def unload(self, model_id: ModelId) -> bool:
        """Drain and stop the model's instances; False where none ran."""
        ours, drain_s = self._leasing.of(model_id), self._desired.settings.finish_s
        host, reason = self._leasing.processes().host(model_id), "unload was asked for"
        moves = self.moving.end(host, Departure.ASKED, reason=reason, drain_s=drain_s)
        for instance in ours:
            instance.stop(reason, Departure.ASKED, drain_s=drain_s)
        return bool(ours) or moves

    def retry(self, model_id: ModelId) -> bool:
        """Forget a failed instance: the next request launches anew. False where none failed."""
        failed = [i for i in self._leasing.of(model_id) if i.observe().state.is_down]
        for instance in failed:
            instance.stop("retry was asked for", Departure.ASKED, drain_s=0.0)
        return bool(failed)

    async def profile(self) -> HardwareProfile:
        """The machine on fresh numbers. Raises HostUnread."""
        return await self._machine.fresh()

    def log_lines(self, model_id: ModelId, n: int) -> tuple[str, ...]:
        """Up to `n` newest lines of the log of the model's child."""
        return next((instance.log_lines(n) for instance in self._leasing.of(model_id)), ())

    @property
    def card_appeared(self) -> asyncio.Event:
        """Set when a card came that no engine sees; who answers it clears it."""
        return self._machine.watch.appeared

    @property
    def resumed_at(self) -> float | None:
        """UTC seconds at which the machine last came back from sleep; None where it never did."""
        return self._machine.watch.resumed_at

    @property
    def last_profile(self) -> HardwareProfile | None:
        """The machine as last read; None before the first reading."""
        return self._machine.last

    def _learn(self, plan: LaunchPlan, usage: Usage) -> None:
        """Take a request that had its child to itself into the rates of the devices."""
        served, hardware = self._catalogue.models.get(plan.model_id), self._machine.last
        if hardware is None or served is None:
            return
        self._history.served(usage, hardware=hardware, model=served.info, plan=plan)

    # The loop's own.

    async def _look_forever(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            for action in await self._decided():
                self._begin(action, tasks)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_next_look_s()):
                    await self._woken.wait()
            self._woken.clear()

    async def _decided(self) -> tuple[Action, ...]:
        """What to do now; launches and refusals are decided on a fresh profile."""
        for max_age_s in (SAMPLE_S / 2 if self._machine.settling() else PROFILE_S, FRESH_S):
            profile = await self._machine.read(max_age_s=max_age_s)
            if profile is None:
                return ()
            actions = await self._planner.decided(partial(self._view, profile))
            if not actions:
                return ()
        return actions

    def _view(self, profile: HardwareProfile) -> View:
        now_s = monotonic()
        models, instances = self._leasing.processes().models, self.running()
        demand = self._book.demand(now_s=now_s)
        gone = {*demand, *(seen.model_id for seen in instances)}.difference(models)
        return View(
            models=models,
            instances=instances,
            demand=demand,
            hardware=self._machine.last or profile,
            engines=self._desired.engines,
            rules=self._desired.rules,
            settings=self._desired.settings,
            learned=self._history.learned,
            dry_runs=self._preflights.dry_runs,
            contexts=self._wanted_contexts(),
            yielded_s=dict(self._yielded_s),
            settling=self._machine.settling(),
            told=dict(self._told),
            broken=self._catalogue.why_broken(gone) if gone else {},
            moving=self.moving.models,
            resting=self.moving.resting(now_s),
            unmoved=dict(self.moving.unmoved),
            on_trial=frozenset(new.engine.engine_id for new in self._desired.newcomers),
        )

    def _wanted_contexts(self) -> dict[ModelId, int]:
        """What callers once asked for, where the policy keeps to it."""
        ratchets = self._desired.settings.context_policy is ContextPolicy.RATCHET
        return dict(self._contexts.contexts) if ratchets else {}

    def _until_next_look_s(self) -> float:
        return SAMPLE_S if self._machine.settling() else TICK_S

    def _begin(self, action: Action, tasks: asyncio.TaskGroup) -> None:
        match action:
            case Start(plan) | Restart(_, plan) if plan.doubt is not None:
                self._preflights.begin(plan, engine=self._engine(plan), tasks=tasks)
            case Start():
                self._start(action, tasks)
            case Restart(instance_id, plan, reason, context):
                self._preflights.forget(plan.model_id)
                self._told.pop(plan.model_id, None)
                instance = self._instances[instance_id]
                instance.serves_context = context
                instance.resume(plan, self._engine(plan), reason=reason)
            case Stop(instance_id, reason, finishes=finishes):
                drain_s = LONGEST_REPLY_S if finishes else self._desired.settings.finish_s
                instance = self._instances[instance_id]
                instance.stop(reason, action.departure, drain_s=drain_s)
            case Yield(instance_id, reason):
                instance = self._instances[instance_id]
                self._yielded_s[instance.model_id] = monotonic()
                instance.stop(reason, action.departure, drain_s=LONGEST_REPLY_S)
            case Move(instance_id):
                self.moving.begin(self._instances[instance_id], action)
            case Allow(instance_id, context, reason):
                self._allow(self._instances[instance_id], context, reason)
            case Refuse():
                self._refuse(action)

    def _start(self, start: Start, tasks: asyncio.TaskGroup) -> None:
        self._preflights.forget(start.plan.model_id)
        plan = start.plan
        self._yielded_s.pop(plan.model_id, None)
        self._told.pop(plan.model_id, None)
        served = self._leasing.processes().models[plan.model_id]
        keep_alive_s = self._leasing.wishes.keep_alive_s(served)
        self._launch(start, tasks, keep_alive_s=keep_alive_s)

    def _launch(
        self,
        start: Start,
        tasks: asyncio.TaskGroup,
        *,
        keep_alive_s: float,
        trial: Trial | None = None,
        engine: Engine | None = None,
    ) -> Instance:
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
        self._history.began(instance_id, self._machine.last, self.running())
        tasks.create_task(self._tend(instance, child_log), name=f"instance {instance_id}")
        return instance

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
        desired = self._desired
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
            self._told[model_id] = launch_key(served, self._desired.rules)
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
            self.look()

    def _forget_keep_alive(self, model_id: ModelId) -> None:
        """What callers wished for ends with the instance, unless somebody already waits anew."""
        if not self._leasing.of(model_id):
            self.moving.forget(model_id)
        if not self._leasing.of(model_id) and not self._book.waiting(model_id):
            self._leasing.wishes.forget_keep_alive(model_id)
