import asyncio

import pytest

from supervisor.race import first, found_first


async def never() -> int:
    await asyncio.Event().wait()
    return 0


async def now() -> int:
    return 7


async def fails() -> None:
    raise ZeroDivisionError


async def test_the_first_to_end_ends_the_wait() -> None:
    async with asyncio.timeout(5):
        await first(never(), now())


async def test_what_the_first_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await first(never(), fails())


async def test_what_was_looked_for_is_given_where_it_is_found_first() -> None:
    assert await found_first(now(), never()) == 7
    assert await found_first(never(), now()) is None
