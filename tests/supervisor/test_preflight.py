"""Dry runs of the real engine, and of programs that pretend to be one."""

import asyncio
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from bench.planner.live import (
    VULKAN,
    live_engine,
    plan_of,
    reaching,
    read,
    reported,
    rpc_servers,
)
from planners.backends import Engine
from planners.hardware import HOST, DeviceId
from planners.kv_cache import LaunchShape
from planners.memory import output_buffer_bytes
from planners.model import ModelInfo
from planners.plan import DeviceBytes, LaunchPlan
from planners.preflight import PreflightFailed
from supervisor.preflight import PreflightCache, Preflights, preflight
from tests.fakes.machines import FLAGS, engine, machine
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
    return await preflight(
        plan,
        engine=engine,
        output_bytes=output_buffer_bytes(info, shape),
        cache=cache or PreflightCache(None),
        environ=os.environ,
        cwd=cwd,
        limit_s=limit_s,
    )


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


@pytest.mark.llama
async def test_three_remote_devices_are_run_dry_and_loaded(short_dir: Path) -> None:
    need_mesa()
    path = write(MODELS["normed"], short_dir)
    info = read(path)
    with rpc_servers(3) as servers:
        able = reaching(live_engine(), servers)
        split = tuple((DeviceId(f"rpc:{s}"), n) for s, n in zip(servers, (2, 1, 2), strict=True))
        shape = replace(SHAPE, split=split)
        plan = plan_of(path, info, shape, engine=able)

        measured = await dry(plan, engine=able, info=info, shape=shape, cwd=short_dir)
        loaded = await reported(plan, engine=able, cwd=short_dir)

    assert isinstance(measured, tuple), measured
    for device, _ in split:
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
    known: tuple[Path, ModelInfo], short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, info = known
    able = pretender(short_dir, "exit 0")
    plan = plan_of(path, info, SHAPE, engine=able)
    monkeypatch.setattr(tempfile, "tempdir", str(short_dir / "full"))

    found = await dry(plan, engine=able, info=info, shape=SHAPE, cwd=short_dir)

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
    assert first[0].compute_bytes == round(11.25 * (1 << 20)) + output_buffer_bytes(info, SHAPE)


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


@pytest.mark.parametrize("content", ["", "no json", "[1]", '{"a": {"b": "c"}}'])
async def test_a_broken_memory_is_an_empty_one(content: str, tmp_path: Path) -> None:
    file = tmp_path / "preflights.json"
    file.write_text(content)

    cache = PreflightCache(file)
    cache.remember("key", {HOST: 7})

    assert PreflightCache(file).get("key") == {HOST: 7}


def test_memory_is_bounded() -> None:
    cache = PreflightCache(None)
    for i in range(300):
        cache.remember(str(i), {HOST: i})

    assert cache.get("0") is None
    assert cache.get("299") == {HOST: 299}


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

    def __init__(self, folder: Path, able: Engine, info: ModelInfo, *, room_bytes: int) -> None:
        self.looked = asyncio.Event()
        whole = machine(host_gib=1)
        self.hardware = replace(whole, host=replace(whole.host, available_bytes=room_bytes))
        self.able, self.info = able, info
        self.preflights = Preflights(
            PreflightCache(None), environ=os.environ, cwd=folder, changed=self.looked.set
        )

    def settled(self, plan: LaunchPlan, tasks: asyncio.TaskGroup) -> LaunchPlan | None:
        return self.preflights.settled(
            plan, engine=self.able, info=self.info, hardware=self.hardware, tasks=tasks
        )

    async def answered(self) -> None:
        async with asyncio.timeout(10):
            await self.looked.wait()


def tight(plan: LaunchPlan, *, room_bytes: int) -> LaunchPlan:
    part = DeviceBytes(HOST, 0, 0, room_bytes - 10, margin_bytes=10)
    return replace(plan, devices=(), predicted=(part,))


ROOM = 1 << 30
LITTLE = 8 << 20  # the pretender's table says 11.25 MiB


async def test_a_narrow_launch_waits_for_one_dry_run_and_takes_its_figures(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = speaker(short_dir)
    plan = tight(plan_of(path, info, SHAPE, engine=able), room_bytes=ROOM)
    loop = Loop(short_dir, able, info, room_bytes=ROOM)

    async with asyncio.TaskGroup() as tasks:
        before = loop.settled(plan, tasks)
        again = loop.settled(plan, tasks)
        await loop.answered()
        after = loop.settled(plan, tasks)

    assert (before, again) == (None, None)
    assert after is not None
    assert after.predicted[0].margin_bytes == 0
    assert runs(short_dir) == 1


async def test_a_roomy_launch_waits_for_nothing(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = speaker(short_dir)
    plan = tight(plan_of(path, info, SHAPE, engine=able), room_bytes=ROOM // 2)
    loop = Loop(short_dir, able, info, room_bytes=ROOM)

    async with asyncio.TaskGroup() as tasks:
        assert loop.settled(plan, tasks) is plan


async def test_a_failed_dry_run_lets_the_plan_go_ahead(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = pretender(short_dir, "exit 1")
    plan = tight(plan_of(path, info, SHAPE, engine=able), room_bytes=ROOM)
    loop = Loop(short_dir, able, info, room_bytes=ROOM)

    async with asyncio.TaskGroup() as tasks:
        loop.settled(plan, tasks)
        await loop.answered()

        assert loop.settled(plan, tasks) is plan


async def test_what_is_missing_is_kept_free_until_the_next_plan_goes_ahead(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = speaker(short_dir)
    plan = tight(plan_of(path, info, SHAPE, engine=able), room_bytes=LITTLE)
    loop = Loop(short_dir, able, info, room_bytes=LITTLE)

    async with asyncio.TaskGroup() as tasks:
        loop.settled(plan, tasks)
        await loop.answered()
        refused = loop.settled(plan, tasks)
        reserved = loop.preflights.reserved(loop.hardware, is_waiting=lambda _: True)
        forsaken = loop.preflights.reserved(loop.hardware, is_waiting=lambda _: False)
        smaller = replace(plan, n_ctx=1024)
        gone_ahead = loop.settled(smaller, tasks)
        loop.preflights.forget(plan.model_id)

    assert refused is None
    assert reserved.host.reserve_bytes > 3 << 20
    assert forsaken == loop.hardware
    assert gone_ahead is smaller
    assert loop.preflights.reserved(loop.hardware, is_waiting=lambda _: True) == loop.hardware


async def test_stopping_ends_a_dry_run_under_way(
    known: tuple[Path, ModelInfo], short_dir: Path
) -> None:
    path, info = known
    able = pretender(short_dir, "exec sleep 60")
    plan = tight(plan_of(path, info, SHAPE, engine=able), room_bytes=ROOM)
    loop = Loop(short_dir, able, info, room_bytes=ROOM)

    started_s = monotonic()
    async with asyncio.TaskGroup() as tasks:
        loop.settled(plan, tasks)
        loop.preflights.stop()

    assert monotonic() - started_s < 10
