"""`make bench-speed`: decode under the chosen flags against the best of a grid, on this processor.

One llama-server per point of the grid (threads × ubatch), one with what placement chose, and the
same once more (A/A: how much of a difference is noise). Each round asks all of them in a seeded
order, every slot at once; the ratio is taken within rounds, so that a drift hits all alike. Then
the prompt: how fast each ubatch reads one, and how soon a caller who leaves in its middle frees
the slot.
"""

import argparse
import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter

import httpx
import msgspec
from msgspec.structs import replace

from inferenceosd.settings.config import Options, read_config
from planners.argv import child_argv, child_env
from planners.backends import Engine
from planners.hardware import HardwareProfile
from planners.model import ServedModel
from planners.placement import plan_launch
from planners.plan import LaunchPlan
from planners.settings import PlacementRules
from supervisor.children.child import running
from supervisor.children.llama import client_of, is_healthy
from supervisor.engines.backends import find_engines
from supervisor.engines.quickstart import quickstart_model_dir
from supervisor.models.catalogue import Catalogue
from supervisor.probe import HardwareProbe

THREADS = (1, 2, 4, 8, 16, 32)  # as far as the machine has cores
UBATCHES = (64, 512)
PROMPT_UBATCHES = (32, 64, 128, 256, 512)
PROMPT_TOKENS = 1024
LEAVE_S = 0.3  # into a prefill of several seconds
CHOSEN, AGAIN = "chosen", "chosen again"
LOOK_S = 0.05
LOAD_S = 60.0
ANSWER_S = 120.0
SPREAD = 10  # of A/A, from its first to its last tenth


class _Timings(msgspec.Struct):
    predicted_n: int
    predicted_ms: float
    prompt_per_second: float


class _Reply(msgspec.Struct):
    timings: _Timings


@dataclass(frozen=True, slots=True)
class Server:
    """One llama-server with its flags."""

    name: str
    plan: LaunchPlan
    client: httpx.AsyncClient
    samples: list[float] = field(default_factory=list)
    """Decode tokens/s over all slots, one per round."""

    async def complete(self, prompt: Sequence[int], *, slot: int, n_tokens: int) -> _Timings:
        """One completion in one slot, nothing reused."""
        body = {
            "prompt": list(prompt), "n_predict": n_tokens, "id_slot": slot, "ignore_eos": True,
            "cache_prompt": False, "temperature": 0, "seed": 1,
        }  # fmt: skip
        reply = await self.client.post("/completion", json=body)
        reply.raise_for_status()
        return msgspec.json.decode(reply.content, type=_Reply).timings

    async def decode_tokens_per_s(self, n_tokens: int) -> float:
        """Tokens of all slots, busy at once, by the time of the slowest."""
        asked = (
            self.complete(_prompt(16, seed=slot), slot=slot, n_tokens=n_tokens)
            for slot in range(self.plan.n_parallel)
        )
        timings = await asyncio.gather(*asked)
        return sum(t.predicted_n for t in timings) / max(t.predicted_ms for t in timings) * 1e3

    async def freed_s(self) -> float:
        """Seconds from a caller leaving in the middle of a prefill to its slot serving another."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.complete(_prompt(PROMPT_TOKENS, seed=2), slot=0, n_tokens=1)
        except TimeoutError:
            began_s = perf_counter()
            await self.complete(_prompt(1, seed=3), slot=0, n_tokens=1)
            return perf_counter() - began_s
        return 0.0  # too fast to be left


def _prompt(n: int, *, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1000, 40_000) for _ in range(n)]


@dataclass(frozen=True, slots=True)
class Ground:
    """What a plan is made from, and where its child runs."""

    folder: Path
    hardware: HardwareProfile
    engines: tuple[Engine, ...]
    model: ServedModel
    rules: PlacementRules

    def plan(self, *, slots: int, context: int) -> LaunchPlan:
        """What placement chooses for the processor."""
        settings = replace(self.model.settings, parallel=slots, context=context)
        plan = plan_launch(
            replace(self.model, settings=settings),
            hardware=replace(self.hardware, devices=()),
            engines=self.engines,
            rules=self.rules,
            promised={},
        )
        assert isinstance(plan, LaunchPlan), str(plan)
        return plan

    @asynccontextmanager
    async def served(self, name: str, plan: LaunchPlan) -> AsyncIterator[Server]:
        """A ready server with the plan's flags."""
        engine = next(e for e in self.engines if e.engine_id == plan.engine_id)
        socket = f"{self.folder}/{name.replace(' ', '-')}-{plan.n_parallel}.sock"
        argv = child_argv(plan, engine=engine, socket_path=socket, slot_dir=str(self.folder))
        async with AsyncExitStack() as held:
            await held.enter_async_context(
                running(
                    argv,
                    env=child_env(engine, os.environ),
                    cwd=str(self.folder),
                    stop_s=0.0,
                    on_stdout=_ignored,
                    on_stderr=_ignored,
                )
            )
            client = await held.enter_async_context(client_of(socket, timeout_s=ANSWER_S))
            async with asyncio.timeout(LOAD_S):
                while not await is_healthy(client):  # noqa: ASYNC110  # another process has no event
                    await asyncio.sleep(LOOK_S)
            yield Server(name, plan, client)


def _ignored(_: str) -> None:
    """A line that nobody reads."""


async def found_ground(folder: Path) -> Ground:
    """This machine, its engines and the quickstart model."""
    config = read_config(Options(state_dir=str(folder / "state")), environ={})
    engines = (await find_engines(state_dir=folder)).engines
    probe = HardwareProbe(engines, config.placement)
    model_dir = quickstart_model_dir()
    assert model_dir is not None, "make installs the quickstart model first"
    catalogue = Catalogue(dirs=(str(model_dir),), rules=(), defaults=config.model_defaults)
    await catalogue.scan()
    (model,) = catalogue.models.values()
    hardware = await probe.profile()
    return Ground(folder, hardware, engines, model, config.placement)


async def decode_table(ground: Ground, *, slots: int, rounds: int, n_tokens: int) -> str:
    """One row: the chosen flags against the best point of the grid."""
    chosen = ground.plan(slots=slots, context=2048)
    threads = [n for n in THREADS if n <= ground.hardware.host.n_cores]
    grid = {
        f"t{t} ub{ub}": replace(chosen, n_threads=t, n_ubatch=ub, n_batch=ub)
        for t in threads
        for ub in UBATCHES
    }
    plans = {CHOSEN: chosen, AGAIN: chosen, **grid}
    async with AsyncExitStack() as held:
        servers = [
            await held.enter_async_context(ground.served(name, plan))
            for name, plan in plans.items()
        ]
        chance = random.Random(slots)
        for number in range(rounds + 1):
            for server in chance.sample(servers, len(servers)):
                speed = await server.decode_tokens_per_s(n_tokens)
                if number:  # the first round warms up
                    server.samples.append(speed)
    return _decode_row(servers, slots)


def _decode_row(servers: Sequence[Server], slots: int) -> str:
    by_name = {server.name: server for server in servers}
    chosen, again = by_name.pop(CHOSEN), by_name.pop(AGAIN)
    best = max(by_name.values(), key=lambda server: median(server.samples))
    ratio = median(a / b for a, b in zip(chosen.samples, best.samples, strict=True))
    noise = sorted(a / b for a, b in zip(chosen.samples, again.samples, strict=True))
    grid = "  ".join(f"{s.name}: {median(s.samples):.1f}" for s in by_name.values())
    least, most = noise[len(noise) // SPREAD], noise[-1 - len(noise) // SPREAD]
    verdict = "ok" if ratio >= min(0.97, least) else "SLOW"
    predicted = chosen.plan.predicted_decode_tokens_per_s or inf
    return (
        f"{slots:>5} {chosen.plan.n_threads:>8} {chosen.plan.n_ubatch:>7}"
        f" {median(chosen.samples):>9.1f} {best.name:>10} {median(best.samples):>8.1f}"
        f" {ratio:>7.3f}  {median(noise):.3f} [{least:.3f} … {most:.3f}]"
        f" {predicted:>10.1f}  {verdict}   {grid}"
    )


async def prompt_table(ground: Ground, *, rounds: int) -> list[str]:
    """Per ubatch, tokens/s of a prompt and the wait after a caller who leaves; ours is marked."""
    chosen = ground.plan(slots=1, context=2048)
    plans = {ub: replace(chosen, n_ubatch=ub, n_batch=ub) for ub in PROMPT_UBATCHES}
    speeds: dict[int, list[float]] = {ub: [] for ub in plans}
    waits: dict[int, list[float]] = {ub: [] for ub in plans}
    async with AsyncExitStack() as held:
        servers = [
            await held.enter_async_context(ground.served(f"ub{ub}", plan))
            for ub, plan in plans.items()
        ]
        chance = random.Random(1)
        for _ in range(rounds):
            for server in chance.sample(servers, len(servers)):
                ub = server.plan.n_ubatch
                timings = await server.complete(_prompt(512, seed=1), slot=0, n_tokens=1)
                speeds[ub].append(timings.prompt_per_second)
                waits[ub].append(await server.freed_s())
    return [
        f"{ub:>5} {median(speeds[ub]):>10.1f} {median(waits[ub]):>10.2f}"
        + (
            f"   chosen; predicted {chosen.predicted_prompt_tokens_per_s:.0f} tokens/s"
            if ub == chosen.n_ubatch
            else ""
        )
        for ub in plans
    ]


async def measured(*, slots: Sequence[int], rounds: int, n_tokens: int, prompt_rounds: int) -> None:
    """Prints both tables."""
    with tempfile.TemporaryDirectory(prefix="ios-speed-", dir="/tmp") as name:
        folder = Path(name)
        ground = await found_ground(folder)
        host = ground.hardware.host
        print(
            f"{ground.model.model_id} on {host.cpu_name}, {host.n_physical_cores} cores, load"
            f" {os.getloadavg()[0]:.1f}; {rounds} rounds, {n_tokens} tokens a slot"
        )
        print(
            "slots  threads  ubatch  tokens/s  best point          ratio  A/A [spread]   ", end=""
        )
        print("     predicted")
        for count in slots:
            print(await decode_table(ground, slots=count, rounds=rounds, n_tokens=n_tokens))
        if not prompt_rounds:
            return
        print("\nubatch  prompt/s  freed in s")
        print("\n".join(await prompt_table(ground, rounds=prompt_rounds)))
        print(f"load {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.speed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="rounds, each server once (9)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens per slot and round (32)")
    parser.add_argument("--prompt-rounds", type=int, default=3, help="0 leaves prompts out (3)")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4], help="(1 2 4)")
    asked = parser.parse_args()
    asyncio.run(
        measured(
            slots=asked.slots,
            rounds=asked.rounds,
            n_tokens=asked.tokens,
            prompt_rounds=asked.prompt_rounds,
        )
    )


if __name__ == "__main__":
    main()
