"""Carries out the trial of a new engine build: moves one model to it, counts, and tells the end.

Who tries it and what that says is planners.rollout's. The engines themselves are switched by who
hears the verdict (inferenceosd.engine_desk).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from time import monotonic

import structlog
from msgspec import Struct
from msgspec.structs import replace

from planners.lessons.samples import LaunchSample
from planners.model import ModelId
from planners.plan import LaunchPlan
from planners.rollout import (
    PROOF_ANSWERS,
    Newcomer,
    Proven,
    RolledBack,
    canary,
    dies_anyway,
    judged,
)
from planners.view import Observed
from supervisor.instance import Instance
from supervisor.records.journal import Journal

LOOK_S = 1.0  # cadence while an engine is on trial
REST_S = 15.0  # after a move to it that did not come about
MOST_VERDICTS = 16  # that nobody took: more than there are backends

log = structlog.get_logger(__name__)

Verdict = tuple[Newcomer, Proven | RolledBack]


class Tried(Struct, frozen=True):
    """What the trial works with."""

    newcomers: Callable[[], tuple[Newcomer, ...]]
    settled: Callable[[], frozenset[str]]
    """Ids of engines that are used without a trial, or after it."""
    running: Callable[[], Iterable[Observed]]
    moving: Callable[[], frozenset[ModelId]]
    instance: Callable[[Observed], Instance | None]
    launches: Callable[[], Iterable[LaunchSample]]
    move: Callable[[Instance, LaunchPlan, str], Awaitable[bool]]
    """Whether the migration came about."""
    journal: Journal


class Rollout:
    """The one who knows how engines on trial did."""

    def __init__(self, tried: Tried) -> None:
        self._tried = tried
        self._answers: Counter[str] = Counter()
        self._told: set[tuple[str, float]] = set()
        self._suspects: dict[str, Newcomer] = {}
        """By engine: on trial, or rolled back."""
        self._rests_until_s = 0.0
        self._woken = asyncio.Event()
        self.verdicts: asyncio.Queue[Verdict] = asyncio.Queue(MOST_VERDICTS)
        """Each trial's end, once; who takes it switches the engines."""
        self.served: asyncio.Event = asyncio.Event()
        """Set when an engine has answered enough to be called proven; who answers it clears it."""

    async def run(self) -> None:
        """For ever: look while an engine is on trial, else wait for one."""
        while True:
            if newcomers := self._tried.newcomers():
                for newcomer in newcomers:
                    await self._look_at(newcomer)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._woken.wait()
            else:
                await self._woken.wait()
            self._woken.clear()

    def look(self) -> None:
        """Have it look soon: other engines are there."""
        self._woken.set()

    def answered(self, engine_id: str) -> None:
        """A request of a real model was answered by a child of this engine."""
        self._answers[engine_id] += 1
        if self._answers[engine_id] == PROOF_ANSWERS:
            self.served.set()

    def is_suspect(self, engine_id: str, model_id: ModelId) -> bool:
        """Whether an end of that model on it is held against the engine, not against what it ran.

        While it is on trial and once it was rolled back, unless an operator has it used all the
        same, or the model died on the old one too: then nobody would be held to account.
        """
        newcomer = self._suspects.get(engine_id)
        if newcomer is None or engine_id in self._tried.settled():
            return False
        return model_id not in dies_anyway(newcomer, self._tried.launches())

    def has_served(self, engine_id: str) -> bool:
        """Whether it answered enough requests here to be gone back to."""
        return self._answers[engine_id] >= PROOF_ANSWERS

    async def _look_at(self, newcomer: Newcomer) -> None:
        engine_id, key = newcomer.engine.engine_id, (newcomer.engine.engine_id, newcomer.since)
        if key in self._told:
            return
        self._suspects[engine_id] = newcomer
        verdict = judged(newcomer, self._tried.launches(), answers=self._answers[engine_id])
        if verdict is not None:
            self._told.add(key)
            if isinstance(verdict, Proven):
                del self._suspects[engine_id]
            await self.verdicts.put((newcomer, verdict))
        elif monotonic() >= self._rests_until_s:
            await self._have_it_tried(newcomer)

    async def _have_it_tried(self, newcomer: Newcomer) -> None:
        running = tuple(self._tried.running())
        chosen = canary(newcomer, running, moving=self._tried.moving())
        instance = None if chosen is None else self._tried.instance(chosen)
        if instance is None or not instance.is_serving:
            return
        engine = newcomer.engine
        reason = f"one model tries the new llama-server at {engine.path}"
        log.info("engine.on_trial", path=engine.path, model_id=instance.model_id)
        self._tried.journal.record(
            "engine.on_trial", model_id=instance.model_id, reason=reason, path=engine.path
        )
        plan = replace(instance.plan, engine_id=engine.engine_id)
        if not await self._tried.move(instance, plan, reason):
            self._rests_until_s = monotonic() + REST_S
