"""The dry run of a plan: the engine says what its buffers take, and is killed before it loads.

Remembered by engine, model header, devices and flags, so that a plan is run dry once. Whatever goes
wrong is a PreflightFailed: plans work without it.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import msgspec
import structlog

from planners.argv import child_env
from planners.backends import Engine
from planners.errors import PlanError
from planners.graph.buffers import parse_buffer_line
from planners.hardware import DeviceId
from planners.layout.dry_runs import DryRunKey, DryRuns, PreflightFailed, Reserved, Told
from planners.model import ModelId
from planners.plan import LaunchPlan
from planners.preflight import DryRun, preflight_argv
from supervisor.children.child import Child, SpawnFailed, Unreapable, running
from supervisor.engines.scratch import scratch_folder
from supervisor.kept_file import read_kept, replace_kept

PREFLIGHT_S = 20.0  # 0.1 to 1.8 s were measured; a cold driver takes some seconds
MOST_REMEMBERED = 256
MOST_RUNS = 3  # a model's callers wait for; each of them may cost a concession
KILL_S = 0.0  # SIGKILL at once: it has nothing to save, and a breath later it would load

log = structlog.get_logger(__name__)


class PreflightCache:
    """What dry runs said, in a file of the state folder; in memory alone without one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = _loaded(path)

    def get(self, key: str) -> Told | None:
        """The compute buffers of a plan that was run dry before."""
        return self._known.get(key)

    def remember(self, key: str, told: Told) -> None:
        """Keep a result; the oldest ones make room. A file that cannot be written costs a run."""
        self._known.pop(key, None)
        self._known[key] = dict(told)
        while len(self._known) > MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        if self._path is None:
            return
        try:
            replace_kept(self._path, msgspec.json.encode(self._known))
        except OSError as exc:
            log.warning("dry_run.not_kept", path=str(self._path), why=str(exc))


def _loaded(path: Path | None) -> dict[str, dict[DeviceId, Reserved]]:
    if path is None:
        return {}
    try:
        known = msgspec.json.decode(read_kept(path), type=dict[str, dict[str, Reserved]])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as exc:
        log.warning("dry_run.unreadable", path=str(path), why=str(exc))
        return {}
    return {
        key: {DeviceId(name): reserved for name, reserved in told.items()}
        for key, told in known.items()
    }


async def preflight(
    plan: LaunchPlan,
    *,
    engine: Engine,
    cache: PreflightCache,
    environ: Mapping[str, str],
    cwd: Path,
    limit_s: float = PREFLIGHT_S,
) -> Told | PreflightFailed:
    """The plan's compute buffers as the engine itself reserves them.

    `cwd`: a folder that children cannot write. Weights are not read; devices are opened for the
    moment.
    """
    try:
        argv = preflight_argv(plan, engine=engine, socket_path="")
    except PlanError as exc:
        return PreflightFailed(str(exc))
    key = _key(plan, engine, argv)
    if (known := cache.get(key)) is not None:
        return known
    started_s = monotonic()
    found = await _dry_run(plan, engine=engine, environ=environ, cwd=cwd, limit_s=limit_s)
    spent_s = round(monotonic() - started_s, 3)
    if isinstance(found, PreflightFailed):
        log.warning("dry_run.failed", model_id=plan.model_id, reason=found.reason)
        return found
    log.info("dry_run.done", model_id=plan.model_id, spent_s=spent_s)
    cache.remember(key, found)
    return found


def _key(plan: LaunchPlan, engine: Engine, argv: tuple[str, ...]) -> str:
    """Changes with the engine's files, the model's header, the devices and every flag."""
    flags = [word for word in argv[1:] if word not in (plan.model_path, plan.model_id)]
    told = (engine.engine_id, plan.model_digest, plan.devices, flags)
    return hashlib.sha256(repr(told).encode()).hexdigest()


async def _dry_run(
    plan: LaunchPlan, *, engine: Engine, environ: Mapping[str, str], cwd: Path, limit_s: float
) -> Told | PreflightFailed:
    try:
        with scratch_folder() as folder:
            argv = preflight_argv(plan, engine=engine, socket_path=str(folder / "s.sock"))
            said = await _heard(argv, env=child_env(engine, environ), cwd=cwd, limit_s=limit_s)
    except OSError as exc:
        return PreflightFailed(f"it found no folder for its socket: {exc}")
    return said if isinstance(said, PreflightFailed) else said.told(plan)


async def _heard(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, limit_s: float
) -> DryRun | PreflightFailed:
    """What the engine says up to its table; it is dead when this returns."""
    said, done = DryRun(), asyncio.Event()

    def hear(line: str) -> None:
        said.feed(line, parse_buffer_line(line))
        if said.is_complete:
            done.set()

    try:
        async with (
            asyncio.timeout(limit_s),
            running(
                argv, env=env, cwd=str(cwd), stop_s=KILL_S, on_stdout=hear, on_stderr=hear
            ) as child,
            asyncio.TaskGroup() as tasks,
        ):
            end = tasks.create_task(_set_at_end(done, child))
            await done.wait()
            end.cancel()
    except TimeoutError:
        return PreflightFailed(f"the engine said nothing usable within {limit_s:g} s")
    except (SpawnFailed, Unreapable) as exc:
        return PreflightFailed(str(exc))
    return said if said.is_complete else PreflightFailed(_why(child))


async def _set_at_end(done: asyncio.Event, child: Child) -> None:
    await child.wait()
    done.set()


def _why(child: Child) -> str:
    last = next(iter(child.log.last(1)), "it printed nothing")
    return f"the engine ended with {child.returncode}: {last[:200]}"


class Preflights:
    """Dry runs before doubtful launches: begun by a look, answered at a later one.

    Synchronous but for the runs themselves, and owned by the fleet's loop. A model's callers wait
    for MOST_RUNS at most; after that, and where one fails, upper bounds decide.
    """

    def __init__(
        self,
        cache: PreflightCache,
        *,
        environ: Mapping[str, str],
        cwd: Path,
        changed: Callable[[], None],
    ) -> None:
        self._cache, self._environ, self._cwd = cache, environ, cwd
        self._changed = changed
        self._told: dict[DryRunKey, Told] = {}
        self._failed: dict[ModelId, dict[DryRunKey, PreflightFailed]] = {}
        self._spent: Counter[ModelId] = Counter()
        self._under_way: dict[ModelId, asyncio.Task[None]] = {}

    @property
    def dry_runs(self) -> DryRuns:
        """What is known by now, for placement."""
        failed = {key: why for each in self._failed.values() for key, why in each.items()}
        spent = frozenset(model for model, count in self._spent.items() if count >= MOST_RUNS)
        return DryRuns({**self._told, **failed}, are_made=True, spent=spent)

    def begin(self, plan: LaunchPlan, *, engine: Engine, tasks: asyncio.TaskGroup) -> None:
        """Run a doubtful plan dry, unless a run for its model is under way."""
        if plan.doubt is None or plan.model_id in self._under_way:
            return
        run = self._run(plan, plan.doubt, engine)
        name = f"preflight {plan.model_id}"
        self._under_way[plan.model_id] = tasks.create_task(run, name=name)

    def forget(self, model_id: ModelId) -> None:
        """The model was launched, or refused: a later launch may ask again."""
        self._spent.pop(model_id, None)
        self._failed.pop(model_id, None)

    def stop(self) -> None:
        """End what is under way: nobody will launch."""
        for task in self._under_way.values():
            task.cancel()

    async def _run(self, plan: LaunchPlan, key: DryRunKey, engine: Engine) -> None:
        try:
            told = await preflight(
                plan, engine=engine, cache=self._cache, environ=self._environ, cwd=self._cwd
            )
        finally:
            del self._under_way[plan.model_id]
        if isinstance(told, PreflightFailed):
            self._spent[plan.model_id] = MOST_RUNS
            self._failed.setdefault(plan.model_id, {})[key] = told
        else:
            self._spent[plan.model_id] += 1
            self._told[key] = told
            while len(self._told) > MOST_REMEMBERED:
                del self._told[next(iter(self._told))]
        self._changed()
