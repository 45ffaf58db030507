"""supervisor.engines.rollout: what an end on an engine says, on trial and after that."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.lessons.samples import LaunchKey, LaunchSample
from planners.model import ModelId
from planners.rollout import MOST_FAILURES, PROOF_ANSWERS, Newcomer, Proven, RolledBack
from supervisor.engines.rollout import Rollout, Tried
from supervisor.records.journal import Journal
from tests.fakes.machines import engine
from tests.fakes.waiting import LOOK_S

WITHIN_S = 20.0
SINCE = 1_800_000_000.0
NEWCOMER = Newcomer(replace(engine("cpu"), engine_id="new"), "old", SINCE)
A, B = ModelId("a"), ModelId("b")


def died(engine_id: str, model_id: ModelId, *, at: float = SINCE) -> LaunchSample:
    key = LaunchKey(engine_id, "digest", "", "flags")
    return LaunchSample(f"{engine_id}-{at}", at, model_id, key, 2048, "died", ())


class Scene:
    """A rollout, and what it is told of: `new` is on trial, and nothing ran yet."""

    def __init__(self, journal: Journal) -> None:
        self.newcomers: tuple[Newcomer, ...] = (NEWCOMER,)
        self.settled = frozenset({"old"})
        self.launches: tuple[LaunchSample, ...] = ()
        self.rollout = Rollout(
            Tried(
                newcomers=lambda: self.newcomers,
                settled=lambda: self.settled,
                running=tuple,
                moving=frozenset,
                instance=lambda _: None,
                launches=lambda: self.launches,
                move=never,
                journal=journal,
            )
        )

    async def until_on_trial(self) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not self.rollout.is_suspect("new", B):
                await asyncio.sleep(LOOK_S)

    async def verdict(self) -> Proven | RolledBack:
        self.rollout.look()
        async with asyncio.timeout(WITHIN_S):
            _, told = await self.rollout.verdicts.get()
        return told


async def never(*_: object) -> bool:
    raise AssertionError("nothing is moved here")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with ThreadPoolExecutor(1) as thread:
        yield Journal(tmp_path / "journal.db", thread=thread)


@asynccontextmanager
async def trying(journal: Journal) -> AsyncIterator[Scene]:
    scene = Scene(journal)
    task = asyncio.create_task(scene.rollout.run())
    try:
        await scene.until_on_trial()
        yield scene
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_an_end_on_an_engine_on_trial_is_held_against_it_alone(journal: Journal) -> None:
    async with trying(journal) as scene:
        assert scene.rollout.is_suspect("new", A)
        assert not scene.rollout.is_suspect("old", A)


async def test_a_model_that_dies_on_the_old_engine_too_says_nothing_of_the_new_one(
    journal: Journal,
) -> None:
    async with trying(journal) as scene:
        scene.launches = (died("old", A), died("new", A))

        assert not scene.rollout.is_suspect("new", A)
        assert scene.rollout.is_suspect("new", B)


async def test_a_proven_engine_is_suspect_no_more(journal: Journal) -> None:
    async with trying(journal) as scene:
        for _ in range(PROOF_ANSWERS):
            scene.rollout.answered("new")

        assert isinstance(await scene.verdict(), Proven)
        assert not scene.rollout.is_suspect("new", A)


async def test_one_that_was_rolled_back_stays_suspect(journal: Journal) -> None:
    async with trying(journal) as scene:
        scene.launches = tuple(died("new", A, at=SINCE + i) for i in range(MOST_FAILURES))

        assert isinstance(await scene.verdict(), RolledBack)
        scene.newcomers = ()
        assert scene.rollout.is_suspect("new", A)


async def test_one_that_the_operator_pins_is_suspect_no_more(journal: Journal) -> None:
    async with trying(journal) as scene:
        scene.newcomers, scene.settled = (), frozenset({"new"})

        assert not scene.rollout.is_suspect("new", A)
