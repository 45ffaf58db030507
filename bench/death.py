"""`make bench-death`: how soon a killed child is noticed, by the daemon and by whom it served.

Each round loads the quickstart model, starts a stream, kills the child with SIGKILL in its middle
and clocks, from the kill: until the kernel had taken the process down (its pidfd is readable: what
nobody can be told before), until the daemon recorded the end, and until the caller, whose stream
goes on with another child, had its next word: the end of the longest silence since the kill.
`--load` has that many processes keep the processor busy meanwhile.
"""

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from bench.quickstart import loaded, quickstart_daemon
from scripts.started_daemon import StartedDaemon

ENDED_S = 30.0
LOOK_S = 0.02  # cadence of looking for the event, once the caller has its answer
LINES = (
    "kill to gone (pidfd)",
    "kill to recorded",
    "gone to recorded",
    "kill to the caller's next word",
)


@dataclass(frozen=True, slots=True)
class Noticed:
    """Seconds from one SIGKILL."""

    gone_s: float
    recorded_s: float
    caller_s: float


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.death", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="children killed (20)")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it (0)")
    asked = parser.parse_args()
    with _busy(asked.load):
        print(report(measured(rounds=asked.rounds)))


def measured(*, rounds: int) -> list[Noticed]:
    """What a daemon in a temporary folder showed."""
    with quickstart_daemon(config="[fleet]\nrestart_limit = 1000\n") as (daemon, model):
        return [_round(daemon, model) for _ in range(rounds)]


def report(noticed: list[Noticed]) -> str:
    """The table, in milliseconds."""
    columns = (
        [n.gone_s for n in noticed],
        [n.recorded_s for n in noticed],
        [n.recorded_s - n.gone_s for n in noticed],
        [n.caller_s for n in noticed],
    )
    rows = [f"{'ms':30}{'median':>10}{'max':>10}"]
    for line, values in zip(LINES, columns, strict=True):
        rows.append(f"{line:30}{median(values) * 1e3:10.1f}{max(values) * 1e3:10.1f}")
    return "\n".join(rows)


def _round(daemon: StartedDaemon, model: str) -> Noticed:
    pid, _ = loaded(daemon, model)
    pidfd = os.pidfd_open(pid)
    gone: list[float] = []
    watcher = threading.Thread(target=_watch, args=(pidfd, gone))
    with _stream(daemon, model) as caller:
        caller.recv(1 << 16)
        watcher.start()
        killed_at = time.time()
        os.kill(pid, signal.SIGKILL)
        caller_at = _next_word_at(caller, since=killed_at)
    watcher.join(ENDED_S)
    os.close(pidfd)
    recorded_at = _recorded(daemon, model, since=killed_at)
    return Noticed(gone[0] - killed_at, recorded_at - killed_at, caller_at - killed_at)


def _watch(pidfd: int, gone: list[float]) -> None:
    select.select([pidfd], [], [], ENDED_S)
    gone.append(time.time())


@contextmanager
def _stream(daemon: StartedDaemon, model: str) -> Iterator[socket.socket]:
    """The connection of a caller whose answer has begun."""
    told = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Count."}]}
    body = json.dumps({**told, "max_tokens": 200, "ignore_eos": True}).encode()
    host, _, port = daemon.listen.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ENDED_S) as caller:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {daemon.listen}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        caller.sendall(head.encode() + body)
        seen = b""
        while b'"content":"' not in seen:
            seen += caller.recv(1 << 16)
        yield caller


def _next_word_at(caller: socket.socket, *, since: float) -> float:
    """UTC seconds at which the longest silence of the rest of the stream was over."""
    heard = [since]
    is_over = False
    while not is_over:
        is_over = not caller.recv(1 << 16)
        heard.append(time.time())
    return max(pairwise(heard), key=lambda pair: pair[1] - pair[0])[1]


def _recorded(daemon: StartedDaemon, model: str, *, since: float) -> float:
    """UTC seconds of the event that tells of the end."""
    until_s = time.monotonic() + ENDED_S
    while time.monotonic() < until_s:
        told = json.loads(daemon.ctl("events", "--model", model, "--json").stdout)["events"]
        ends = [e["at"] for e in told if e["kind"] == "instance.ended" and e["at"] >= since]
        if ends:
            return float(ends[0])
        time.sleep(LOOK_S)
    raise SystemExit("the daemon recorded no end")


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    spin = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(spin) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
