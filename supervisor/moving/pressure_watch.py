"""Gives memory to others: looks how much there is, and has models end or move as planners decide.

    every SAMPLE_S while a model is loaded: read ─ our own limits exceeded?  → relief at once
                                                 └ short for long enough?    → relief, then rest
                                                 └ plenty for long enough?   → one model moves back
A yield is a limit on what is ours, for a while. What counts as short is planners.pressure's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic

import structlog
from msgspec import Struct
from msgspec.structs import replace

from planners.durations import format_duration
from planners.errors import PlanBug
from planners.hardware import HOST, DeviceId, DeviceKind, HardwareProfile
from planners.instances.actions import Departure
from planners.model import ModelId
from planners.moving.relief import Way, key_of, last_resort, ours_bytes, over_limits, rise, ways
from planners.plan import InstanceId, LaunchPlan
from planners.pressure import (
    DEFAULT_RULES,
    Course,
    MoveUp,
    PressureRules,
    Relieve,
    decided,
    followed,
    forgotten,
    missing_bytes,
    relief,
    sample_of,
)
from planners.sizes import format_size
from planners.view import RELEASING, InstanceState, Observed, View
from supervisor.errors import SupervisorError
from supervisor.instance import Instance
from supervisor.leases.lease import Stopping
from supervisor.planner import Planner, PlanTookTooLong
from supervisor.records.journal import Journal

SAMPLE_S = 2.0  # cadence of looking while something is loaded

log = structlog.get_logger(__name__)


class NoSuchPlace(SupervisorError):
    """A device that is not there."""

    def __init__(self, *, device: str, known: Iterable[str]) -> None:
        self.device = device
        super().__init__(f"there is no device {device}; there are: {', '.join(known)}")


class Yielded(Struct, frozen=True):
    """Memory that was given to others."""

    device_id: DeviceId
    n_bytes: int
    limit_bytes: int
    """What our launches together may take there until then."""
    until_s: float
    """Monotonic; inf is until it is taken back."""


class Watched(Struct, frozen=True):
    """What the watch works with."""

    view: Callable[[], View | None]
    """None before the machine was read."""
    read: Callable[[float], Awaitable[object]]
    """Reads the machine again where the last reading is older."""
    instance: Callable[[Observed], Instance | None]
    move: Callable[[Instance, LaunchPlan, str], Awaitable[bool]]
    """Whether the migration came about."""
    hold_back: Callable[[Mapping[DeviceId, int]], None]
    """Takes what yields leave to our launches, by place."""
    planner: Planner
    journal: Journal
    finish_s: Callable[[], float]
    changed: Callable[[], None]


class PressureWatch:
    """The one owner of yields, and of what is known of the machine's memory over time."""

    def __init__(self, watched: Watched, *, rules: PressureRules = DEFAULT_RULES) -> None:
        self.rules = rules
        self._watched = watched
        self._yields: dict[DeviceId, Yielded] = {}
        self._course = Course()
        self._lowered: set[ModelId] = set()
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(SAMPLE_S):
                    await self._woken.wait()
            self._woken.clear()

    def yields(self) -> tuple[Yielded, ...]:
        """Memory that others have now."""
        return tuple(self._yields.values())

    def give(
        self, hardware: HardwareProfile, name: str | None, n_bytes: int | None, *, for_s: float
    ) -> Yielded:
        """Takes so much less of a device from now on, None: nothing at all; the rest follows.

        `name` None means the place that has most of ours. Raises NoSuchPlace.
        """
        view = self._watched.view()
        ours = ours_bytes(hardware, view.instances if view is not None else ())
        most = max(ours, key=ours.__getitem__, default=HOST)
        place = self._place(hardware, name) if name else most
        all_bytes = _free(hardware, place) + (0 if _is_blind(hardware, place) else ours[place])
        wanted = all_bytes if n_bytes is None else n_bytes
        limit_bytes = max(0, all_bytes - wanted)
        given = Yielded(place, wanted, limit_bytes, monotonic() + for_s)
        self._yields[place] = given
        self._watched.hold_back(self.limits)
        told = f"{format_size(given.n_bytes)} of {place} for others, {format_duration(for_s)}"
        self._record("memory.yielded", f"{told}: at most {format_size(limit_bytes)} of it is ours")
        self._woken.set()
        return given

    def take_back(self, hardware: HardwareProfile, name: str | None) -> tuple[Yielded, ...]:
        """Ends the yield of a device, or all of them. Raises NoSuchPlace."""
        places = tuple(self._yields) if name is None else (self._place(hardware, name),)
        ended = tuple(self._yields.pop(place) for place in places if place in self._yields)
        self._watched.hold_back(self.limits)
        for each in ended:
            self._record(
                "memory.returned", f"{format_size(each.n_bytes)} of {each.device_id}: asked"
            )
        self._woken.set()
        return ended

    @property
    def course(self) -> Course:
        """What is known of the machine's memory over time."""
        return self._course

    @property
    def limits(self) -> dict[DeviceId, int]:
        """What yields leave to our launches, by place."""
        return {place: each.limit_bytes for place, each in self._yields.items()}

    def _place(self, hardware: HardwareProfile, name: str) -> DeviceId:
        wanted = name.lower()
        if wanted == HOST:
            return HOST
        for device in hardware.devices:
            known = (device.device_id, device.name, *(called for _, called in device.engine_names))
            if wanted in (each.lower() for each in known):
                return device.device_id
        raise NoSuchPlace(device=name, known=(HOST, *(d.device_id for d in hardware.devices)))

    # the look

    async def _look(self) -> None:
        self._expire(monotonic())
        if (view := self._looked_at()) is None:
            self._rest()
            return
        await self._watched.read(SAMPLE_S / 2)
        if (view := self._looked_at()) is None:
            return
        now_s = monotonic()
        staying = [seen for seen in view.instances if seen.state not in RELEASING]
        self._lowered &= {seen.model_id for seen in staying}
        try:
            if over := over_limits(view.hardware, staying):
                await self._keep_limits(view, over, now_s=now_s)
            else:
                await self._weigh(view, now_s=now_s)
        except (PlanTookTooLong, Stopping, PlanBug) as exc:
            log.warning("pressure.unanswered", reason=str(exc))

    def _rest(self) -> None:
        """While nothing is loaded nobody reads the machine: what was known of it is no course.

        What was done, and when, still counts.
        """
        view = self._watched.view()
        if view is not None and not view.instances:
            self._course = replace(self._course, places={})
            self._lowered.clear()

    def _looked_at(self) -> View | None:
        """The world, where there is something to do about it."""
        view = self._watched.view()
        if view is None or view.moving:
            return None
        return view if any(s.state is InstanceState.READY for s in view.instances) else None

    def _expire(self, now_s: float) -> None:
        for place, each in tuple(self._yields.items()):
            if now_s >= each.until_s:
                del self._yields[place]
                self._watched.hold_back(self.limits)
                told = f"{format_size(each.n_bytes)} of {place}: its time is over"
                self._record("memory.returned", told)

    async def _keep_limits(self, view: View, over: Mapping[DeviceId, int], *, now_s: float) -> None:
        """What exceeds an operator's limit goes at once, whatever it takes."""
        told = ", ".join(f"{format_size(n)} too much on {place}" for place, n in over.items())
        found = await self._ways(view, over, now_s=now_s)
        options = relief([way.option for way in found], over)
        chosen = [way for way in found if way.option in options]
        for seen in last_resort(view, over, chosen):
            self._end(seen, f"{told}, and no other launch of it takes less")
        await self._act(chosen, told, is_order=True)

    async def _weigh(self, view: View, *, now_s: float) -> None:
        """Pressure, or room to move back."""
        course = forgotten(self._course, (key_of(seen) for seen in view.instances))
        self._course = followed(course, sample_of(view.hardware, at_s=now_s), rules=self.rules)
        missing = missing_bytes(self._course, rules=self.rules)
        found: list[Way] = []
        higher: dict[str, tuple[Observed, LaunchPlan]] = {}
        rises = []
        if missing and self._may_answer(now_s):
            found = await self._ways(view, missing, now_s=now_s, caches=self._caches(view))
        elif not missing:
            for seen in view.instances:
                if seen.model_id in self._lowered and seen.state is InstanceState.READY:
                    think = partial(rise, view, seen)
                    if better := await self._watched.planner.thought(think, seen.model_id):
                        rises.append(better[0])
                        higher[key_of(seen)] = seen, better[1]
        options = [way.option for way in found]
        self._course, answer = decided(
            self._course, options=options, rises=rises, now_s=now_s, rules=self.rules
        )
        match answer:
            case Relieve(chosen, reason):
                self._record("pressure.relieved", reason)
                chosen_ways = [way for way in found if way.option in chosen]
                await self._act(chosen_ways, reason, is_order=False)
            case MoveUp(key, reason):
                self._record("pressure.lifted", f"{key}: {reason}")
                await self._lift(*higher[key], reason)

    def _may_answer(self, now_s: float) -> bool:
        answered_s = self._course.answered_s
        return answered_s is None or now_s - answered_s >= self.rules.cooldown_s

    def _caches(self, view: View) -> dict[InstanceId, int]:
        """What saved prompts take, by instance."""
        there = ((seen.instance_id, self._watched.instance(seen)) for seen in view.instances)
        return {i: found.grown_bytes() for i, found in there if found is not None}

    async def _ways(
        self,
        view: View,
        missing: Mapping[DeviceId, int],
        *,
        now_s: float,
        caches: Mapping[InstanceId, int] | None = None,
    ) -> list[Way]:
        models = [seen.model_id for seen in view.instances]
        think = partial(ways, view, missing, now_s=now_s, warm_s=self.rules.warm_s, caches=caches)
        return await self._watched.planner.thought(think, models[0])

    async def _act(self, chosen: Iterable[Way], reason: str, *, is_order: bool) -> None:
        for way in chosen:
            if way.plan is None:
                self._end(way.seen, reason)
                continue
            instance = self._watched.instance(way.seen)
            if instance is None:
                continue
            if await self._watched.move(instance, way.plan, reason):
                self._lowered.add(way.seen.model_id)
            elif is_order:
                self._end(way.seen, f"{reason}; it could not be moved")

    async def _lift(self, seen: Observed, plan: LaunchPlan, reason: str) -> None:
        instance = self._watched.instance(seen)
        if instance is not None and await self._watched.move(instance, plan, reason):
            self._lowered.discard(seen.model_id)

    def _end(self, seen: Observed, reason: str) -> None:
        """Ends one that is still there, once its requests are done."""
        instance = self._watched.instance(seen)
        if instance is not None:
            instance.stop(reason, Departure.MEMORY, drain_s=self._watched.finish_s())

    def _record(self, kind: str, reason: str) -> None:
        log.info(kind, reason=reason)
        self._watched.journal.record(kind, reason=reason)
        self._watched.changed()


def _is_blind(hardware: HardwareProfile, place: DeviceId) -> bool:
    """Whether what counts as free there has ours in it: such devices report no use."""
    silent = (DeviceKind.SOFTWARE, DeviceKind.REMOTE)
    return any(d.device_id == place and d.kind in silent for d in hardware.devices)


def _free(hardware: HardwareProfile, place: DeviceId) -> int:
    """What counts as free there."""
    if place == HOST:
        return hardware.host.available_bytes
    device = next(d for d in hardware.devices if d.device_id == place)
    return device.free_bytes or 0
