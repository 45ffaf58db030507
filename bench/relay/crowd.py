"""Many callers at once: what an idle stream holds, how soon all are gone, races that are lost."""

import json
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.relay.cases import CHAT, EMBED, chat, request
from scripts.started_daemon import StartedDaemon

STREAMS = 1000
SILENCE_US = 600_000_000  # between two chunks: nobody hears one
LOOK_S = 0.002
WITHIN_S = 30.0
RACES = 5000


@dataclass(frozen=True, slots=True)
class Crowd:
    """What many callers at once cost."""

    bytes_per_stream: float
    freed_s: float
    """From the moment all left until no slot was taken."""


def crowd(daemon: StartedDaemon, models: Sequence[str]) -> Crowd:
    """STREAMS silent streams over the models, which have slots for all of them."""
    process = psutil.Process(daemon.process.pid)
    _silent(daemon, models, len(models))  # warm: one each
    before_bytes = process.memory_info().rss
    callers = _callers(daemon, models, STREAMS)
    _until_running(daemon, STREAMS)
    held_bytes = process.memory_info().rss - before_bytes
    began_s = time.monotonic()
    for caller in callers:
        caller.close()
    _until_running(daemon, 0)
    return Crowd(held_bytes / STREAMS, time.monotonic() - began_s)


def _silent(daemon: StartedDaemon, models: Sequence[str], n: int) -> None:
    for caller in _callers(daemon, models, n):
        caller.close()
    _until_running(daemon, 0)


def _callers(daemon: StartedDaemon, models: Sequence[str], n: int) -> list[socket.socket]:
    host, _, port = daemon.listen.rpartition(":")
    callers = []
    for i in range(n):
        caller = socket.create_connection((host, int(port)))
        caller.sendall(request(CHAT, models[i % len(models)], chat(2, pace_us=SILENCE_US)))
        callers.append(caller)
    return callers


def _until_running(daemon: StartedDaemon, n: int) -> None:
    until_s = time.monotonic() + WITHIN_S
    while sum(each["running"] for each in daemon.status()["instances"]) != n:
        assert time.monotonic() < until_s, f"{n} running requests were expected"
        time.sleep(LOOK_S)


def lost_races(
    daemon: StartedDaemon, load: Path, model: str, *, at_least: int = RACES
) -> tuple[int, int]:
    """POSTs while the child closes half of its connections unannounced: how many, and errors."""
    port = daemon.listen.rpartition(":")[2]
    n_requests = n_errors = 0
    while n_requests < at_least:
        with ExitStack() as running:
            asked = [
                running.enter_context(
                    subprocess.Popen(
                        [load, port, "4", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                    )
                )
                for _ in range(2)
            ]
            for one, user in zip(asked, ("/close", "stay"), strict=True):
                assert one.stdin is not None
                one.stdin.write(request(EMBED, model, {"input": "x", "user": user}))
                one.stdin.close()
            for one in asked:
                assert one.stdout is not None
                told = json.loads(one.stdout.read())
                n_requests, n_errors = n_requests + told["requests"], n_errors + told["errors"]
    return n_requests, n_errors
