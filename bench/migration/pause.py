"""How long callers wait while their model moves, against a bare llama-server's stop and start.

Each round stops and starts a bare child with the argv of the daemon's, and then moves the daemon's
under four streams: the two see the same machine. In one daemon both launches fit, in the other one
makes room for the next.
"""

import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from bench.migration import worlds
from bench.migration.account import verdict
from bench.migration.questions import ENDLESS
from bench.migration.streams import WITHIN_S, Ended, ended
from bench.migration.worlds import World

ROUNDS = 8
STREAMS = 4
N_TOKENS = 300
MOST_RATIO = 1.5  # of a bare restart that a caller waits, median
BEGUN_S = 1.0  # for the streams to be under way
LOOK_S = 0.005  # cadence of asking a child whether it is ready
READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Pauses:
    """Of one daemon's rounds, seconds."""

    what: str
    orders: tuple[str, ...]
    """What each move's order was."""
    bare_s: tuple[float, ...]
    """From SIGTERM to a bare child until the next one says that it is ready."""
    gaps_s: tuple[float, ...]
    """The longest between two pieces of each stream that was hit, as its caller saw it."""
    told_s: tuple[float, ...]
    """From the loss to the first new piece of each, as the daemon tells it."""

    @property
    def ratio(self) -> float:
        """What callers waited by what a bare child took to be there again, medians."""
        return median(self.gaps_s) / median(self.bare_s)

    def bar(self) -> str:
        """What was promised of it, and whether that holds, in a line."""
        return (
            f"{verdict(self.ratio <= MOST_RATIO)} pause, {self.what}: {self.ratio:.2f} times a bare"
            f" restart ({MOST_RATIO} at most), median of {len(self.gaps_s)} streams"
        )


def measured(n_rounds: int) -> list[Pauses]:
    """Both orders."""
    kinds: tuple[tuple[str, Callable[[], AbstractContextManager[World]]], ...] = (
        ("make before break", worlds.side_by_side),
        ("break before make", worlds.on_the_processor),
    )
    return [_measured(what, world, n_rounds) for what, world in kinds]


def report(pauses: list[Pauses]) -> str:
    """A line for each."""
    head = (
        f"{'median of seconds':20}{'bare':>8}{'caller':>9}{'daemon':>9}{'ratio':>8}{'streams':>9}"
    )
    rows = [head]
    for each in pauses:
        bare, caller, told = map(median, (each.bare_s, each.gaps_s, each.told_s))
        orders = ", ".join(sorted(set(each.orders)))
        rows.append(
            f"{each.what:20}{bare:8.2f}{caller:9.2f}{told:9.2f}{each.ratio:8.2f}"
            f"{len(each.told_s):9}  ({orders})"
        )
    return "\n".join(rows)


def _measured(
    what: str, kind: Callable[[], AbstractContextManager[World]], n_rounds: int
) -> Pauses:
    bare: list[float] = []
    gaps: list[float] = []
    told: list[float] = []
    orders: list[str] = []
    with kind() as world, _bare(world) as restarted:
        for number in range(n_rounds):
            bare.append(restarted())
            began_at = time.time()
            seen = _moved(world, number)
            hit = {e["request_id"]: e for e in world.resumed(since=began_at)}
            told += [float(event["pause_s"]) for event in hit.values()]
            gaps += [one.longest_gap_s for one in seen if one.request_id in hit]
            orders += world.orders(since=began_at)
    return Pauses(what, tuple(orders), tuple(bare), tuple(gaps), tuple(told))


def _moved(world: World, number: int) -> list[Ended]:
    """The streams in whose middle it moved."""
    with ThreadPoolExecutor(STREAMS) as threads:
        callers = [
            threads.submit(ended, world.base, world.model, ENDLESS, n_tokens=N_TOKENS)
            for _ in range(STREAMS)
        ]
        time.sleep(BEGUN_S)
        world.move(world.moves[number % len(world.moves)])
        seen = [caller.result(WITHIN_S) for caller in callers]
    faults = [one.error for one in seen if one.error or not one.has_end]
    assert not faults, faults
    return seen


@contextmanager
def _bare(world: World) -> Iterator[Callable[[], float]]:
    """A child of nobody's, and how to stop and start it: seconds that this takes."""
    (instance,) = world.ready()
    process = psutil.Process(instance["pid"])
    argv = process.cmdline()
    # Without what makes it the child of a daemon: such a one ends over its stdin alone.
    env = {k: v for k, v in process.environ().items() if not k.startswith("LLAMA_SERVER_")}
    with tempfile.TemporaryDirectory(prefix="ios-bare-") as folder:
        path = Path(folder) / "child.sock"
        argv[argv.index("--host") + 1] = str(path)
        argv[argv.index("--slot-save-path") + 1] = folder
        child = _started(argv, env, path)

        def restarted() -> float:
            nonlocal child
            child.send_signal(signal.SIGCONT)
            began_s = time.monotonic()
            child.send_signal(signal.SIGTERM)
            child.wait(READY_S)
            path.unlink(missing_ok=True)
            child = _started(argv, env, path)
            took_s = time.monotonic() - began_s
            child.send_signal(signal.SIGSTOP)  # what is idle here takes no time from the other
            return took_s

        try:
            yield restarted
        finally:
            child.kill()
            child.wait()


def _started(argv: list[str], env: dict[str, str], path: Path) -> subprocess.Popen[bytes]:
    """A child that is ready."""
    child = subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    give_up_s = time.monotonic() + READY_S
    while not _is_ready(path):
        assert child.poll() is None, "the bare child ended"
        assert time.monotonic() < give_up_s, "the bare child does not get ready"
        time.sleep(LOOK_S)
    return child


def _is_ready(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asked:
        try:
            asked.connect(str(path))
            asked.sendall(b"GET /health HTTP/1.1\r\nHost: bare\r\nConnection: close\r\n\r\n")
            return asked.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            return False
