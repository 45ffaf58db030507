"""inferenceosd.engine_desk: what becomes of a trial's end where the disk refuses it at first.

Folders and links are real; as root no mode refuses anything, so a folder lies in a file's place.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from inferenceosd.engine_desk import EngineDesk
from planners.rollout import Newcomer, Proven, RolledBack
from supervisor.engines.builds import Builds, Choice, Order, builds_folder
from supervisor.engines.rollout import Rollout, Tried, Verdict
from supervisor.records.journal import Journal
from tests.fakes.machines import engine
from tests.fakes.waiting import LOOK_S

WITHIN_S = 20.0
BACK = RolledBack("2 launches failed")


class Scene:
    """A state folder with a proven build `old` and a current one `new`, and a desk over it."""

    def __init__(self, state: Path, journal: Journal) -> None:
        self.builds = Builds(builds_folder(state))
        self.folder = builds_folder(state) / "cpu"
        for name in ("old", "new"):
            binary = self.folder / name / "bin" / "llama-server"
            binary.parent.mkdir(parents=True)
            binary.touch()
        self.builds.choose(self.builds.named("old"), Choice.PROVEN)
        self.builds.choose(self.builds.named("new"), Choice.CURRENT)
        self.journal = journal
        self.rollout = Rollout(tried_by_nobody(journal))
        self.desk = EngineDesk(state, rollout=self.rollout, journal=journal)
        self.changes = asyncio.Queue[None]()

    def ended(self, how: Proven | RolledBack) -> Verdict:
        build = self.builds.named("new")
        path = str(build.binary.resolve())
        tried = replace(engine("cpu"), engine_id="new", path=path, source="built")
        return Newcomer(tried, "old", build.on_trial_since() or 0.0), how

    async def changed(self) -> None:
        await self.changes.put(None)

    async def until_changed(self) -> None:
        async with asyncio.timeout(WITHIN_S):
            await self.changes.get()

    async def kinds(self) -> list[str]:
        events = await self.journal.events(model_id=None, since=0.0, limit=100)
        return [event.kind for event in events]


def tried_by_nobody(journal: Journal) -> Tried:
    async def never(*_: object) -> bool:
        raise AssertionError("nothing is moved here")

    return Tried(
        newcomers=tuple,
        settled=frozenset,
        running=tuple,
        moving=frozenset,
        instance=lambda _: None,
        launches=tuple,
        move=never,
        journal=journal,
    )


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with ThreadPoolExecutor(1) as thread:
        yield Journal(tmp_path / "journal.db", thread=thread)


@asynccontextmanager
async def following(scene: Scene) -> AsyncIterator[None]:
    task = asyncio.create_task(scene.desk.follow(scene.changed))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until_refused(said: list[MutableMapping[str, Any]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not any(line["event"] == "engine.undecided" for line in said):
            await asyncio.sleep(LOOK_S)


async def test_a_build_that_cannot_be_marked_is_rolled_back_once_it_can(
    tmp_path: Path, journal: Journal
) -> None:
    scene = Scene(tmp_path / "state", journal)
    in_the_way = scene.folder / "new.failed"
    in_the_way.mkdir()
    await scene.rollout.verdicts.put(scene.ended(BACK))

    with capture_logs() as said:
        async with following(scene):
            await until_refused(said)
            assert os.readlink(scene.folder / "current") == "new"
            assert await scene.kinds() == []
            in_the_way.rmdir()
            await scene.until_changed()

    assert os.readlink(scene.folder / "current") == "old"
    assert scene.builds.named("new").failed == BACK.reason
    assert await scene.kinds() == ["engine.rolled_back"]


async def test_a_build_that_cannot_be_called_proven_is_once_it_can(
    tmp_path: Path, journal: Journal
) -> None:
    scene = Scene(tmp_path / "state", journal)
    in_the_way = scene.folder / f".proven-{os.getpid()}"
    in_the_way.mkdir()
    await scene.rollout.verdicts.put(scene.ended(Proven("it answered")))

    with capture_logs() as said:
        async with following(scene):
            await until_refused(said)
            assert not scene.builds.named("new").is_proven
            in_the_way.rmdir()
            await scene.until_changed()

    assert scene.builds.named("new").is_proven
    assert await scene.kinds() == ["engine.proven"]


@pytest.mark.parametrize("order", [Order.PIN, Order.USE])
async def test_an_order_given_meanwhile_outranks_what_the_trial_showed(
    tmp_path: Path, journal: Journal, order: Order
) -> None:
    scene = Scene(tmp_path / "state", journal)
    ended = scene.ended(BACK)
    scene.desk.obey(order, "new")
    await scene.rollout.verdicts.put(ended)

    async with following(scene):
        await scene.until_changed()

    assert os.readlink(scene.folder / "current") == "new"
    assert scene.builds.named("new").failed is None
    assert "engine.rolled_back" not in await scene.kinds()


async def test_a_served_build_that_cannot_be_noted_is_noted_once_it_can(
    tmp_path: Path, journal: Journal
) -> None:
    scene = Scene(tmp_path / "state", journal)
    in_the_way = scene.folder / f".proven-{os.getpid()}"
    in_the_way.mkdir()
    newcomer, _ = scene.ended(BACK)
    scene.desk.engines = (newcomer.engine,)
    for _ in range(5):
        scene.rollout.answered("new")

    with capture_logs() as said:
        async with following(scene):
            await until_refused(said)
            in_the_way.rmdir()
            async with asyncio.timeout(WITHIN_S):
                while not scene.builds.named("new").is_proven:
                    await asyncio.sleep(LOOK_S)
