"""A fleet on real processes: the fake engine, tried like any other, and tiny models in a folder."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planners.backends import Engine
from planners.model import ModelId, ModelSettings
from planners.settings import FleetSettings, MemoryRule, PlacementRules
from planners.sizes import GIB
from planners.view import InstanceState, Observed
from supervisor.backends import find_engines
from supervisor.catalogue import Catalogue
from supervisor.fleet import Desired, Fleet, Ground
from supervisor.journal import Journal, open_journal
from supervisor.probe import HardwareProbe
from supervisor.tinymodel import tiny_model

FAKE = Path(__file__).parents[1] / "fakes" / "llama_server.py"

RULES = PlacementRules(
    devices=(),
    memory=MemoryRule(None, GIB // 4),
    device_reserve_bytes=0,
    context=None,
    parallel=2,
    type_k="f16",
    type_v="f16",
    backends=(),
)
SETTINGS = FleetSettings(
    max_loaded=None,
    max_waiting=20,
    load_s=20.0,
    drain_s=1.0,
    finish_s=10.0,
    wait_s=30.0,
    stop_s=2.0,
    restart_window_s=600.0,
    restart_limit=3,
)
MODEL_DEFAULTS = ModelSettings(
    context=None,
    parallel=None,
    pin=False,
    keep_alive_s=300.0,
    flags=(),
    mmproj_path=None,
    draft_path=None,
    lora_paths=(),
)


@dataclass
class World:
    """A running fleet and what a test may do to it."""

    fleet: Fleet
    catalogue: Catalogue
    journal: Journal
    desired: Desired
    models: Path
    faults: Path
    run_dir: Path
    gone: list[str]

    def order(self, **faults: object) -> None:
        """What goes wrong from the next launch on."""
        self.faults.write_text(json.dumps(faults))

    def apply(self, **settings: Any) -> None:
        """Change fleet settings while it runs."""
        self.desired = replace(self.desired, settings=replace(self.desired.settings, **settings))
        self.fleet.apply(self.desired)

    def seen(self, name: str = "tiny") -> Observed | None:
        """The model's instance, or None."""
        return next((i for i in self.fleet.running() if i.model_id == name), None)

    async def until(self, holds: Callable[[], bool], *, within_s: float = 15.0) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.01)

    async def until_state(self, state: InstanceState | None, name: str = "tiny") -> None:
        """Wait until the model's instance is in a state; None is gone."""
        await self.until(lambda: (seen.state if (seen := self.seen(name)) else None) is state)

    async def served_by(self, name: str = "tiny", **asked: Any) -> int:
        """Take a lease, give it back; the pid that served it."""
        async with self.fleet.lease(ModelId(name), caller="test", **asked):
            seen = self.seen(name)
            assert seen is not None
            assert seen.pid is not None
            return seen.pid

    async def kinds(self) -> list[str]:
        """Events so far."""
        return [e.kind for e in await self.journal.events(model_id=None, since=0.0, limit=1000)]


MakeWorld = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path leaves room for socket names; pytest's own are too long."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def tried_fake(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The fake engine, after the same trial that real ones pass."""

    async def tried() -> Engine:
        engines, rejected = await find_engines(
            configured=(("fake", str(FAKE), ()),),
            state_dir=tmp_path_factory.mktemp("engines"),
            search_path="",
            quickstart=False,
        )
        assert not rejected, rejected
        return engines[0]

    return asyncio.run(tried())


@pytest.fixture
def fleet_world(tmp_path: Path, short_dir: Path, tried_fake: Engine) -> MakeWorld:
    """Makes a running fleet with the model "tiny", for as long as a block lasts."""

    @asynccontextmanager
    async def world(*, names: tuple[str, ...] = ("tiny",), **settings: Any) -> AsyncIterator[World]:
        models = tmp_path / "models"
        models.mkdir()
        for name in names:
            (models / f"{name}.gguf").write_bytes(tiny_model())
        faults = tmp_path / "faults.json"
        faults.write_text("{}")
        engine = replace(tried_fake, env=(("FAKE_FAULTS", str(faults)),))
        desired = Desired((engine,), RULES, replace(SETTINGS, **settings))
        (short_dir / "cwd").mkdir(mode=0o500)
        gone: list[str] = []
        async with open_journal(tmp_path / "journal.db") as journal:
            with Catalogue(dirs=(str(models),), rules=(), defaults=MODEL_DEFAULTS) as catalogue:
                await catalogue.scan()
                fleet = Fleet(
                    desired,
                    catalogue=catalogue,
                    probe=HardwareProbe((engine,), RULES),
                    journal=journal,
                    ground=Ground(short_dir, short_dir / "cwd", dict(os.environ)),
                    leaving=gone.append,
                )
                running = asyncio.create_task(fleet.run())
                try:
                    yield World(fleet, catalogue, journal, desired, models, faults, short_dir, gone)
                finally:
                    fleet.stop()
                    async with asyncio.timeout(20):
                        await running

    return world
