"""Conversations of unloaded models on disk, by real children: whose stay where room is short."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from planners.instances.actions import Departure
from planners.model import ModelId, ServedModel
from supervisor.children.launch import Launch
from supervisor.moving.kept_slots import KeptSlots
from supervisor.moving.slots import SlotShelf
from supervisor.records.journal import Journal
from tests.fakes.fleet_of_one import launch_plan, served_model
from tests.fakes.machines import engine
from tests.fakes.real_child import RealChild, info_of_file, real_child
from tests.fakes.real_engine import quickstart_model

pytestmark = [pytest.mark.llama, pytest.mark.timeout(300)]

A, B = ModelId("a"), ModelId("b")
PROMPT = "The history of the lighthouse begins with a fire on a hill. " * 8
QUOTA_BYTES = 5 << 20  # of 23 kB a token: one conversation of these, and not two
THREAD = ThreadPoolExecutor(1, "slots")


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path leaves room for socket names."""
    folder = Path(tempfile.mkdtemp(prefix="kept-"))
    yield folder
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Kept:
    """Two models' children, and what is kept of them."""

    slots: KeptSlots
    shelf: SlotShelf
    children: Mapping[ModelId, RealChild]
    launches: Mapping[ModelId, Launch]

    async def tells(self, model_id: ModelId) -> None:
        """Has a child read a prompt."""
        body = {"prompt": PROMPT, "n_predict": 2, "id_slot": 0, "temperature": 0}
        await self.children[model_id].ask("/completion", body)

    async def comes_back(self, model_id: ModelId) -> int:
        """What the model's next child has cached of that prompt."""
        child = self.children[model_id]
        await child.client.post("/slots/0?action=erase")
        await self.slots.restore(self.launches[model_id])
        body = {"prompt": PROMPT, "n_predict": 1, "id_slot": 0, "temperature": 0}
        told = await child.ask("/completion", body)
        return int(told["timings"]["cache_n"])


@asynccontextmanager
async def two(folder: Path, *, quota_bytes: int) -> AsyncIterator[Kept]:
    info = info_of_file(quickstart_model())
    served: dict[ModelId, ServedModel] = {
        name: served_model(model_id=name, path=str(quickstart_model()), info=info)
        for name in (A, B)
    }
    shelf = SlotShelf(quota_bytes=quota_bytes, thread=THREAD, keep_free_bytes=0)
    journal = Journal(folder / "journal.db", thread=THREAD)
    slots = KeptSlots(
        shelf, folder / "kept.slots", journal=journal, served=served.get, is_on=lambda: True
    )
    async with real_child(folder) as a, real_child(folder) as b:
        children = {A: a, B: b}
        launches = {
            name: Launch(
                launch_plan(served[name], n_ctx=512, n_parallel=1),
                engine("cpu"),
                socket_path=Path(child.socket_path),
                slot_dir=child.folder,
                on_line=lambda line: None,
            )
            for name, child in children.items()
        }
        yield Kept(slots, shelf, children, launches)


async def test_the_oldest_models_conversations_make_room_for_the_newest_ones(
    short_dir: Path,
) -> None:
    async with two(short_dir, quota_bytes=QUOTA_BYTES) as kept:
        for name in (A, B):
            await kept.tells(name)
            await kept.slots.keep(kept.launches[name], Departure.UNUSED)

        assert 0 < kept.shelf.used_bytes <= QUOTA_BYTES
        assert await kept.comes_back(A) == 0
        assert await kept.comes_back(B) > 64
        assert kept.shelf.used_bytes == 0


async def test_each_models_conversations_stay_where_there_is_room(short_dir: Path) -> None:
    async with two(short_dir, quota_bytes=4 * QUOTA_BYTES) as kept:
        for name in (A, B):
            await kept.tells(name)
            await kept.slots.keep(kept.launches[name], Departure.UNUSED)

        assert await kept.comes_back(A) > 64
        assert await kept.comes_back(B) > 64


async def test_one_that_finds_no_room_even_alone_is_not_kept(short_dir: Path) -> None:
    async with two(short_dir, quota_bytes=1 << 20) as kept:
        await kept.tells(A)

        await kept.slots.keep(kept.launches[A], Departure.UNUSED)

        assert kept.shelf.used_bytes == 0
        assert await kept.comes_back(A) == 0


async def test_where_their_folder_cannot_be_made_the_child_ends_without_them(
    short_dir: Path,
) -> None:
    async with two(short_dir, quota_bytes=4 * QUOTA_BYTES) as kept:
        await kept.tells(A)
        (short_dir / "kept.slots").write_text("in the way")

        await kept.slots.keep(kept.launches[A], Departure.UNUSED)

        assert kept.shelf.used_bytes == 0
        assert await kept.comes_back(A) == 0
