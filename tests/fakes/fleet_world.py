"""A fleet on real processes: an engine that was tried, and tiny models in a folder."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from msgspec.structs import replace

from planners.backends import Engine
from planners.instances.groups import Group
from planners.model import ModelId
from planners.settings import ContextPolicy, FleetSettings, MemoryRule, PlacementRules
from planners.sizes import GIB
from planners.view import InstanceState, Observed
from planners.waiting.callers import Callers
from supervisor.desired import Desired, Ground
from supervisor.devices.sighting import DeviceSource
from supervisor.engines.tinymodel import tiny_model
from supervisor.fleet import Fleet
from supervisor.models.catalogue import Catalogue
from supervisor.probe import HardwareProbe
from supervisor.records.journal import Journal
from supervisor.records.kept import Records, open_records
from tests.fakes import machines
from tests.fakes.machines import PLAIN

TINY = ModelId("tiny")
RULES = replace(machines.RULES, memory=MemoryRule(None, GIB // 4), parallel=2)


class OtherSettings(TypedDict, total=False):
    """Fleet settings in which a test differs from FLEET."""

    max_loaded: int | None
    max_waiting: int
    load_s: float
    load_limit_s: float
    drain_s: float
    finish_s: float
    wait_s: float
    stop_s: float
    restart_limit: int
    cooldown_s: float
    hang_s: float
    turn_s: float
    context_policy: ContextPolicy
    groups: tuple[Group, ...]
    callers: Callers


@dataclass
class World:
    """A running fleet and what a test may do to it."""

    fleet: Fleet
    catalogue: Catalogue
    records: Records
    probe: HardwareProbe
    desired: Desired
    models: Path
    faults: Path
    run_dir: Path

    @property
    def journal(self) -> Journal:
        """Its events."""
        return self.records.journal

    def order(self, **faults: object) -> None:
        """What goes wrong from the next launch on."""
        self.faults.write_text(json.dumps(faults))

    def apply(self, **settings: Unpack[OtherSettings]) -> None:
        """Change fleet settings while it runs."""
        self.desired = replace(self.desired, settings=replace(self.desired.settings, **settings))
        self.fleet.apply(self.desired)

    def rule(self, rules: PlacementRules) -> None:
        """Change what every plan obeys while it runs."""
        self.desired = replace(self.desired, rules=rules)
        self.probe.adopt(self.desired.engines or (), rules)
        self.fleet.apply(self.desired)

    def seen(self, model_id: ModelId = TINY) -> Observed:
        """The model's instance, which is there."""
        return next(i for i in self.fleet.running() if i.model_id == model_id)

    def state(self, model_id: ModelId = TINY) -> InstanceState | None:
        """Of the model's instance; None where there is none."""
        return next((i.state for i in self.fleet.running() if i.model_id == model_id), None)

    def pid(self, model_id: ModelId = TINY) -> int:
        """Of the model's child, which runs."""
        pid = self.seen(model_id).pid
        assert pid is not None
        return pid

    async def until(self, holds: Callable[[], bool], *, within_s: float = 15.0) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.01)

    async def until_state(self, state: InstanceState | None, model_id: ModelId = TINY) -> None:
        """Wait until the model's instance is in a state; None is gone."""
        await self.until(lambda: self.state(model_id) is state)

    async def served_by(
        self,
        model_id: ModelId = TINY,
        *,
        keep_alive_s: float | None = None,
        context: int | None = None,
    ) -> int:
        """Take a lease, give it back; the pid that served it."""
        async with self.fleet.lease(
            model_id, caller="test", keep_alive_s=keep_alive_s, context=context
        ):
            return self.pid(model_id)

    async def kinds(self) -> list[str]:
        """Events so far."""
        return [e.kind for e in await self.journal.events(model_id=None, since=0.0, limit=1000)]


class MakeWorld(Protocol):
    """What the fixture `fleet_world` gives."""

    def __call__(
        self,
        *,
        names: Sequence[str] = ...,
        sources: Sequence[DeviceSource] | None = ...,
        leaving: Callable[[str], None] = ...,
        **settings: Unpack[OtherSettings],
    ) -> AbstractAsyncContextManager[World]:
        """A running fleet for as long as the block lasts."""


@asynccontextmanager
async def running_world(
    folder: Path,
    run_dir: Path,
    engine: Engine,
    *,
    names: Sequence[str],
    sources: Sequence[DeviceSource] | None,
    leaving: Callable[[str], None],
    settings: FleetSettings,
) -> AsyncIterator[World]:
    """A fleet of `engine` over models of these names; stopped with the block."""
    models, faults = folder / "models", folder / "faults.json"
    models.mkdir()
    for name in names:
        (models / f"{name}.gguf").write_bytes(tiny_model())
    faults.write_text("{}")
    faulty = replace(engine, env=(("FAKE_FAULTS", str(faults)),))
    desired = Desired((faulty,), RULES, settings)
    (run_dir / "cwd").mkdir(mode=0o500)
    catalogue = Catalogue(dirs=(str(models),), rules=(), defaults=PLAIN)
    await catalogue.scan()
    async with open_records(folder) as records, asyncio.TaskGroup() as tasks:
        await records.load()
        probe = HardwareProbe((faulty,), RULES, sources=sources)
        fleet = Fleet(
            desired,
            catalogue=catalogue,
            probe=probe,
            records=records,
            ground=Ground(run_dir, run_dir / "cwd", dict(os.environ)),
            leaving=leaving,
            heard_bytes=lambda _: 0,
        )
        running = tasks.create_task(fleet.run())
        try:
            yield World(fleet, catalogue, records, probe, desired, models, faults, run_dir)
        finally:
            fleet.stop()
            async with asyncio.timeout(20):
                await running
