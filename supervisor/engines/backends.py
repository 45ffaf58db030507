"""Finds the llama-servers of this machine and trusts none of them untried.

In order: what the config names, own builds under the state folder, PATH, the quickstart package.
A candidate that fails is named with its reason and the next of its kind is tried; one that breaks
never hides the others.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from planners.backends import DEFAULT_ORDER, Engine, EngineDevice, RejectedEngine
from planners.rollout import Newcomer
from supervisor.devices.host import cpu_identity
from supervisor.engines.builds import BINARY, Build, Builds, builds_folder
from supervisor.engines.engine_cache import EngineCache, EngineFiles, Verdict, files_key
from supervisor.engines.quickstart import packaged_engine
from supervisor.engines.trial import (
    Abilities,
    TrialFailed,
    TrialLimits,
    list_devices,
    refuse_foreign,
    try_engine,
)
from supervisor.errors import SupervisorError
from supervisor.printable import printable

AT_ONCE = 2  # a trial is one thread of work; more would only slow a small machine's other trials

_DEVICE_BACKENDS = {
    "CUDA": "cuda",
    "ROCm": "hip",
    "HIP": "hip",
    "MTL": "metal",
    "Metal": "metal",
    "Vulkan": "vulkan",
}

ConfiguredEngine = tuple[str, str, tuple[tuple[str, str], ...]]
"""`[backends.NAME]`: (NAME, path, env)."""


class _Candidate(Struct, frozen=True):
    path: str
    source: str
    env: tuple[tuple[str, str], ...] = ()
    is_proven: bool = False
    """Of an own build: it served a real model here."""
    since: float | None = None
    """UTC seconds at which an own build was made the current one; None where it is not."""


class _Outcome(Struct, frozen=True):
    """What came of one kind of candidates."""

    engine: Engine | None
    rejected: tuple[RejectedEngine, ...]
    newcomer: Newcomer | None = None


class Finding(Struct, frozen=True):
    """What was found and tried."""

    engines: tuple[Engine, ...]
    """Every one that decodes here, in the order of the sources."""
    rejected: tuple[RejectedEngine, ...]
    newcomers: tuple[Newcomer, ...] = ()
    """Builds that decode, and that one model is to try before they take the proven one's place."""


async def find_engines(
    *,
    configured: tuple[ConfiguredEngine, ...] = (),
    state_dir: Path,
    search_path: str | None = None,
    quickstart: bool = True,
    limits: TrialLimits | None = None,
    remember: bool = True,
) -> Finding:
    """Every llama-server of this machine, tried.

    `search_path` stands for PATH where it is given. Verdicts are remembered in
    `state_dir`/engines.json, but not where `remember` is off, which writes nothing; devices are
    asked anew each time.
    """
    kinds = _candidates(configured, state_dir, search_path, quickstart=quickstart)
    trials = _Trials(state_dir, limits or TrialLimits())
    async with asyncio.TaskGroup() as tasks:
        tasks_of_kinds = [tasks.create_task(trials.of_kind(kind)) for kind in kinds]
    if remember:
        trials.cache.save()
    found = [task.result() for task in tasks_of_kinds]
    engines = [outcome.engine for outcome in found if outcome.engine is not None]
    by_id = {engine.engine_id: engine for engine in reversed(engines)}  # of equal ones the first
    newcomers = (outcome.newcomer for outcome in found)
    return Finding(
        tuple(engine for engine in engines if by_id[engine.engine_id] is engine),
        tuple(rejected for outcome in found for rejected in outcome.rejected),
        tuple(each for each in newcomers if each and each.engine.engine_id not in by_id),
    )


def engines_key(configured: tuple[ConfiguredEngine, ...], state_dir: Path) -> tuple[str, ...]:
    """Changes when `find_engines` may find others: by names, sizes and times of files. Blocks."""
    kinds = _candidates(configured, state_dir, None, quickstart=True)
    return tuple(
        f"{candidate.path} {candidate.env} {files_key(candidate.path)}"
        for kind in kinds
        for candidate in kind
    )


def backend_kind(devices: Sequence[EngineDevice], libraries: Sequence[str]) -> str:
    """The backend an engine was built for: by its devices, else by the libraries beside it."""
    seen = {backend_of(device.name) for device in devices}
    beside = {
        backend
        for backend in DEFAULT_ORDER
        if any(name.startswith(f"libggml-{backend}.") for name in libraries)
    }
    ranked = (*(b for b in DEFAULT_ORDER if b in seen), *(b for b in DEFAULT_ORDER if b in beside))
    return next(iter(ranked), "cpu")


def backend_of(device_name: str) -> str | None:
    """The backend of a device ("Vulkan0" → "vulkan"); None for others, such as RPC's."""
    return _DEVICE_BACKENDS.get(device_name.rstrip("0123456789"))


class _Trials:
    """One round of trials: at most AT_ONCE at a time, with one memory."""

    def __init__(self, state_dir: Path, limits: TrialLimits) -> None:
        self.cache = EngineCache(state_dir / "engines.json", cpu=cpu_identity())
        self._limits = limits
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def of_kind(self, kind: Sequence[_Candidate]) -> _Outcome:
        """The engine to use of one kind: the first that decodes, or the proven one beside it."""
        first, newest = await self._first_that_runs(kind)
        proven = [candidate for candidate in kind if candidate.is_proven]
        if first.engine is None or newest is None or newest.since is None or newest in proven:
            return first
        old, _ = await self._first_that_runs(proven)
        rejected = (*first.rejected, *old.rejected)
        if old.engine is None or old.engine.engine_id == first.engine.engine_id:
            return replace(first, rejected=rejected)
        newcomer = Newcomer(first.engine, old.engine.engine_id, newest.since)
        return _Outcome(old.engine, rejected, newcomer)

    async def _first_that_runs(
        self, kind: Sequence[_Candidate]
    ) -> tuple[_Outcome, _Candidate | None]:
        """The first candidate that decodes, and those tried in vain before it."""
        rejected: list[RejectedEngine] = []
        for candidate in kind:
            try:
                async with self._turn:
                    engine = await self._tried(candidate)
            except (SupervisorError, OSError) as exc:
                reason = exc.reason if isinstance(exc, TrialFailed) else str(exc)
                path = printable(candidate.path)
                rejected.append(RejectedEngine(path, candidate.source, printable(reason)))
            else:
                return _Outcome(engine, tuple(rejected)), candidate
        return _Outcome(None, tuple(rejected)), None

    async def _tried(self, candidate: _Candidate) -> Engine:
        """The engine at `candidate`, decoding. Raises TrialFailed."""
        if not candidate.path.isprintable():
            raise TrialFailed(path=candidate.path, reason="its path cannot be printed")
        refuse_foreign(candidate.path)
        files = await self.cache.files(candidate.path)
        untried = _untried(candidate, files)
        verdict = self.cache.verdict(files, env=candidate.env)
        if verdict is not None and verdict.reason is not None:
            raise TrialFailed(path=candidate.path, reason=verdict.reason, lasting=True)
        able = None if verdict is None else verdict.able
        if able is None:
            able = await self._judged(untried, files)
        devices = await list_devices(untried, limit_s=self._limits.ask_s)
        return replace(
            untried,
            backend=backend_kind(devices, files.libraries),
            devices=devices,
            **asdict(able),
        )

    async def _judged(self, engine: Engine, files: EngineFiles) -> Abilities:
        """The outcome of a real trial, remembered where it can only come out the same again."""
        try:
            able = await try_engine(engine, limits=self._limits)
        except TrialFailed as exc:
            if exc.lasting:
                self.cache.remember(files, env=engine.env, verdict=Verdict(reason=exc.reason))
            raise
        self.cache.remember(files, env=engine.env, verdict=Verdict(able))
        return able


def _untried(candidate: _Candidate, files: EngineFiles) -> Engine:
    return Engine(
        engine_id=files.content_id[:12],
        backend="cpu",
        path=candidate.path,
        source=candidate.source,
        env=candidate.env,
        flags=frozenset(),
        devices=(),
        version="unknown",
    )


def _candidates(
    configured: Sequence[ConfiguredEngine],
    state_dir: Path,
    search_path: str | None,
    *,
    quickstart: bool,
) -> Iterator[list[_Candidate]]:
    """Candidates by kind: of each kind the first that runs is wanted. No file appears twice."""
    seen: set[str] = set()
    for kind in _kinds(configured, state_dir, search_path, quickstart=quickstart):
        by_path = {candidate.path: candidate for candidate in kind if candidate.path not in seen}
        seen.update(by_path)
        yield list(by_path.values())


def _kinds(
    configured: Sequence[ConfiguredEngine],
    state_dir: Path,
    search_path: str | None,
    *,
    quickstart: bool,
) -> Iterator[list[_Candidate]]:
    for _, path, env in configured:
        yield [_Candidate(_real(path), "config", env)]
    for builds in Builds(builds_folder(state_dir)).candidates():
        yield [_built(build) for build in builds]
    if on_path := shutil.which(BINARY, path=search_path):
        yield [_Candidate(_real(on_path), "path")]
    if quickstart and (packaged := packaged_engine()):
        yield [_Candidate(_real(packaged.path), "quickstart", packaged.env)]


def _built(build: Build) -> _Candidate:
    path = _real(build.binary)
    return _Candidate(path, "built", is_proven=build.is_proven, since=build.on_trial_since())


def _real(path: str | Path) -> str:
    """The file itself: a build keeps its path when `current` moves on."""
    return os.path.realpath(path)
