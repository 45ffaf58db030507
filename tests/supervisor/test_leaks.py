"""What is left of many lives: nothing."""

import asyncio
import os
import sys
import threading

import psutil
import pytest

from planners.model import ModelId
from tests.fakes.fleet_world import MakeWorld, World

CYCLES = 60  # one that leaks does so in every one
NAMES = tuple(f"m{n}" for n in range(4))  # that many at once: starting the fake takes most time


def held() -> tuple[int, int, int, int]:
    """Descriptors, threads, tasks and children of this process."""
    n_children = len(psutil.Process().children())
    n_descriptors = len(os.listdir("/proc/self/fd"))
    return n_descriptors, threading.active_count(), len(asyncio.all_tasks()), n_children


async def lived(world: World, name: str, times: int) -> None:
    """Loads and unloads one model."""
    model_id = ModelId(name)
    for _ in range(times):
        await world.served_by(model_id)
        assert world.fleet.unload(model_id)
        await world.until_state(None, model_id)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
async def test_loads_and_unloads_leave_no_descriptor_thread_task_or_process(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(names=NAMES) as world:
        await asyncio.gather(*(lived(world, name, 1) for name in NAMES))
        before = held()

        await asyncio.gather(*(lived(world, name, CYCLES // len(NAMES)) for name in NAMES))

        # The probe reads in threads that end by themselves: wait for those of the moment.
        await world.until(lambda: all(now <= was for now, was in zip(held(), before, strict=True)))
        assert list(world.run_dir.iterdir()) == [world.run_dir / "cwd"]
