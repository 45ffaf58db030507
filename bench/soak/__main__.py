"""Runs a soak and prints its account; exit status 1 where that is not good."""

import argparse
import asyncio
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from bench.soak.account import Account
from bench.soak.callers import ANSWER_S, PROMPTS, Callers, Question, Solo, answer
from bench.soak.disturber import Disturber
from bench.soak.world import MODELS, Footprint, World, living_world
from supervisor.engines.quickstart import quickstart_model_dir

CALLERS = 5
QUIET_S = 30.0  # for everything under way to end, once nobody asks any more
LOOK_S = 0.1  # cadence of looking whether it has
SPARE_DESCRIPTORS = 4  # connections that are still closing
SPARE_THREADS = (os.cpu_count() or 1) + 3  # of the loop's pool, which grows as it is given work


async def soak(model_file: Path, *, seconds: float, seed: int, log_to: Path | None) -> Account:
    """Callers and disturbances for `seconds`, then quiet, then a look at what is left."""
    chance = random.Random(seed)
    async with living_world(model_file) as world:
        solo = await solo_answers(world)
        await _unload_all(world)
        before = world.footprint()
        disturber = Disturber(world, chance)
        callers = Callers(world.daemon.base, MODELS, solo, disturber.was_disturbed)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for i in range(CALLERS):
                tasks.create_task(callers.ask_until(over, seed=seed * 1000 + i))
            tasks.create_task(disturber.disturb_until(over))
            await asyncio.sleep(seconds)
            over.set()
        await _unload_all(world)
        leaks = [*_leaks(before, world), *await _unanswered(world)]
        if log_to is not None:
            await asyncio.to_thread(shutil.copy, world.daemon.folder / "daemon.log", log_to)
    return Account(seed, seconds, callers.ended, disturber.done, leaks)


async def solo_answers(world: World) -> Solo:
    """What each model says to each prompt while nobody else asks."""
    async with httpx.AsyncClient(
        base_url=world.daemon.base, timeout=ANSWER_S, trust_env=False
    ) as client:
        return {
            (model, prompt): str(await answer(client, Question(model, prompt, "openai whole")))
            for model in MODELS
            for prompt in PROMPTS
        }


async def _unload_all(world: World) -> None:
    """Once it returns no child is left, or QUIET_S are over: the leaks tell then."""

    def is_quiet() -> bool:
        return world.footprint().processes == 0

    for model in MODELS:
        await world.post("/unload", {"model": model})
    await _until(is_quiet)


async def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(round(QUIET_S / LOOK_S)):
        if is_so():
            return
        await asyncio.sleep(LOOK_S)


def _leaks(before: Footprint, world: World) -> list[str]:
    after = world.footprint()
    told = [f"a socket of a child: {name}" for name in world.left_in_runtime_folder()]
    if after.processes:
        told.append(f"{after.processes} processes of children {QUIET_S:.0f} s after their unload")
    if after.descriptors > before.descriptors + SPARE_DESCRIPTORS:
        told.append(f"descriptors: {before.descriptors} before, {after.descriptors} after")
    if after.threads > before.threads + SPARE_THREADS:
        told.append(f"threads: {before.threads} before, {after.threads} after")
    return told


async def _unanswered(world: World) -> list[str]:
    return [
        f"{told['model']}: {told['running']} leases, {told['waiting']} waiting, nobody asks"
        for told in await world.instances()
        if told["running"] or told["waiting"]
    ]


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (600)")
    parser.add_argument("--seed", type=int, default=1, help="of callers and disturbances (1)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep the daemon's log there")
    asked = parser.parse_args()
    folder = quickstart_model_dir()
    if folder is None:
        sys.exit("soak: no quickstart model: run make test, or scripts/quickstart.py")
    model_file = next(folder.glob("*.gguf"))
    account = asyncio.run(
        soak(model_file, seconds=asked.seconds, seed=asked.seed, log_to=asked.log)
    )
    print(account.text())
    sys.exit(not account.is_good)


if __name__ == "__main__":
    main()
