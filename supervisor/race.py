"""Waits of which the first to end decides. Not a TaskGroup: that is left early only by an error."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def first(*waits: Coroutine[object, object, object]) -> None:
    """Return once one of the waits is over, or raise what it raised; the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def found_first(
    finding: Coroutine[object, object, T], *waits: Coroutine[object, object, object]
) -> T | None:
    """What `finding` gives, or None where one of the waits is over before."""
    found: list[T] = []

    async def find() -> None:
        found.append(await finding)

    await first(find(), *waits)
    return found[0] if found else None
