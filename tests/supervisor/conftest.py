"""The fixture `fleet_world`: a fleet on real processes, those of the fake engine."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Unpack

import pytest
from msgspec.structs import replace

from planners.backends import Engine
from supervisor.devices.sighting import DeviceSource
from supervisor.engines.backends import find_engines
from tests.fakes.fleet_world import MakeWorld, OtherSettings, World, running_world
from tests.fakes.machines import FLEET

FAKE = Path(__file__).parents[1] / "fakes" / "llama_server.py"


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path leaves room for socket names; pytest's own are too long."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def tried_fake(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The fake engine, after the same trial that real ones pass."""
    search = find_engines(
        configured=(("fake", str(FAKE), ()),),
        state_dir=tmp_path_factory.mktemp("engines"),
        search_path="",
        quickstart=False,
    )
    found = asyncio.run(search)
    assert not found.rejected, found.rejected
    return found.engines[0]


@pytest.fixture
def fleet_world(tmp_path: Path, short_dir: Path, tried_fake: Engine) -> MakeWorld:
    """Makes a running fleet with the model "tiny", for as long as a block lasts."""

    def make(
        *,
        names: Sequence[str] = ("tiny",),
        sources: Sequence[DeviceSource] | None = None,
        leaving: Callable[[str], None] = lambda _: None,
        **settings: Unpack[OtherSettings],
    ) -> AbstractAsyncContextManager[World]:
        changed = replace(FLEET, **settings)
        return running_world(
            tmp_path,
            short_dir,
            tried_fake,
            names=names,
            sources=sources,
            leaving=leaving,
            settings=changed,
        )

    return make
