"""The loop that brings the machine to what is desired, and the door through which slots are leased.

Level-triggered, one writer: an event says "look", never "do"; only Fleet.run changes the instances.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from time import monotonic

import structlog
from msgspec.structs import replace

from planners.hardware import HardwareProfile
from planners.instances.actions import Action, Departure
from planners.lessons.usage import Usage
from planners.model import BrokenFile, ModelId, ServedModel
from planners.plan import InstanceId
from planners.view import LineSeen, Observed
from planners.waiting.line import Priority
from supervisor.deeds import Deeds
from supervisor.desired import Desired, Ground
from supervisor.engines.rollout import Rollout, Tried
from supervisor.instance import Instance
from supervisor.leases.lease import Lease
from supervisor.leases.lease_book import LeaseBook
from supervisor.leases.leasing import Leased, Leasing
from supervisor.leases.outcomes import Outcomes
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
from supervisor.sight import Sight

SLOT_FILES_BYTES = 8 << 30  # of all conversations on disk at once; the disk keeps its own part
TICK_S = 1.0  # cadence of a look when nothing happens; what a lost event costs at most
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
        self._catalogue, self._records, self._probe = catalogue, records, probe
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
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._planner = Planner(changed=self.look, journal=records.journal)
        self._preflights = Preflights(
            PreflightCache(ground.preflights),
            environ=ground.environ,
            cwd=ground.cwd,
            changed=self.look,
        )
        self._sight = self._new_sight()
        self.prospects = self._new_prospects()
        self._shelf = SlotShelf(
            quota_bytes=SLOT_FILES_BYTES,
            thread=ThreadPoolExecutor(max_workers=1, thread_name_prefix="slots"),
        )
        self._shop = self._new_shop(ground, leaving=leaving, heard_bytes=heard_bytes)
        self._deeds = self._new_deeds()
        self.moving = self._new_moving()
        self.pressure = self._new_pressure()
        self.rollout = self._new_rollout()
        self._outcomes = Outcomes(
            self._instances,
            book=self._book,
            catalogue=catalogue,
            machine=self._machine,
            records=records,
            rollout=self.rollout,
        )

    def _new_sight(self) -> Sight:
        return Sight(
            self._instances,
            book=self._book,
            catalogue=self._catalogue,
            leasing=self._leasing,
            machine=self._machine,
            preflights=self._preflights,
            records=self._records,
            desired=lambda: self._desired,
            moving=lambda: self.moving,
            deeds=lambda: self._deeds,
        )

    def _new_deeds(self) -> Deeds:
        return Deeds(
            self._shop,
            self._instances,
            leasing=self._leasing,
            machine=self._machine,
            preflights=self._preflights,
            records=self._records,
            desired=lambda: self._desired,
            running=self.running,
            moving=lambda: self.moving,
            look=self.look,
        )

    def _new_prospects(self) -> Prospects:
        return Prospects(
            self._planner,
            history=self._records.history,
            preflights=self._preflights,
            desired=lambda: self._desired,
            running=self.running,
            processes=self._leasing.processes,
            contexts=self._sight.wanted_contexts,
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
            launch=self._deeds.launch,
            stopping=self._stopping,
        )

    def _new_pressure(self) -> PressureWatch:
        watched = Watched(
            view=self._sight.last,
            read=lambda max_age_s: self._machine.read(max_age_s=max_age_s),
            instance=lambda seen: self._instances.get(seen.instance_id),
            move=self.moving.moved,
            hold_back=self._machine.hold_back,
            planner=self._planner,
            journal=self._records.journal,
            finish_s=lambda: self._desired.settings.finish_s,
            changed=self.look,
        )
        return PressureWatch(watched)

    def _new_rollout(self) -> Rollout:
        tried = Tried(
            newcomers=lambda: self._desired.newcomers,
            settled=lambda: frozenset(e.engine_id for e in self._desired.engines or ()),
            running=self.running,
            moving=lambda: self.moving.models,
            instance=lambda seen: self._instances.get(seen.instance_id),
            launches=self._records.history.launches,
            move=self.moving.moved,
            journal=self._records.journal,
        )
        return Rollout(tried)

    def _new_shop(
        self, ground: Ground, *, leaving: Callable[[str], None], heard_bytes: Callable[[str], int]
    ) -> Shop:
        """What every instance works with."""
        slots_dir = ground.slots or ground.run_dir
        return Shop(
            book=self._book,
            journal=self._records.journal,
            history=self._records.history,
            settings=lambda: self._desired.settings,
            environ=ground.environ,
            run_dir=ground.run_dir,
            slots_dir=slots_dir,
            kept_slots=KeptSlots(
                self._shelf,
                slots_dir / "kept.slots",
                journal=self._records.journal,
                served=lambda model_id: self._leasing.processes().models.get(model_id),
                is_on=lambda: self._desired.settings.keeps_conversations,
            ),
            cwd=ground.cwd,
            leaving=leaving,
            heard_bytes=heard_bytes,
            changed=self.look,
            device_lost=self._machine.watch.device_lost,
            is_pinned=self._sight.is_pinned,
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
        return self._sight.running()

    def lines(self) -> tuple[LineSeen, ...]:
        """Every model's line that somebody stands in."""
        return self._book.lines(now_s=monotonic())

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
        return await self._outcomes.until_gone(lease, within_s=within_s)

    def crashed_alone(self, lease: Lease) -> bool:
        """Whether the child behind `lease`, which is gone, crashed and did nothing else then."""
        return self._outcomes.crashed_alone(lease)

    def blames_engine(self, lease: Lease) -> bool:
        """Whether the end of the child behind `lease` is held against its engine, not a request."""
        return self._outcomes.blames_engine(lease)

    def answered(self, lease: Lease) -> None:
        """A request under `lease` was answered: the model can run."""
        self._outcomes.answered(lease)

    def resumed(
        self, lease: Lease, *, cause: str, way: str, pause_s: float, n_computed: int
    ) -> None:
        """A reply whose child was lost goes on under `lease`."""
        self._outcomes.resumed(lease, cause=cause, way=way, pause_s=pause_s, n_computed=n_computed)

    def report(self, lease: Lease, usage: Usage) -> None:
        """What an exchange under `lease` did."""
        self._outcomes.report(lease, usage)

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

    # The loop's own.

    async def _look_forever(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            for action in await self._decided():
                self._deeds.begin(action, tasks)
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
            actions = await self._planner.decided(partial(self._sight.view, profile))
            if not actions:
                return ()
        return actions

    def _until_next_look_s(self) -> float:
        return SAMPLE_S if self._machine.settling() else TICK_S
