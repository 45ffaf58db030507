"""Launches of small models on this machine: what the engine reports against both predictions.

The processor, Mesa's software Vulkan device and `ggml-rpc-server`s over loopback; all of them are
this machine's, so nothing here says anything of speed.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic

from msgspec.structs import replace

from bench.planner.engine import READY, TWINS, live_engine, with_twins
from bench.planner.real import REAL, write_real
from bench.planner.rows import Reported, Row
from bench.planner.scores import Error, compared
from planners.argv import child_argv, child_env
from planners.backends import Engine
from planners.gguf import parse_model
from planners.graph.buffers import BufferKind, BufferLine, measured, parse_buffer_line
from planners.graph.fallback import SOFTWARE_BINDING_BYTES, is_remote
from planners.graph.kv_cache import LaunchShape
from planners.graph.repack import ends_the_engine
from planners.graph.reservation import is_known
from planners.hardware import HOST, DeviceId
from planners.layout.dry_runs import PreflightFailed, Told
from planners.memory import output_buffer_bytes, output_growth_bytes, predict
from planners.model import ModelId, ModelInfo
from planners.plan import DeviceBytes, LaunchPlan
from planners.preflight import as_told, is_told_of
from supervisor.children.child import Child, running
from supervisor.preflight import PreflightCache, preflight
from tests.fakes.rpc_servers import rpc_server
from tests.fakes.tiny_models import tiny_models, write

VULKANS = tuple(DeviceId(f"vulkan:Vulkan{i}") for i in range(TWINS))
"""One software device, shown as several where more than the first is used."""
VULKAN = VULKANS[0]
LOAD_S = 60.0  # a cold shader cache has cost as much
RPC_REST_S = 1.0  # backoff
TRIES = 4  # of one launch
_HEAD_BYTES = 16 << 20


class LaunchDied(Exception):
    """The engine ended before it had reserved its buffers; the message is its last lines."""


@dataclass(frozen=True, slots=True)
class Live:
    """One launch: what both predictions said, what the engine reported.

    Over several devices and remote ones no plan goes by a dry run: there `dry` is the closed
    form's, and `dry_anyway` what it would have been.
    """

    name: str
    info: ModelInfo
    shape: LaunchShape
    predicted: tuple[DeviceBytes, ...]
    dry: tuple[DeviceBytes, ...] | PreflightFailed
    reported: tuple[DeviceBytes, ...]
    dry_s: float | None
    dry_anyway: tuple[DeviceBytes, ...] | PreflightFailed
    died: str = ""
    """The engine's last lines where it did not come up; nothing was reported then."""

    @property
    def row(self) -> Row:
        """As of a table."""
        actual = {
            part.device_id: Reported(
                weights_bytes=0 if part.device_id == HOST else part.weights_bytes,
                kv_bytes=part.kv_bytes,
                output_bytes=0,
                compute_bytes=part.compute_bytes,
            )
            for part in self.reported
        }
        return Row(self.name, self.info, self.shape, None, actual, is_dry=False)

    def judged(self, parts: Sequence[DeviceBytes]) -> Iterator[Error]:
        """A prediction of it, device by device, the host where it computes alone."""
        is_alone = not self.shape.split
        found = compared(self.row, parts)
        return (error for error in found if (error.device == HOST) == is_alone)

    @property
    def dry_errors(self) -> tuple[float, ...]:
        """Those of the dry run; () where it failed."""
        return () if isinstance(self.dry, PreflightFailed) else tuple(self.errors(self.dry))

    def errors(self, parts: Sequence[DeviceBytes]) -> Iterator[float]:
        """Relative errors of the devices' totals, of the host's without weights where alone."""
        found = {part.device_id: part for part in parts}
        is_alone = len(self.predicted) == 1
        for actual in self.reported:
            if (actual.device_id == HOST) != is_alone or actual.device_id not in found:
                continue
            own = found[actual.device_id]
            weights = 0 if is_alone else own.weights_bytes
            taken = actual.kv_bytes + actual.compute_bytes
            taken += 0 if is_alone else actual.weights_bytes
            yield (weights + own.kv_bytes + own.compute_bytes) / max(taken, 1) - 1


@contextmanager
def rpc_servers(count: int) -> Iterator[tuple[str, ...]]:
    """Addresses of `count` ggml-rpc-servers on loopback, for as long as the block lasts."""
    with ExitStack() as held:
        yield tuple(held.enter_context(rpc_server()).address for _ in range(count))


def read(path: Path) -> ModelInfo:
    """What a file with a small header is."""
    with path.open("rb") as stream:
        return parse_model(stream.read(_HEAD_BYTES), file_bytes=path.stat().st_size)


def plan_of(path: Path, info: ModelInfo, shape: LaunchShape, *, engine: Engine) -> LaunchPlan:
    """The launch that `shape` describes."""
    names = _engine_names(shape)
    predicted = predict(info, shape, overhead_bytes={})
    return LaunchPlan(
        model_id=ModelId(path.stem), model_path=str(path), model_digest=info.digest, file_key="",
        backend=engine.backend, engine_id=engine.engine_id,
        devices=tuple((device, names[device], layers) for device, layers in shape.split),
        n_ctx=shape.n_ctx, n_parallel=shape.n_parallel, n_batch=shape.n_batch,
        n_ubatch=shape.n_ubatch, n_gpu_layers=shape.n_gpu_layers, n_threads=1,
        type_k=shape.type_k, type_v=shape.type_v, flash_attn=shape.flash_attn, cache_ram_mib=0,
        ctx_checkpoints=0, embedding=shape.embedding, mmproj_path=None, draft_path=None,
        lora_paths=(), extra_flags=("--no-warmup",), predicted=predicted, reasons=(),
        n_cpu_moe=shape.n_cpu_moe, swa_full=shape.swa_full,
        repack=not (engine.has_tiles and ends_the_engine(info)),
    )  # fmt: skip


def _engine_names(shape: LaunchShape) -> dict[DeviceId, str]:
    remote = [device for device, _ in shape.split if is_remote(device)]
    local = {device: f"Vulkan{i}" for i, device in enumerate(VULKANS)}
    return local | {device: f"RPC{i}" for i, device in enumerate(remote)}


def reaching(engine: Engine, servers: Sequence[str]) -> Engine:
    """`engine` with these servers' devices, which it must know before it reads `--device`."""
    if not servers:
        return engine
    return replace(engine, env=(*engine.env, ("LLAMA_ARG_RPC", ",".join(servers))))


async def reported(plan: LaunchPlan, *, engine: Engine, cwd: Path) -> tuple[DeviceBytes, ...]:
    """What the engine's buffers took, on HOST without mapped weights. Raises TimeoutError."""
    lines: list[BufferLine] = []
    ready = asyncio.Event()

    def hear(line: str) -> None:
        if READY in line:
            ready.set()
        if (buffer := parse_buffer_line(line)) is not None:
            lines.append(buffer)

    argv = child_argv(plan, engine=engine, socket_path=str(cwd / "s.sock"), slot_dir=str(cwd))
    (cwd / "s.sock").unlink(missing_ok=True)
    async with (
        asyncio.timeout(LOAD_S),
        running(
            argv,
            env=child_env(engine, os.environ),
            cwd=str(cwd),
            stop_s=0.0,
            on_stdout=hear,
            on_stderr=hear,
        ) as child,
        asyncio.TaskGroup() as tasks,
    ):
        end = tasks.create_task(_set_at_end(ready, child))
        await ready.wait()
        end.cancel()
    if not any(line.kind is BufferKind.COMPUTE for line in lines):
        raise LaunchDied("\n".join(child.log.last(20)))
    return measured(lines, plan)


async def _persistent(plan: LaunchPlan, *, engine: Engine, cwd: Path) -> tuple[DeviceBytes, ...]:
    """Further tries where one died: a ggml-rpc-server takes one client at a time."""
    for _ in range(TRIES - 1):
        with suppress(LaunchDied):
            return await reported(plan, engine=engine, cwd=cwd)
        await asyncio.sleep(RPC_REST_S)
    return await reported(plan, engine=engine, cwd=cwd)


async def _set_at_end(ready: asyncio.Event, child: Child) -> None:
    await child.wait()
    ready.set()


def launches(rng: Random, info: ModelInfo, servers: Sequence[str]) -> Iterator[LaunchShape]:
    """One launch of each placement: processor, whole, partial, and over remote devices."""
    # b10434 aborts on an encoder whose ubatch its slots do not divide.
    n_parallel = rng.choice((1, 2, 4) if info.is_embedding else (1, 2, 3))
    size = rng.choice((64, 128, 256, 512))
    common = LaunchShape(
        n_ctx=rng.choice((512, 1024, 4096)) * n_parallel, n_parallel=n_parallel, n_batch=size,
        n_ubatch=size, flash_attn=rng.random() < 0.7, embedding=info.is_embedding,
        backend="vulkan", binding_limits=tuple((d, SOFTWARE_BINDING_BYTES) for d in VULKANS),
    )  # fmt: skip
    n_all = info.n_layer + 1
    yield common
    yield replace(common, split=((VULKAN, n_all),))
    yield replace(common, split=((VULKAN, rng.randint(1, n_all - 1)),))
    yield replace(common, split=tuple(zip(VULKANS, _shares(rng, n_all, 2), strict=False)))
    if servers:
        counts = _shares(rng, n_all, len(servers) + 1)
        devices = [*(DeviceId(f"rpc:{server}") for server in servers), VULKAN]
        split = tuple((d, n) for d, n in zip(devices, counts, strict=True) if n)
        if len(split) == len(devices):
            yield replace(common, split=split)


def _shares(rng: Random, total: int, count: int) -> list[int]:
    """`total` in `count` parts, as even as chance has it."""
    cuts = sorted(rng.sample(range(1, total), count - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


async def handful(*, seed: int, models: int, folder: Path, real: int = 0) -> list[Live]:
    """Launches of a seeded choice of models in `folder`, each predicted, run dry and loaded.

    `real`: so many of them have the shapes of models that people run.
    """
    rng, engine = Random(seed), live_engine()
    chosen = [(write, model) for model in rng.sample(tiny_models(), models)]
    chosen += [(write_real, model) for model in rng.sample(REAL, real)]
    found = []
    for write_model, model in chosen:
        path = write_model(model, folder)
        info = read(path)
        # Anew for each: a killed client has been seen to take a server with it.
        with rpc_servers(rng.choice((2, 3))) as servers:
            for shape in launches(rng, info, servers):
                found.append(await one(path, info, shape, engine=engine, servers=servers))
    return found


def measured_parts(
    plan: LaunchPlan, info: ModelInfo, shape: LaunchShape, told: Told
) -> tuple[DeviceBytes, ...]:
    """The plan's bytes with what its dry run told."""
    output, growth = output_buffer_bytes(info, shape), output_growth_bytes(info, shape)
    return as_told(plan.predicted, told, output_bytes=output, growth_bytes=growth)


async def one(
    path: Path, info: ModelInfo, shape: LaunchShape, *, engine: Engine, servers: Sequence[str]
) -> Live:
    """One launch."""
    used = [server for server in servers if any(server in device for device, _ in shape.split)]
    engine = reaching(engine, used)
    if any(device in VULKANS[1:] for device, _ in shape.split):
        engine = with_twins(engine)
    may_repack = not (engine.has_tiles and ends_the_engine(info))
    shape = replace(shape, host_tiles=engine.has_tiles and may_repack)
    plan = plan_of(path, info, shape, engine=engine)
    started_s = monotonic()
    told = await preflight(
        plan, engine=engine, cache=PreflightCache(None), environ=os.environ, cwd=path.parent
    )
    dry_s = monotonic() - started_s
    anyway = told if isinstance(told, PreflightFailed) else measured_parts(plan, info, shape, told)
    devices = [device for device, _ in shape.split]
    dry = anyway if is_told_of(devices, is_known=is_known(info)) else plan.predicted
    died = ""
    try:
        actual = await _persistent(plan, engine=engine, cwd=path.parent)
    except (LaunchDied, TimeoutError) as exc:
        actual, died = (), str(exc) or "it took too long"
    where = "+".join(f"{name}:{layers}" for _, name, layers in plan.devices) or "processor"
    name = f"{path.stem} {where} -c {shape.n_ctx} -np {shape.n_parallel} -ub {shape.n_ubatch}"
    return Live(name, info, shape, plan.predicted, dry, actual, dry_s, anyway, died)
