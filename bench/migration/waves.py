"""A program that takes memory and gives it back, in waves: somebody else's, on the same machine."""

import argparse
import mmap
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

STEP_BYTES = 8 << 20
QUICK_BYTES_PER_S = 256 << 20
SLOW_BYTES_PER_S = 40 << 20  # who watches has ten seconds from the first sign to the end
SLOW_BYTES = 1 << 30  # the last of each wave
SMALLEST = 0.8  # of the largest wave
HELD_S = (8.0, 20.0)
GIVEN_BACK_S = (5.0, 20.0)


@dataclass(frozen=True, slots=True)
class Wave:
    """One of them."""

    bytes: int
    held_s: float
    rest_s: float


def waves(chance: random.Random, *, peak_bytes: int) -> Iterator[Wave]:
    """One after the other, for ever."""
    while True:
        size = int(chance.uniform(SMALLEST, 1.0) * peak_bytes)
        yield Wave(size, chance.uniform(*HELD_S), chance.uniform(*GIVEN_BACK_S))


def main() -> None:
    """Parse, and make waves until the time is over."""
    parser = argparse.ArgumentParser(prog="bench.migration.waves", description=__doc__)
    parser.add_argument("--peak", type=int, required=True, metavar="BYTES")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=1.0, help="so many times as quick (1)")
    asked = parser.parse_args()
    until_s = time.monotonic() + asked.seconds
    for wave in waves(random.Random(asked.seed), peak_bytes=asked.peak):
        if not _made(wave, until_s, pace=asked.pace):
            break
        sys.stdout.write(f"{wave.bytes}\n")
        sys.stdout.flush()


def _made(wave: Wave, until_s: float, *, pace: float) -> bool:
    """Makes one; False where the time was over before its peak was held."""
    taken: list[mmap.mmap] = []
    try:
        while len(taken) * STEP_BYTES < wave.bytes:
            is_slow = (len(taken) + 1) * STEP_BYTES > wave.bytes - SLOW_BYTES
            bytes_per_s = SLOW_BYTES_PER_S if is_slow else QUICK_BYTES_PER_S
            time.sleep(STEP_BYTES / bytes_per_s / pace)
            if time.monotonic() > until_s:
                return False
            taken.append(_touched())
        time.sleep(max(0.0, min(wave.held_s / pace, until_s - time.monotonic())))
    finally:
        for part in taken:
            part.close()
    time.sleep(max(0.0, min(wave.rest_s / pace, until_s - time.monotonic())))
    return True


def _touched() -> mmap.mmap:
    """Memory that is there, every page of it."""
    part = mmap.mmap(-1, STEP_BYTES)
    part.write(b"\1" * STEP_BYTES)
    return part


if __name__ == "__main__":
    main()
