"""The loop that brings the machine to what is desired, and the door through which slots are leased.

Level-triggered, one writer: an event says "look", never "do"; only Fleet.run changes the instances.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic

import structlog

from planners.backends import Engine
from planners.hardware import HardwareProfile
from planners.learning import Exchange, learned_from
from planners.model import BrokenFile, ModelId, ServedModel
from planners.other_machine import engines_there
from planners.outlook import Outlook, Surroundings
from planners.plan import InstanceId, LaunchPlan
from planners.reconcile import Action, Refuse, Restart, Start, Stop
from planners.speed import NOTHING_LEARNED
from planners.view import Observed, View
from supervisor.catalogue import Catalogue
from supervisor.desired import Desired, Ground
from supervisor.errors import SupervisorError
from supervisor.instance import Instance, Shop
from supervisor.journal import Journal
from supervisor.lease import Lease, LeaseBook, ModelUnavailable, Usage, WaitTimedOut
from supervisor.planner import Planner
from supervisor.preflight import PreflightCache, Preflights
from supervisor.probe import HardwareProbe, HostUnread
from supervisor.watch import DeviceWatch

TICK_S = 1.0  # cadence of a look when nothing happens; what a lost event costs at most
FRESH_S = 1.0  # a launch is planned on a profile no older than this
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
        journal: Journal,
        ground: Ground,
        leaving: Callable[[str], None],
    ) -> None:
        self._desired = desired
        self._catalogue, self._journal = catalogue, journal
        self._probe = probe
        self._watch = DeviceWatch(probe, journal)
        self._book = LeaseBook(max_waiting=desired.settings.max_waiting)
        self._instances: dict[InstanceId, Instance] = {}
        self._keep_alive_s: dict[ModelId, float] = {}
        self._profile: HardwareProfile | None = None
        self._profiled_s = -inf
        self._launched = 0
        self._learned = NOTHING_LEARNED
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._planner = Planner(changed=self.look)
        self._preflights = Preflights(
            PreflightCache(ground.preflights),
            environ=ground.environ,
            cwd=ground.cwd,
            changed=self.look,
        )
        self._shop = Shop(
            book=self._book,
            journal=journal,
            settings=lambda: self._desired.settings,
            environ=ground.environ,
            run_dir=ground.run_dir,
            cwd=ground.cwd,
            leaving=leaving,
            changed=self.look,
            device_lost=self._watch.device_lost,
        )

    async def run(self) -> None:
        """Look and act until stop() was called and every child is reaped."""
        async with self._planner, asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(self._probe.attend(self.look), name="rpc servers")
            loop = tasks.create_task(self._look_forever(tasks), name="fleet loop")
            await self._stopping.wait()
            loop.cancel()  # it may be waiting for a driver that hangs
            asking.cancel()
            self._preflights.stop()
            for instance in self._instances.values():
                instance.stop("the daemon is stopping", drain_s=self._desired.settings.drain_s)

    def look(self) -> None:
        """Have the loop look at the world soon."""
        self._woken.set()

    def stop(self) -> None:
        """No new leases, drain, stop every child; run() returns when all are reaped."""
        self._stopping.set()
        self._book.stop()

    def apply(self, desired: Desired) -> None:
        """Replace what is desired; instances that it does not touch keep their child."""
        self._desired = desired
        self._book.max_waiting = desired.settings.max_waiting
        self._profiled_s = -inf
        self.look()

    # What callers ask for.

    def resolve(self, name: str) -> ServedModel | None:
        """The model a caller means by `name`."""
        return self._catalogue.resolve(name)

    def models(self) -> tuple[ServedModel, ...]:
        """All that is offered, by name."""
        return tuple(sorted(self._catalogue.models.values(), key=lambda m: m.model_id.lower()))

    def broken(self) -> tuple[BrokenFile, ...]:
        """Files that look like models and are none."""
        return self._catalogue.broken

    def running(self) -> tuple[Observed, ...]:
        """Every instance as it is now."""
        return tuple(map(self._seen, self._instances.values()))

    def _of(self, model_id: ModelId) -> list[Instance]:
        return [i for i in self._instances.values() if i.model_id == model_id]

    def _seen(self, instance: Instance) -> Observed:
        seen = instance.observe()
        served = self._catalogue.models.get(seen.model_id)
        if seen.expires_at is not None and served is not None and served.settings.pin:
            return replace(seen, expires_at=inf)
        return seen

    @asynccontextmanager
    async def lease(
        self, model_id: ModelId, *, caller: str, keep_alive_s: float | None = None
    ) -> AsyncIterator[Lease]:
        """A slot of a ready child for as long as the block lasts. Raises LeaseError."""
        lease = await self._granted(model_id, caller=caller, keep_alive_s=keep_alive_s)
        try:
            yield lease
        finally:
            self._book.give_back(lease, now_s=monotonic())
            self.look()

    async def until_gone(self, lease: Lease, *, within_s: float) -> None:
        """Return once the child behind `lease` is known to be gone, or `within_s` have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._book.until_gone(lease)

    def report(self, lease: Lease, usage: Usage) -> None:
        """What an exchange under `lease` did."""
        if instance := self._instances.get(lease.instance_id):
            instance.served(usage)
            self._learn(instance.observe(), usage)

    async def load(self, model_id: ModelId, *, keep_alive_s: float | None = None) -> float:
        """Seconds until the model was ready, 0.0 where it was. Raises LeaseError."""
        async with self.lease(model_id, caller="", keep_alive_s=keep_alive_s) as lease:
            return lease.load_s

    def unload(self, model_id: ModelId) -> bool:
        """Drain and stop the model's instances; False where none ran."""
        ours = self._of(model_id)
        for instance in ours:
            instance.stop("unload was asked for", drain_s=self._desired.settings.finish_s)
        return bool(ours)

    def retry(self, model_id: ModelId) -> bool:
        """Forget a failed instance: the next request launches anew. False where none failed."""
        failed = [i for i in self._of(model_id) if i.observe().state.is_down]
        for instance in failed:
            instance.stop("retry was asked for", drain_s=0.0)
        return bool(failed)

    async def outlook(
        self, served: ServedModel, *, elsewhere: HardwareProfile | None = None
    ) -> Outlook:
        """How the model would be launched beside what runs now, on fresh numbers.

        With `elsewhere`: alone on that machine. Raises HostUnread, PlanTookTooLong, Stopping.
        """
        here, rules = self._desired.engines or (), self._desired.rules
        if elsewhere is not None:
            around = Surroundings(engines_there(elsewhere, here=here), rules, {}, {})
            return await self._planner.outlook(served, elsewhere, around)
        profile = await self.profile()
        others = [seen for seen in self.running() if seen.model_id != served.model_id]
        around = Surroundings(
            here, rules, {}, {}, learned=self._learned, dry_runs=self._preflights.dry_runs
        ).beside(others, profile)
        return await self._planner.outlook(served, profile, around)

    async def outlooks(
        self, models: Sequence[ServedModel], *, elsewhere: HardwareProfile | None = None
    ) -> tuple[Outlook, ...]:
        """How several models would be launched beside each other and what else runs now.

        With `elsewhere`: with nothing else on that machine. Raises HostUnread, PlanTookTooLong,
        Stopping.
        """
        here, rules = self._desired.engines or (), self._desired.rules
        if elsewhere is not None:
            around = Surroundings(engines_there(elsewhere, here=here), rules, {}, {})
            return await self._planner.outlooks(models, elsewhere, around)
        profile = await self.profile()
        asked = {served.model_id for served in models}
        others = [seen for seen in self.running() if seen.model_id not in asked]
        around = Surroundings(
            here, rules, {}, {}, learned=self._learned, dry_runs=self._preflights.dry_runs
        ).beside(others, profile)
        return await self._planner.outlooks(models, profile, around)

    async def profile(self) -> HardwareProfile:
        """The machine on fresh numbers. Raises HostUnread."""
        profile = await self._read_profile(max_age_s=FRESH_S)
        if profile is None:
            raise HostUnread("the daemon's log tells why")
        return profile

    def log_lines(self, model_id: ModelId, n: int) -> tuple[str, ...]:
        """Up to `n` newest lines of the log of the model's child."""
        return next((instance.log_lines(n) for instance in self._of(model_id)), ())

    @property
    def card_appeared(self) -> asyncio.Event:
        """Set when a card came that no engine sees; who answers it clears it."""
        return self._watch.appeared

    @property
    def resumed_at(self) -> float | None:
        """UTC seconds at which the machine last came back from sleep; None where it never did."""
        return self._watch.resumed_at

    @property
    def last_profile(self) -> HardwareProfile | None:
        """The machine as last read; None before the first reading."""
        return self._profile

    async def _granted(
        self, model_id: ModelId, *, caller: str, keep_alive_s: float | None
    ) -> Lease:
        waiter = self._book.ask(model_id, caller=caller, now_s=monotonic())
        if keep_alive_s is not None:
            self._remember_keep_alive(model_id, keep_alive_s)
        self.look()
        wait_s = self._desired.settings.wait_s
        granted = False
        try:
            async with asyncio.timeout(wait_s):
                lease = await asyncio.shield(waiter.granted)
            granted = True
        except TimeoutError as exc:
            raise WaitTimedOut(model_id=model_id, waited_s=wait_s) from exc
        finally:
            if not granted:
                self._book.leave(waiter, now_s=monotonic())
        return lease

    def _remember_keep_alive(self, model_id: ModelId, keep_alive_s: float) -> None:
        self._keep_alive_s[model_id] = keep_alive_s
        for instance in self._of(model_id):
            instance.keep_alive_s = keep_alive_s

    def _learn(self, seen: Observed, usage: Usage) -> None:
        """Take an exchange that had its child to itself into the rates of the devices."""
        served = self._catalogue.models.get(seen.model_id)
        if self._profile is None or served is None or seen.running != 1:
            return
        exchange = Exchange(
            usage.prompt_tokens, usage.prompt_s, usage.decode_tokens, usage.decode_s
        )
        self._learned = learned_from(
            exchange,
            self._learned,
            hardware=self._profile,
            model=served.info,
            plan=seen.plan,
        )

    # The loop's own.

    async def _look_forever(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            for action in await self._decided():
                self._begin(action, tasks)
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._woken.wait()
            self._woken.clear()

    async def _decided(self) -> tuple[Action, ...]:
        """What to do now; launches and refusals are decided on a fresh profile."""
        for max_age_s in (PROFILE_S, FRESH_S):
            profile = await self._read_profile(max_age_s=max_age_s)
            if profile is None:
                return ()
            actions = await self._planner.decided(partial(self._view, profile))
            if not actions:
                return ()
        return actions

    async def _read_profile(self, *, max_age_s: float) -> HardwareProfile | None:
        """The machine, read again when the last reading is older; None where it never could be."""
        is_old = self._profile is None or monotonic() - self._profiled_s > max_age_s
        if is_old or self._watch.is_due():
            self._probe.leave_alone(self._rpc_servers_in_use())
            try:
                self._profile = await self._watch.profile()
            except SupervisorError as exc:
                log.error("probe.failed", reason=str(exc))  # noqa: TRY400  # the sentence says it
            self._profiled_s = monotonic()
        return self._profile

    def _rpc_servers_in_use(self) -> set[str]:
        alive = (seen for seen in self.running() if seen.pid is not None)
        return {server for seen in alive for server in seen.plan.rpc_servers}

    def _view(self, profile: HardwareProfile) -> View:
        return View(
            models=self._catalogue.models,
            instances=self.running(),
            demand=self._book.demand(now_s=monotonic()),
            hardware=self._profile or profile,
            engines=self._desired.engines,
            rules=self._desired.rules,
            settings=self._desired.settings,
            learned=self._learned,
            dry_runs=self._preflights.dry_runs,
        )

    def _begin(self, action: Action, tasks: asyncio.TaskGroup) -> None:
        match action:
            case Start(plan) | Restart(_, plan) if plan.doubt is not None:
                self._preflights.begin(plan, engine=self._engine(plan), tasks=tasks)
            case Start(plan, launch_key, reason):
                self._start(plan, launch_key, reason, tasks)
            case Restart(instance_id, plan, _):
                self._preflights.forget(plan.model_id)
                self._instances[instance_id].resume(plan, self._engine(plan))
            case Stop(instance_id, reason):
                drain_s = self._desired.settings.finish_s
                self._instances[instance_id].stop(reason, drain_s=drain_s)
            case Refuse(model_id, reason, retry_after_s):
                self._refuse(model_id, reason, retry_after_s)

    def _start(
        self, plan: LaunchPlan, launch_key: str, reason: str, tasks: asyncio.TaskGroup
    ) -> None:
        self._preflights.forget(plan.model_id)
        self._launched += 1
        instance_id = InstanceId(f"i{self._launched}")
        served = self._catalogue.models[plan.model_id]
        instance = Instance(
            instance_id,
            plan=plan,
            engine=self._engine(plan),
            launch_key=launch_key,
            keep_alive_s=self._keep_alive_s.get(plan.model_id, served.settings.keep_alive_s),
            shop=self._shop,
        )
        self._instances[instance_id] = instance
        self._journal.record(
            "instance.planned",
            model_id=plan.model_id,
            instance_id=instance_id,
            reason="; ".join((reason, *map(str, plan.reasons))),
            backend=plan.backend,
            n_gpu_layers=plan.n_gpu_layers,
            n_ctx=plan.n_ctx,
        )
        tasks.create_task(self._tend(instance), name=f"instance {instance_id}")

    def _engine(self, plan: LaunchPlan) -> Engine:
        return next(e for e in self._desired.engines or () if e.engine_id == plan.engine_id)

    def _refuse(self, model_id: ModelId, reason: str, retry_after_s: float | None) -> None:
        error = ModelUnavailable(model_id=model_id, reason=reason, retry_after_s=retry_after_s)
        self._preflights.forget(model_id)
        refused = self._book.refuse(model_id, error)
        log.warning("model.refused", model_id=model_id, reason=reason, callers=refused)
        self._journal.record("model.refused", model_id=model_id, reason=reason, callers=refused)

    async def _tend(self, instance: Instance) -> None:
        """Run one instance to its end, then forget it."""
        try:
            await instance.run()
        finally:
            del self._instances[instance.instance_id]
            self._forget_keep_alive(instance.model_id)
            self.look()

    def _forget_keep_alive(self, model_id: ModelId) -> None:
        """What callers wished for ends with the instance, unless somebody already waits anew."""
        if not self._of(model_id) and not self._book.waiting(model_id):
            self._keep_alive_s.pop(model_id, None)
