"""A program of its own: two processes on two CPUs wake each other in turn; prints seconds one way.

Prints nothing where there are no two CPUs. Pinned, because a scheduler that sees two processes take
turns puts both on one CPU, where a wake-up costs nothing. Imports little: most of its time is
Python's start.
"""

import os
import signal
import time
from collections.abc import Iterable

ROUNDS = 300
WARM_UP = 20
LIMIT_S = 2  # whoever started it may be gone
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def main() -> None:
    """Measure and print; nothing where it cannot be done."""
    if not hasattr(os, "sched_getaffinity"):
        return  # macOS: threads cannot be pinned
    signal.alarm(LIMIT_S)
    pair = two_cores((cpu, _siblings(cpu)) for cpu in sorted(os.sched_getaffinity(0)))
    if pair is not None:
        times_s = round_trips_s(*pair)[WARM_UP:]
        print(sorted(times_s)[len(times_s) // 2] / 2)


def two_cores(cpus: Iterable[tuple[int, str]]) -> tuple[int, int] | None:
    """The first two of (CPU, its core's list of threads) that are not of one core."""
    first: tuple[int, str] | None = None
    for cpu, siblings in cpus:
        if first is None:
            first = cpu, siblings
        elif not siblings or siblings != first[1]:
            return first[0], cpu
    return None


def round_trips_s(here: int, there: int) -> list[float]:
    """Seconds of each round: a byte to a process on CPU `there`, and its answer."""
    ask_end, ask = os.pipe()
    answer, answer_end = os.pipe()
    if not os.fork():
        try:
            os.close(ask)  # so that the end of this process is the end of what it reads
            _answer_all(ask_end, answer_end, cpu=there)
        finally:
            os._exit(0)
    os.close(ask_end)
    os.close(answer_end)
    os.sched_setaffinity(0, {here})
    found = []
    for _ in range(WARM_UP + ROUNDS):
        begun_s = time.perf_counter()
        os.write(ask, b".")
        if not os.read(answer, 1):
            raise SystemExit("the other process is gone")
        found.append(time.perf_counter() - begun_s)
    return found


def _answer_all(asked: int, answer: int, *, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    while byte := os.read(asked, 1):
        os.write(answer, byte)


def _siblings(cpu: int) -> str:
    """The threads of its core, "0,64"; "" where nobody tells."""
    try:
        with open(SIBLINGS.format(cpu)) as file:
            return file.read().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
