"""The daemon's engines: which ones are in force, when they are looked for again, and what an
operator or a trial decides about builds.

A build is switched by links beside it (supervisor.engines.builds); whoever moves one, this daemon,
a script or an operator, the next look adopts what it says.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from inferenceosd.settings.config import Config
from planners.backends import Engine, RejectedEngine
from planners.instances.launches import NO_ENGINE
from planners.rollout import Newcomer, Proven, RolledBack
from proxy.admin.engines import EnginesReport, build_report
from supervisor.engines.backends import engines_key, find_engines
from supervisor.engines.builds import (
    Build,
    Builds,
    BuildsUnwritable,
    Choice,
    Order,
    builds_folder,
)
from supervisor.engines.rollout import Rollout, Verdict
from supervisor.patience import NoAnswer, PatientReader
from supervisor.records.journal import Journal

ENGINES_S = 2.0  # to look whether a llama-server was replaced: a few stat calls
CHOICES_S = 2.0  # cadence of looking whether another build was switched in: some readlink calls

_OBEYED = {
    Order.USE: "engine.chosen",
    Order.PIN: "engine.pinned",
    Order.UNPIN: "engine.unpinned",
    Order.REMOVE: "engine.removed",
}

log = structlog.get_logger(__name__)


class EngineDesk:
    """The one owner of what counts as this machine's engines."""

    def __init__(self, state_dir: Path, *, rollout: Rollout, journal: Journal) -> None:
        self._state_dir, self._rollout, self._journal = state_dir, rollout, journal
        self._builds = Builds(builds_folder(state_dir))
        self._key: tuple[str, ...] = ()
        self._choices = self._builds.choices()
        self.engines: tuple[Engine, ...] | None = None
        """None while they are being tried for the first time."""
        self.rejected: tuple[RejectedEngine, ...] = ()
        self.newcomers: tuple[Newcomer, ...] = ()
        self._undecided: list[Verdict] = []
        """Ends of trials that are not in the links yet."""
        self._unwritable: dict[str, str] = {}
        """Build → why the disk refused what was decided of it, as last said; until it takes it."""

    async def were_upgraded(self, config: Config) -> bool:
        """Whether files of llama-servers changed since they were tried."""
        return bool(self._key) and await self._on_disk(config) != self._key

    async def adopt(self, config: Config) -> None:
        """Try what there is, and have it be what counts."""
        self._choices = self._builds.choices()
        self._key = await self._on_disk(config)
        found = await find_engines(configured=config.backends, state_dir=self._state_dir)
        self.engines, self.rejected, self.newcomers = found.engines, found.rejected, found.newcomers
        for refused in found.rejected:
            log.warning("engine.refused", path=refused.path, reason=refused.reason)
        for engine in found.engines:
            names = [device.name for device in engine.devices]
            log.info("engine.accepted", path=engine.path, backend=engine.backend, devices=names)
        if not found.engines:
            log.error("engine.missing", reason=NO_ENGINE)
        self._journal.record(
            "engine.found" if found.engines else "engine.missing",
            reason="; ".join(f"{r.path}: {r.reason}" for r in found.rejected),
            paths=", ".join(engine.path for engine in found.engines),
        )

    async def follow(self, changed: Callable[[], Awaitable[None]]) -> None:
        """For ever: `changed` whenever another build is to be used, by whomever that was decided.

        Trials that ended are taken up here.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHOICES_S):
                    self._undecided.append(await self._rollout.verdicts.get())
            if self._conclude() or self._builds.choices() != self._choices:
                await changed()
            self._note_proven()

    def report(self) -> EnginesReport:
        """Every build on disk, and what is thought of it."""
        on_trial = {_build_id(new.engine) for new in self.newcomers}
        used = {_build_id(engine) for engine in self.engines or () if engine.source == "built"}
        refused = {each.path: each.reason for each in self.rejected}
        return EnginesReport(
            tuple(
                build_report(
                    build,
                    is_used=build.build_id in used,
                    is_on_trial=build.build_id in on_trial,
                    refused=refused.get(str(build.binary.resolve())),
                )
                for build in self._builds.all()
            )
        )

    def obey(self, order: Order, name: str) -> None:
        """Carry out an operator's order. Raises NoSuchBuild, BuildInUse, BuildsUnwritable."""
        build = self._builds.obey(order, name)
        self._record(_OBEYED[order], build, f"{order.value} was asked for")

    def _record(self, kind: str, build: Build, reason: str) -> None:
        log.info(kind, backend=build.backend, build=build.build_id, reason=reason)
        self._journal.record(kind, reason=reason, backend=build.backend, build=build.build_id)

    def _conclude(self) -> bool:
        """Have ends of trials be seen in the links, which the next look adopts: whether any is.

        What the disk refuses is tried again at the next look.
        """
        left = [verdict for verdict in self._undecided if not self._settled(verdict)]
        has_changed = len(left) < len(self._undecided)
        self._undecided = left
        return has_changed

    def _settled(self, verdict: Verdict) -> bool:
        newcomer, told = verdict
        build = self._build_of(newcomer.engine)
        if build is None or build.on_trial_since() != newcomer.since:
            return True  # by an operator, who has removed, chosen or pinned one meanwhile
        try:
            match told:
                case Proven(reason):
                    self._builds.choose(build, Choice.PROVEN)
                    self._record("engine.proven", build, reason)
                case RolledBack(reason):
                    self._roll_back(build, reason)
        except BuildsUnwritable as exc:
            self._note_undecided(build, exc)
            return False
        self._unwritable.pop(build.build_id, None)
        return True

    def _note_undecided(self, build: Build, exc: BuildsUnwritable) -> None:
        """Said once: it is tried again at each look."""
        if self._unwritable.get(build.build_id) != str(exc):
            self._unwritable[build.build_id] = str(exc)
            log.warning("engine.undecided", build=build.build_id, reason=str(exc))

    def _roll_back(self, build: Build, reason: str) -> None:
        self._builds.mark_failed(build, reason)
        old = next((one for one in self._builds.of(build.backend) if one.is_proven), None)
        if old is not None:
            self._builds.choose(old, Choice.CURRENT)
        log.error("engine.rolled_back", build=build.build_id, reason=reason)
        self._journal.record(
            "engine.rolled_back", reason=reason, backend=build.backend, build=build.build_id
        )

    def _note_proven(self) -> None:
        """Remember builds that serve real models: what a later one falls back on."""
        if self._rollout.served.is_set() and self._served_are_proven():
            self._rollout.served.clear()

    def _served_are_proven(self) -> bool:
        """Have that be seen in the links: whether the disk took it of all of them."""
        are_written = True
        for engine in self.engines or ():
            build = self._build_of(engine)
            if build is None or build.is_proven or not self._rollout.has_served(engine.engine_id):
                continue
            try:
                self._builds.choose(build, Choice.PROVEN)
            except BuildsUnwritable as exc:
                self._note_undecided(build, exc)
                are_written = False
            else:
                self._unwritable.pop(build.build_id, None)
        return are_written

    def _build_of(self, engine: Engine) -> Build | None:
        return next((b for b in self._builds.all() if _is_of(engine, b)), None)

    async def _on_disk(self, config: Config) -> tuple[str, ...]:
        """What tells of an upgrade; as before where the disk does not answer."""
        look = partial(engines_key, config.backends, self._state_dir)
        try:
            return await PatientReader("engines", look, limit_s=ENGINES_S).read()
        except NoAnswer:
            return self._key


def _build_id(engine: Engine) -> str:
    return Path(engine.path).parents[1].name


def _is_of(engine: Engine, build: Build) -> bool:
    return engine.source == "built" and Path(engine.path) == build.binary.resolve()
