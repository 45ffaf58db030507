"""`make bench-start`: how soon a daemon answers, and what it takes while nobody asks anything.

Each round starts a daemon with no model and clocks, from its exec, the first answer to
`GET /api/version`, and the processor's time until then; then, as the named peer, a Python that
imports uvicorn and Starlette and ends. The last daemon is left alone, with both of its servers up
and its engines tried, and its memory (RSS, and PSS, which shares out what other processes map as
well) and processor's time are read from /proc.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from scripts.started_daemon import StartedDaemon, started_daemon

ROUNDS = 10
IDLE_S = 30.0
LOOK_S = 0.002  # cadence of knocking at a door that is not open yet
ANSWER_S = 60.0
PEER = "import uvicorn, starlette.applications, uvloop, httptools"
ASK = b"GET /api/version HTTP/1.1\r\nhost: localhost\r\n\r\n"
MB = 1_000_000
_CPUCLOCK_SCHED = 2  # include/linux/posix-timers_types.h


@dataclass(frozen=True, slots=True)
class Started:
    """Seconds from one exec."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Idle:
    """What a daemon takes that nobody asks anything."""

    rss_bytes: int
    pss_bytes: int
    cores: float
    """Processor's seconds a second."""


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"daemons started ({ROUNDS})")
    parser.add_argument("--idle", type=float, default=IDLE_S, help=f"seconds ({IDLE_S:.0f})")
    asked = parser.parse_args()
    print(measured(rounds=asked.rounds, idle_s=asked.idle))


def measured(*, rounds: int, idle_s: float) -> str:
    """Daemons and peers in turn, then the last daemon idle; the table."""
    ours, peers, idle = [], [], None
    for each in range(rounds):
        peers.append(_peer())
        with _daemon() as (daemon, started):
            ours.append(started)
            if each == rounds - 1:
                daemon.wait_for_engines()
                idle = taken_idle(daemon.process.pid, idle_s)
    assert idle is not None
    return report(ours, peers, idle)


def report(ours: list[Started], peers: list[Started], idle: Idle) -> str:
    """The table."""
    rows = [
        f"{f'median of {len(ours)}, ms':24}{'wall':>8}{'CPU':>8}",
        _row("exec to first answer", ours),
        _row("peer, exec to exit", peers),
        f"{'idle RSS':24}{idle.rss_bytes / MB:8.1f} MB, PSS {idle.pss_bytes / MB:.1f} MB",
        f"{'idle CPU':24}{idle.cores:8.2%} of a core",
    ]
    return "\n".join(rows)


def _row(name: str, starts: list[Started]) -> str:
    wall_s, cpu_s = median(s.wall_s for s in starts), median(s.cpu_s for s in starts)
    return f"{name:24}{wall_s * 1e3:8.0f}{cpu_s * 1e3:8.0f}"


@contextmanager
def _daemon() -> Iterator[tuple[StartedDaemon, Started]]:
    with TemporaryDirectory(prefix="ios-bench-") as name, socket.socket() as held:
        folder = Path(name)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        held.close()  # free again, so that whoever knocks knows where before the daemon does
        options = ("--listen", f"127.0.0.1:{port}")
        began_s = time.monotonic()
        with started_daemon(folder, model_dirs=[folder], options=options) as daemon:
            _first_answer(port)
            wall_s = time.monotonic() - began_s
            yield daemon, Started(wall_s, _cpu_s(daemon.process.pid))


def _first_answer(port: int) -> None:
    """Knock until somebody opens, and wait for what is said. Raises OSError past ANSWER_S."""
    deadline_s = time.monotonic() + ANSWER_S
    while True:
        with socket.socket() as asked:
            asked.settimeout(ANSWER_S)
            try:
                asked.connect(("127.0.0.1", port))
            except ConnectionRefusedError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(LOOK_S)
                continue
            asked.sendall(ASK)
            if not asked.recv(4096).startswith(b"HTTP/1.1 200"):
                raise ConnectionError("the first answer is none")
            return


def _peer() -> Started:
    began_s = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", PEER])
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    return Started(wall_s, used.ru_utime + used.ru_stime)


def taken_idle(pid: int, idle_s: float) -> Idle:
    """What a daemon that answers takes over the next `idle_s`."""
    began_s, before_s = time.monotonic(), _cpu_s(pid)
    time.sleep(idle_s)
    cores = (_cpu_s(pid) - before_s) / (time.monotonic() - began_s)
    told = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    )
    rss, pss = (int(told[key].split()[0]) * 1024 for key in ("Rss", "Pss"))
    return Idle(rss, pss, cores)


def _cpu_s(pid: int) -> float:
    """Of all its threads so far, those that have ended too; what clock_getcpuclockid(3) names."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


if __name__ == "__main__":
    main()
