"""Disturbances of a soak: children killed and stopped, models unloaded, configuration rewritten."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from bench.soak.world import MODELS, World

PAUSE_S = (1.0, 4.0)  # between two disturbances
AFTERMATH_S = 5.0  # a request that begins this long after one may still meet its traces
NAP_S = 1.0  # a child that sleeps this long is slow, not hung
EDITS = 10


@dataclass(slots=True)
class Disturber:
    """One task that disturbs until told to end; remembers when."""

    world: World
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    _moments: list[float] = field(default_factory=list)

    async def disturb_until(self, over: asyncio.Event) -> None:
        """A disturbance by chance after a pause by chance, again and again."""
        kinds: tuple[tuple[str, Callable[[], Awaitable[bool]]], ...] = (
            ("child killed", self._kill),
            ("child killed", self._kill),
            ("child asleep for 1 s", self._nap),
            ("model unloaded", self._unload),
            ("configuration changed", self._reload),
            (f"configuration changed {EDITS} times in a second", self._edits),
            ("configuration broken", self._break),
        )
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), self.chance.uniform(*PAUSE_S))
                return
            name, act = self.chance.choice(kinds)
            self._moments.append(monotonic())
            if await act():
                self.done[name] += 1
            self._moments.append(monotonic())

    def was_disturbed(self, began_s: float, ended_s: float) -> bool:
        """Whether anything happened between two moments, or shortly before."""
        return any(began_s - AFTERMATH_S <= at_s <= ended_s for at_s in self._moments)

    async def _kill(self) -> bool:
        pid = await self._some_child()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    async def _nap(self) -> bool:
        pid = await self._some_child()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(NAP_S)
            finally:
                os.kill(pid, signal.SIGCONT)
        return True

    async def _some_child(self) -> int | None:
        pids = [told["pid"] for told in await self.world.instances() if told["pid"]]
        return self.chance.choice(pids) if pids else None

    async def _unload(self) -> bool:
        await self.world.post("/unload", {"model": self.chance.choice(MODELS)})
        return True

    async def _reload(self) -> bool:
        self.world.configure(self.chance)
        await self.world.post("/reload")
        return True

    async def _edits(self) -> bool:
        """Many edits at once: only the last one counts."""
        for _ in range(EDITS):
            self.world.configure(self.chance)
            self.world.hang_up()
            await asyncio.sleep(1 / EDITS)
        return True

    async def _break(self) -> bool:
        """A file that cannot be read: the settings in force stay in force."""
        kept = self.world.config.read_text()
        self.world.config.write_text(kept + "\n[[model]\n")
        self.world.hang_up()
        await asyncio.sleep(1 / EDITS)
        self.world.config.write_text(kept)
        return True
