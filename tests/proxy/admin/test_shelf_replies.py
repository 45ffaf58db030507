"""proxy.admin.shelf_replies: what whoever waits for a pull is told while nothing comes."""

import asyncio
from collections.abc import AsyncGenerator

from proxy.admin.shelf_replies import with_signs_of_life
from supervisor.store.progress import Progress

BEGUN, DONE = Progress("pulling manifest"), Progress("success")


class Pull:
    """Work that says nothing until it may go on."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.is_over = False

    async def lines(self) -> AsyncGenerator[Progress, None]:
        try:
            await self.may_go_on.wait()
            yield DONE
        finally:
            self.is_over = True


async def test_a_pull_that_waits_for_its_registry_says_its_last_line_again() -> None:
    pull = Pull()

    async with asyncio.timeout(30):
        told = with_signs_of_life(pull.lines(), BEGUN, every_s=0.001)
        waiting = [await anext(told), await anext(told)]
        pull.may_go_on.set()
        rest = [line async for line in told]

    assert waiting == [BEGUN, BEGUN]
    assert rest[-1] == DONE
    assert set(rest[:-1]) <= {BEGUN}
    assert pull.is_over


async def test_who_leaves_a_pull_that_says_nothing_ends_it() -> None:
    pull = Pull()

    async with asyncio.timeout(30):
        told = with_signs_of_life(pull.lines(), BEGUN, every_s=0.001)
        await anext(told)
        await told.aclose()

    assert pull.is_over
