"""What tests ask of processes that they do not own."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


def is_gone(pid: int) -> bool:
    """True when the process is no more, or waits to be reaped by a PID 1 that may not reap."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until_gone(pid: int, *, within_s: float = 5.0) -> None:
    """Wait for its end, whoever reaps it."""
    async with asyncio.timeout(within_s):
        while not is_gone(pid):
            await asyncio.sleep(0.01)


async def until_runs(pid: int, name: str, *, within_s: float = 5.0) -> None:
    """Wait until what was started to become a program is that one."""
    async with asyncio.timeout(within_s):
        while psutil.Process(pid).name() != name:
            await asyncio.sleep(0.01)


@contextmanager
def standing_still(process: psutil.Process) -> Iterator[psutil.Process]:
    """Stopped for as long as the block lasts, which may also be the end of it."""
    process.suspend()
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):  # asking first would be too early
            process.resume()
