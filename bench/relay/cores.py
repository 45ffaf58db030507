"""Which core what runs on: the relay that is clocked alone on one, what loads it on another.

As the reference measured. Side by side on whichever core is free, a relay also pays for being woken
on a cold one, and for whoever else was there; the more so the less it has to do.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import psutil


def part(relays: Iterable[int], others: Iterable[int]) -> bool:
    """Moves relays to this process's first core, all else to its second; False where it has one.

    `others`: processes; this one is of them, and so is what it starts from now on.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return False
    for pid in relays:
        _move(pid, cores[0])
    for pid in (*others, os.getpid()):
        _move(pid, cores[1])
    return True


def children(pid: int) -> tuple[int, ...]:
    """Processes that one has started, and they in turn."""
    return tuple(child.pid for child in psutil.Process(pid).children(recursive=True))


def _move(pid: int, core: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})
