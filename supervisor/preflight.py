"""The dry run of a plan: the engine says what its buffers take, and is killed before it loads.

Remembered by engine, model header, devices and flags, so that a plan is run dry once. Whatever goes
wrong is a PreflightFailed: plans work without it.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import msgspec
import structlog

from planners.argv import child_env
from planners.backends import Engine
from planners.buffers import parse_buffer_line
from planners.errors import PlanError
from planners.fallback import is_remote
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.kv_cache import F32_BYTES
from planners.model import ModelId, ModelInfo
from planners.plan import DeviceBytes, LaunchPlan
from planners.preflight import (
    DryRun,
    PreflightFailed,
    corrected,
    excess_bytes,
    preflight_argv,
    straddles,
)
from supervisor.child import Child, SpawnFailed, Unreapable, running

PREFLIGHT_S = 20.0  # 0.1 to 1.8 s were measured; a cold driver takes some seconds
MOST_REMEMBERED = 256
KILL_S = 0.0  # SIGKILL at once: it has nothing to save, and a breath later it would load

log = structlog.get_logger(__name__)


class PreflightCache:
    """What dry runs said, in a file of the state folder; in memory alone without one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = _loaded(path)

    def get(self, key: str) -> Mapping[DeviceId, int] | None:
        """The compute buffers of a plan that was run dry before."""
        found = self._known.get(key)
        return None if found is None else {DeviceId(name): size for name, size in found.items()}

    def remember(self, key: str, compute_bytes: Mapping[DeviceId, int]) -> None:
        """Keep a result; the oldest ones make room. A file that cannot be written costs a run."""
        self._known.pop(key, None)
        self._known[key] = {str(device): size for device, size in compute_bytes.items()}
        while len(self._known) > MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        if self._path is None:
            return
        fresh = self._path.with_suffix(".json.new")
        try:
            fresh.write_bytes(msgspec.json.encode(self._known))
            fresh.replace(self._path)
        except OSError as exc:
            log.warning("preflight.not_kept", path=str(self._path), why=str(exc))


def _loaded(path: Path | None) -> dict[str, dict[str, int]]:
    if path is None:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, int]])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as exc:
        log.warning("preflight.unreadable", path=str(path), why=str(exc))
        return {}


async def preflight(
    plan: LaunchPlan,
    *,
    engine: Engine,
    output_bytes: int,
    cache: PreflightCache,
    environ: Mapping[str, str],
    cwd: Path,
    limit_s: float = PREFLIGHT_S,
) -> tuple[DeviceBytes, ...] | PreflightFailed:
    """The plan's bytes, compute buffers as the engine itself reserves them.

    `output_bytes`: the host's output buffer, which the dry run leaves out. `cwd`: a folder that
    children cannot write. Weights are not read; devices are opened for the moment.
    """
    try:
        argv = preflight_argv(plan, engine=engine, socket_path="")
    except PlanError as exc:
        return PreflightFailed(str(exc))
    key = _key(plan, engine, argv)
    compute = cache.get(key)
    if compute is None:
        started_s = monotonic()
        found = await _dry_run(plan, engine=engine, environ=environ, cwd=cwd, limit_s=limit_s)
        spent_s = round(monotonic() - started_s, 3)
        if isinstance(found, PreflightFailed):
            log.warning("preflight.failed", model_id=plan.model_id, reason=found.reason)
            return found
        log.info("preflight.done", model_id=plan.model_id, spent_s=spent_s)
        compute = found
        cache.remember(key, compute)
    return corrected(plan.predicted, compute, output_bytes=output_bytes)


def _key(plan: LaunchPlan, engine: Engine, argv: tuple[str, ...]) -> str:
    """Changes with the engine's files, the model's header, the devices and every flag."""
    flags = [word for word in argv[1:] if word not in (plan.model_path, plan.model_id)]
    told = (engine.engine_id, plan.model_digest, plan.devices, flags)
    return hashlib.sha256(repr(told).encode()).hexdigest()


async def _dry_run(
    plan: LaunchPlan, *, engine: Engine, environ: Mapping[str, str], cwd: Path, limit_s: float
) -> Mapping[DeviceId, int] | PreflightFailed:
    try:
        with TemporaryDirectory(prefix="inferenceosd-dry-") as folder:
            argv = preflight_argv(plan, engine=engine, socket_path=str(Path(folder) / "s.sock"))
            said = await _heard(argv, env=child_env(engine, environ), cwd=cwd, limit_s=limit_s)
    except OSError as exc:
        return PreflightFailed(f"it found no folder for its socket: {exc}")
    return said if isinstance(said, PreflightFailed) else said.compute_bytes(plan)


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
    """Dry runs before narrow launches: begun once per model, answered at a later look.

    Synchronous but for the runs themselves, and owned by the fleet's loop. A launch waits for at
    most one dry run, and goes ahead with its own prediction where that fails.
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
        self._asked: dict[ModelId, tuple[DeviceBytes, ...] | PreflightFailed | None] = {}
        self._excess: dict[ModelId, Mapping[DeviceId, int]] = {}
        self._running: set[asyncio.Task[None]] = set()

    def settled(
        self,
        plan: LaunchPlan,
        *,
        engine: Engine,
        info: ModelInfo,
        hardware: HardwareProfile,
        tasks: asyncio.TaskGroup,
    ) -> LaunchPlan | None:
        """The plan to launch now; None while its dry run is under way, or asks for another plan."""
        if plan.model_id not in self._asked:
            # A killed client has been seen to take a ggml-rpc-server with it.
            is_remote_too = any(is_remote(device) for device, _, _ in plan.devices)
            if is_remote_too or not straddles(plan, hardware):
                return plan
            self._asked[plan.model_id] = None
            name = f"preflight {plan.model_id}"
            run = tasks.create_task(self._run(plan, engine, info), name=name)
            self._running.add(run)
            run.add_done_callback(self._running.discard)
            return None
        found = self._asked[plan.model_id]
        if found is None:
            return None
        if isinstance(found, PreflightFailed) or not _matches(found, plan):
            return plan
        if plan.model_id in self._excess:
            return plan
        self._excess[plan.model_id] = excess_bytes(found, plan, hardware)
        return None if self._excess[plan.model_id] else replace(plan, predicted=found)

    def forget(self, model_id: ModelId) -> None:
        """The model was launched, or is wanted no more."""
        self._asked.pop(model_id, None)
        self._excess.pop(model_id, None)

    def stop(self) -> None:
        """End what is under way: nobody will launch."""
        for run in self._running:
            run.cancel()

    def reserved(
        self, hardware: HardwareProfile, *, is_waiting: Callable[[ModelId], object]
    ) -> HardwareProfile:
        """The machine less what dry runs found missing from the predictions of awaited models."""
        missing: Counter[DeviceId] = Counter()
        for model_id, excess in self._excess.items():
            if is_waiting(model_id):
                missing.update(excess)
        if not missing:
            return hardware
        devices = tuple(
            replace(device, reserve_bytes=device.reserve_bytes + missing[device.device_id])
            for device in hardware.devices
        )
        host = hardware.host
        host = replace(host, reserve_bytes=host.reserve_bytes + missing[HOST])
        return replace(hardware, host=host, devices=devices)

    async def _run(self, plan: LaunchPlan, engine: Engine, info: ModelInfo) -> None:
        width = info.n_vocab + (info.n_embd if plan.embedding else 0)
        self._asked[plan.model_id] = await preflight(
            plan,
            engine=engine,
            output_bytes=F32_BYTES * plan.n_parallel * width,
            cache=self._cache,
            environ=self._environ,
            cwd=self._cwd,
        )
        self._changed()


def _matches(found: tuple[DeviceBytes, ...], plan: LaunchPlan) -> bool:
    """Whether a dry run was that of this plan: memory that changes meanwhile changes the plan."""
    kept = [(part.device_id, part.weights_bytes, part.kv_bytes) for part in found]
    return kept == [(p.device_id, p.weights_bytes, p.kv_bytes) for p in plan.predicted]
