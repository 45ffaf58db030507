"""Dry runs of the real engine, and of programs that pretend to be one."""

import asyncio
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest
from msgspec.structs import replace

from bench.planner.engine import live_engine
from bench.planner.live import VULKAN, measured_parts, plan_of, read, reported
from planners.backends import Engine
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.layout.dry_runs import DryRunKey, PreflightFailed, Reserved
from planners.memory import output_buffer_bytes
from planners.model import ModelInfo
from planners.plan import DeviceBytes, LaunchPlan
from planners.sizes import MIB
from supervisor.preflight import PreflightCache, Preflights, preflight
from tests.fakes.machines import FLAGS, engine
from tests.fakes.system_parts import need_mesa
from tests.fakes.tiny_models import tiny_models, write

MODELS = {model.name: model for model in tiny_models()}
SHAPE = LaunchShape(n_ctx=2048, n_parallel=2, n_batch=256, n_ubatch=256, backend="vulkan")
TABLE = """\
x I sched_reserve:        CPU compute buffer size =    11.25 MiB
x I print: | memory breakdown [MiB] | total   free    self   model   context   compute    un |
x I print: |   - Host               |                   24 =     8 +       5 +      11       |
x I fit: done
"""
RUNS = "runs"
SEVEN = Reserved(6, 7)


@pytest.fixture
def short_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    folder.mkdir()
    return folder


def pretender(folder: Path, script: str) -> Engine:
    """An engine that is a shell script; each run leaves a line in a file."""
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\necho run >> {folder / RUNS}\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    flags = FLAGS | {"--fit-target", "--no-warmup"}
    return replace(engine("vulkan", flags=flags), path=str(path))


def runs(folder: Path) -> int:
    return len((folder / RUNS).read_text().splitlines())


async def dry(
    plan: LaunchPlan,
    *,
    engine: Engine,
    info: ModelInfo,
    shape: LaunchShape,
    cwd: Path,
    cache: PreflightCache | None = None,
    limit_s: float = 30.0,
) -> tuple[DeviceBytes, ...] | PreflightFailed:
    told = await preflight(
        plan,
        engine=engine,
        cache=cache or PreflightCache(None),
        environ=os.environ,
        cwd=cwd,
        limit_s=limit_s,
    )
    return told if isinstance(told, PreflightFailed) else measured_parts(plan, info, shape, told)


def totals(parts: tuple[DeviceBytes, ...]) -> dict[DeviceId, int]:
    return {part.device_id: part.kv_bytes + part.compute_bytes for part in parts}


@pytest.mark.llama
@pytest.mark.parametrize("name", ["dense", "windows-6", "hybrid-2", "experts"])
@pytest.mark.parametrize("layers", [0, 2, 99], ids=["processor", "partial", "whole"])
async def test_a_dry_run_agrees_with_the_load(name: str, layers: int, short_dir: Path) -> None:
    need_mesa()
    able = live_engine()
    path = write(MODELS[name], short_dir)
    info = read(path)
    count = min(layers, info.n_layer + 1)
    shape = replace(SHAPE, split=((VULKAN, count),) if count else ())
    plan = plan_of(path, info, shape, engine=able)

    measured = await dry(plan, engine=able, info=info, shape=shape, cwd=short_dir)
    loaded = await reported(plan, engine=able, cwd=short_dir)

    assert isinstance(measured, tuple)
    device = VULKAN if count else HOST
    assert totals(measured)[device] == pytest.approx(totals(loaded)[device], rel=0.02)


@pytest.fixture
def known(short_dir: Path) -> tuple[Path, ModelInfo]:
    path = write(MODELS["dense"], short_dir)
    return path, read(path)


@pytest.mark.parametrize(
    ("script", "limit_s", "reason"),
    [
        pytest.param("exec sleep 60", 0.5, "nothing usable within 0.5 s", id="hangs"),
        pytest.param("while :; do echo garbage garbage; done", 0.5, "within 0.5 s", id="floods"),
        pytest.param("echo oh no >&2; exit 3", 30.0, "ended with 3: oh no", id="dies"),
        pytest.param("kill -SEGV $$", 30.0, "ended with -11", id="crashes"),
        pytest.param("head -c 100000 /dev/urandom; exit 0", 30.0, "ended with 0", id="noise"),
        pytest.param("exit 0", 30.0, "printed nothing", id="says nothing"),
    ],
)
async def test_an_engine_that_fails_costs_its_time_limit_at_most(
    script: str, limit_s: float, reason: str, known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = pretender(short_dir, script)
    plan = plan_of(path, info, SHAPE, engine=able)

    started_s = monotonic()
    found = await dry(plan, engine=able, info=info, shape=SHAPE, cwd=short_dir, limit_s=limit_s)

    assert isinstance(found, PreflightFailed)
    assert reason in found.reason
    assert monotonic() - started_s < 10


async def test_without_a_folder_for_its_socket_a_dry_run_fails_and_nothing_else(
    known: tuple[Path, ModelInfo], short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, info = known
    able = pretender(short_folder, "exit 0")
    plan = plan_of(path, info, SHAPE, engine=able)
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder / "full"))

    found = await dry(plan, engine=able, info=info, shape=SHAPE, cwd=short_folder)

    assert isinstance(found, PreflightFailed)
    assert "no folder for its socket" in found.reason


async def test_an_engine_that_is_gone_is_told(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = replace(pretender(short_dir, ""), path=str(short_dir / "gone"))
    plan = plan_of(path, info, SHAPE, engine=able)

    found = await dry(plan, engine=able, info=info, shape=SHAPE, cwd=short_dir)

    assert isinstance(found, PreflightFailed)
    assert "gone" in found.reason


async def test_an_engine_without_fitting_is_not_even_started(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = replace(pretender(short_dir, "exit 1"), flags=FLAGS)
    plan = plan_of(path, info, SHAPE, engine=able)

    found = await dry(plan, engine=able, info=info, shape=SHAPE, cwd=short_dir)

    assert isinstance(found, PreflightFailed)
    assert not (short_dir / RUNS).exists()


def speaker(folder: Path) -> Engine:
    (folder / "table").write_text(TABLE)
    return pretender(folder, f"cat {folder / 'table'} >&2; exec sleep 60")


async def test_an_answer_is_remembered_over_restarts(
    known: tuple[Path, ModelInfo], short_dir: Path, tmp_path: Path
) -> None:
    path, info = known
    able = speaker(short_dir)
    plan = plan_of(path, info, SHAPE, engine=able)
    file = tmp_path / "preflights.json"

    async def again(plan: LaunchPlan, engine: Engine) -> tuple[DeviceBytes, ...] | PreflightFailed:
        cache = PreflightCache(file)
        return await dry(
            plan, engine=engine, info=info, shape=SHAPE, cwd=short_dir, cache=cache
        )  # fmt: skip

    first = await again(plan, able)
    second = await again(plan, able)

    assert isinstance(first, tuple)
    assert first == second
    assert runs(short_dir) == 1
    expected = 11.25 * MIB + output_buffer_bytes(info, SHAPE)
    assert first[0].compute_bytes == pytest.approx(expected, abs=0.01 * MIB)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda plan, able: (replace(plan, n_ubatch=128), able), id="flags"),
        pytest.param(lambda plan, able: (replace(plan, model_digest="other"), able), id="model"),
        pytest.param(lambda plan, able: (plan, replace(able, engine_id="other")), id="engine"),
    ],
)
async def test_an_answer_serves_no_other_launch(
    known: tuple[Path, ModelInfo],
    short_dir: Path,
    change: Callable[[LaunchPlan, Engine], tuple[LaunchPlan, Engine]],
) -> None:
    path, info = known
    able = speaker(short_dir)
    plan = plan_of(path, info, SHAPE, engine=able)
    cache = PreflightCache(None)
    await dry(plan, engine=able, info=info, shape=SHAPE, cwd=short_dir, cache=cache)

    plan, able = change(plan, able)
    await dry(plan, engine=able, info=info, shape=SHAPE, cwd=short_dir, cache=cache)

    assert runs(short_dir) == 2


@pytest.mark.parametrize("content", ["", "no json", "[1]", '{"a": {"b": "c"}}', '{"a": {"b": 7}}'])
async def test_a_broken_memory_is_an_empty_one(content: str, tmp_path: Path) -> None:
    file = tmp_path / "preflights.json"
    file.write_text(content)

    cache = PreflightCache(file)
    cache.remember("key", {HOST: SEVEN})

    assert PreflightCache(file).get("key") == {HOST: SEVEN}


def test_memory_is_bounded() -> None:
    cache = PreflightCache(None)
    for i in range(300):
        cache.remember(str(i), {HOST: Reserved(i, i)})

    assert cache.get("0") is None
    assert cache.get("299") == {HOST: Reserved(299, 299)}


async def test_a_cancelled_dry_run_leaves_no_process(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = pretender(short_dir, f"echo $$ > {short_dir / 'pid'}; exec sleep 60")
    plan = plan_of(path, info, SHAPE, engine=able)
    run = asyncio.create_task(dry(plan, engine=able, info=info, shape=SHAPE, cwd=short_dir))
    async with asyncio.timeout(10):
        while not (short_dir / "pid").exists() or not (short_dir / "pid").read_text().strip():
            await asyncio.sleep(0.01)

    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    pid = int((short_dir / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


class Loop:
    """Preflights as the fleet's loop uses them."""

    def __init__(self, folder: Path, able: Engine) -> None:
        self.looked = asyncio.Event()
        self.able = able
        self.preflights = Preflights(
            PreflightCache(None), environ=os.environ, cwd=folder, changed=self.looked.set
        )

    def begin(self, plan: LaunchPlan, tasks: asyncio.TaskGroup) -> None:
        self.preflights.begin(plan, engine=self.able, tasks=tasks)

    async def answered(self, plan: LaunchPlan, tasks: asyncio.TaskGroup) -> None:
        self.looked.clear()
        self.begin(plan, tasks)
        async with asyncio.timeout(10):
            await self.looked.wait()


def doubtful(plan: LaunchPlan, *, n_ubatch: int = 256) -> LaunchPlan:
    shape = replace(SHAPE, n_ubatch=n_ubatch)
    key = DryRunKey(plan.engine_id, plan.model_digest, shape, settings=())
    return replace(plan, devices=(), n_ubatch=n_ubatch, doubt=key)


async def test_a_doubtful_launch_has_one_dry_run_at_a_time(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = speaker(short_dir)
    plan = doubtful(plan_of(path, info, SHAPE, engine=able))
    loop = Loop(short_dir, able)
    assert plan.doubt is not None

    async with asyncio.TaskGroup() as tasks:
        loop.begin(plan, tasks)
        before = loop.preflights.dry_runs
        await loop.answered(plan, tasks)
    after = loop.preflights.dry_runs

    assert before.may_tell(plan.doubt, plan.model_id)
    assert before.of(plan.doubt) is None
    assert not after.may_tell(plan.doubt, plan.model_id)
    told = after.of(plan.doubt)
    assert told is not None
    assert told[HOST].nearest_bytes(0) == pytest.approx(11.25 * MIB, rel=1e-3)
    assert runs(short_dir) == 1


async def test_a_launch_without_doubt_is_not_run_dry(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = speaker(short_dir)
    loop = Loop(short_dir, able)

    async with asyncio.TaskGroup() as tasks:
        loop.begin(plan_of(path, info, SHAPE, engine=able), tasks)

    assert not (short_dir / RUNS).exists()


async def test_after_a_failed_dry_run_nobody_waits_for_another(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = pretender(short_dir, "exit 1")
    plan = doubtful(plan_of(path, info, SHAPE, engine=able))
    other = doubtful(plan, n_ubatch=128)
    loop = Loop(short_dir, able)
    assert plan.doubt is not None
    assert other.doubt is not None

    async with asyncio.TaskGroup() as tasks:
        await loop.answered(plan, tasks)
    failed = loop.preflights.dry_runs
    loop.preflights.forget(plan.model_id)
    forgotten = loop.preflights.dry_runs

    assert failed.of(plan.doubt) is None
    assert not failed.may_tell(other.doubt, plan.model_id)
    assert forgotten.may_tell(plan.doubt, plan.model_id)


async def test_a_models_callers_wait_for_three_dry_runs_at_most(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = speaker(short_dir)
    plan = plan_of(path, info, SHAPE, engine=able)
    one, two, three, four = (doubtful(plan, n_ubatch=n) for n in (256, 128, 64, 32))
    loop = Loop(short_dir, able)
    assert four.doubt is not None

    async with asyncio.TaskGroup() as tasks:
        await loop.answered(one, tasks)
        await loop.answered(two, tasks)
        may_still = loop.preflights.dry_runs.may_tell(four.doubt, plan.model_id)
        await loop.answered(three, tasks)

    assert may_still
    assert not loop.preflights.dry_runs.may_tell(four.doubt, plan.model_id)


async def test_stopping_ends_a_dry_run_under_way(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = pretender(short_dir, "exec sleep 60")
    plan = doubtful(plan_of(path, info, SHAPE, engine=able))
    loop = Loop(short_dir, able)

    started_s = monotonic()
    async with asyncio.TaskGroup() as tasks:
        loop.begin(plan, tasks)
        loop.preflights.stop()

    assert monotonic() - started_s < 10
