"""proxy.child.wakening, awaited by real tasks on both loops."""

import asyncio
import contextvars

import pytest

from proxy.child.wakening import Wakening

SOON_S = 5.0
NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


class Sleeper:
    """A task that waits again and again, and notes when it goes on."""

    def __init__(self, times: int) -> None:
        self.news = Wakening(asyncio.get_running_loop())
        self.waits = asyncio.Event()
        self.woken: list[str] = []
        self._times = times

    async def sleep(self) -> None:
        NAME.set("sleeper")
        for _ in range(self._times):
            self.waits.set()
            await self.news
            self.woken.append(NAME.get())


def in_the_loop(sleeper: Sleeper) -> asyncio.Future[list[str]]:
    """What a sleeper had noted once a call of the loop had woken it, before anything else ran."""
    loop = asyncio.get_running_loop()
    noted: asyncio.Future[list[str]] = loop.create_future()

    def wake() -> None:
        sleeper.news.wake()
        noted.set_result([*sleeper.woken])

    loop.call_soon(wake)
    return noted


async def test_a_task_goes_on_within_the_call_that_wakes_it_and_in_its_own_context() -> None:
    sleeper = Sleeper(times=2)
    async with asyncio.timeout(SOON_S):
        task = asyncio.ensure_future(sleeper.sleep())
        await sleeper.waits.wait()
        first = await in_the_loop(sleeper)
        second = await in_the_loop(sleeper)
        await task

    assert (first, second) == (["sleeper"], ["sleeper", "sleeper"])


async def test_a_task_that_is_cancelled_goes_on_cancelled_though_it_is_woken_too() -> None:
    sleeper = Sleeper(times=1)
    async with asyncio.timeout(SOON_S):
        task = asyncio.ensure_future(sleeper.sleep())
        await sleeper.waits.wait()
        task.cancel()
        await in_the_loop(sleeper)
        with pytest.raises(asyncio.CancelledError):
            await task

    assert sleeper.woken == []


async def test_who_was_cancelled_once_may_wait_again() -> None:
    sleeper = Sleeper(times=1)
    async with asyncio.timeout(SOON_S):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await sleeper.news
        task = asyncio.ensure_future(sleeper.sleep())
        await sleeper.waits.wait()
        told = await in_the_loop(sleeper)
        await task

    assert told == ["sleeper"]


async def test_waking_nobody_is_nothing_and_is_not_kept_for_the_next() -> None:
    sleeper = Sleeper(times=1)
    sleeper.news.wake()
    async with asyncio.timeout(SOON_S):
        task = asyncio.ensure_future(sleeper.sleep())
        await sleeper.waits.wait()
        before = [*sleeper.woken]
        after = await in_the_loop(sleeper)
        await task

    assert (before, after) == ([], ["sleeper"])
