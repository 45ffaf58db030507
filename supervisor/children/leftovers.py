"""Children of a daemon that was killed, found by what they carry, and removed.

Every child has the mark of its daemon's state folder in its environment, and whatever it starts
inherits it. The folder's lock allows one daemon at a time, so that at its start all that carry the
mark are leftovers. A list of pids would be incomplete where the daemon died between a start and
its entry, and wrong once a pid is another's; a mark dies with its process.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from msgspec import Struct

MARK = "SUPERVISED_BY_INFERENCEOSD"  # not INFERENCEOSD_*: those are settings
LOOK_S = 0.02  # cadence of looking whether a killed process is gone


class Leftover(Struct, frozen=True):
    """A process that its daemon left behind."""

    pid: int
    name: str
    started_at: float
    """UTC seconds."""


def mark_of(folder: Path) -> str:
    """Names a state folder by what the file system knows it by: a copy of it has another."""
    found = folder.stat()
    return f"{found.st_dev:x}-{found.st_ino:x}"


@contextmanager
def marked_children(mark: str) -> Iterator[None]:
    """Every process started within the block inherits the mark."""
    before = os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(MARK)
        if before is not None:
            os.environ[MARK] = before


def remove_leftovers(mark: str, *, within_s: float) -> tuple[Leftover, ...]:
    """SIGKILL all that carry the mark; return what they were once they are gone, or time is up.

    Blocks. Only to be called by who holds the state folder's lock.
    """
    until_s = time.monotonic() + within_s
    marked: set[int] = set()
    removed: list[Leftover] = []
    while ours := _next_ours(mark, marked):
        removed += filter(None, map(_killed, ours))
        while any(map(_is_alive, ours)) and time.monotonic() < until_s:
            time.sleep(LOOK_S)
        if time.monotonic() >= until_s:
            break
    return tuple(removed)


def _next_ours(mark: str, marked: set[int]) -> list[psutil.Process]:
    """What is ours and was not found before; `marked` takes all that was ever found.

    Asked until there is nothing: one that was just forked is in no list.
    """
    new = [p for p in psutil.process_iter() if p.pid not in marked and p.pid != os.getpid()]
    carriers = {process.pid for process in new if _carries(process, mark)}
    marked |= carriers
    ours = [process for process in new if _is_ours(process.pid, carriers, marked)]
    marked.update(process.pid for process in ours)
    return ours


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except psutil.Error:  # another user's, or gone meanwhile
        return False


def _is_ours(pid: int, carriers: set[int], marked: set[int]) -> bool:
    """Ours lead sessions of their own, and whatever they started belongs to those.

    So a process in the midst of its exec is known too, which has no environment for that moment;
    and a stranger's copy of a child's environment is not taken: it is in the stranger's session.
    """
    try:
        leader = os.getsid(pid)
    except ProcessLookupError:
        return False
    return leader in marked or (pid in carriers and not psutil.pid_exists(leader))


def _killed(process: psutil.Process) -> Leftover | None:
    """What was killed; None where it ended by itself, its pid another's now or nobody's."""
    with suppress(psutil.Error):
        left = Leftover(process.pid, process.name(), process.create_time())
        process.kill()  # psutil compares its start time first
        return left
    return None


def _is_alive(process: psutil.Process) -> bool:
    """A zombie is not: who should reap it may not, as some containers' first process."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
