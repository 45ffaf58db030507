"""`python -m bench.surface`: what listing and showing models takes, where there are a thousand.

A daemon is started over that many small GGUF files. Each round asks over one kept connection, in
turn, for /api/version, which looks at nothing and is the peer, and for the lists and one model's
facts; the processor's time is the daemon's, by route, over all rounds.
"""

import argparse
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from scripts.started_daemon import StartedDaemon, started_daemon
from tests.fakes.gguf_writer import gguf, put

MODELS = 1000
ROUNDS = 30
REPEATS = 10  # of one route in a row, so that its processor's time can be told
SCAN_S = 120.0
LOOK_S = 0.2  # cadence of looking whether all models were found
SHOWN = "m0000"
PEER = "/api/version"
ROUTES = {
    PEER: b"",
    "/api/tags": b"",
    "/v1/models": b"",
    "/api/show": b'{"model":"%b"}' % SHOWN.encode(),
    "/api/ps": b"",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """Of one route."""

    wall_s: float
    """Median of one reply, to its last byte."""
    first_s: float
    """The first reply, with nothing rendered before."""
    cpu_s: float
    """The daemon's, mean of one."""
    n_bytes: int


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.surface", description=__doc__)
    parser.add_argument("--models", type=int, default=MODELS, help=f"on offer ({MODELS})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each route ({ROUNDS})")
    asked = parser.parse_args()
    print(table(measured(n_models=asked.models, rounds=asked.rounds), n_models=asked.models))


def measured(*, n_models: int, rounds: int) -> dict[str, Taken]:
    """What each route takes."""
    with TemporaryDirectory(prefix="ios-", dir="/tmp") as folder:
        models = Path(folder) / "models"
        models.mkdir()
        for number in range(n_models):
            pairs = {"general.name": f"m{number:04}", "tokenizer.chat_template": "{{ messages }}"}
            put(models, f"m{number:04}.gguf", gguf(pairs=pairs))
        with started_daemon(Path(folder), model_dirs=[models]) as daemon:
            _wait_for(daemon, n_models)
            return _asked(daemon, rounds)


def _wait_for(daemon: StartedDaemon, n_models: int) -> None:
    """Raises TimeoutError."""
    daemon.wait_for_engines()
    deadline_s = time.monotonic() + SCAN_S
    with _connected(daemon.listen) as ask:
        while ask("/v1/models").count(b'"object":"model"') < n_models:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not all of {n_models} models are on offer")
            time.sleep(LOOK_S)


def _asked(daemon: StartedDaemon, rounds: int) -> dict[str, Taken]:
    process = psutil.Process(daemon.process.pid)
    walls: dict[str, list[float]] = {route: [] for route in ROUTES}
    cpu_s, sizes = dict.fromkeys(ROUTES, 0.0), dict.fromkeys(ROUTES, 0)
    with _connected(daemon.listen) as ask:
        for _ in range(rounds):
            for route in ROUTES:
                before = sum(process.cpu_times()[:2])
                for _ in range(REPEATS):
                    began_s = time.perf_counter()
                    sizes[route] = len(ask(route))
                    walls[route].append(time.perf_counter() - began_s)
                cpu_s[route] += sum(process.cpu_times()[:2]) - before
    return {
        route: Taken(
            wall_s=median(walls[route]),
            first_s=walls[route][0],
            cpu_s=cpu_s[route] / (rounds * REPEATS),
            n_bytes=sizes[route],
        )
        for route in ROUTES
    }


@contextmanager
def _connected(listen: str) -> Iterator["_Asking"]:
    host, _, port = listen.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SCAN_S) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield _Asking(connected)


class _Asking:
    """Asks over one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._reader = connected, connected.makefile("rb", buffering=1 << 20)

    def __call__(self, route: str) -> bytes:
        """The reply's body. Raises ValueError for any status but 200."""
        body = ROUTES[route]
        method = "POST" if body else "GET"
        head = (
            f"{method} {route} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        status = self._reader.readline()
        if b" 200 " not in status:
            raise ValueError(f"{route} answered {status!r}")
        n_bytes = 0
        while (line := self._reader.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                n_bytes = int(value)
        read: bytes = self._reader.read(n_bytes)
        return read


def table(taken: dict[str, Taken], *, n_models: int) -> str:
    """A line for each route, beside the peer."""
    peer = taken[PEER]
    lines = [f"{n_models} models", "route         median ms  x peer  first ms  cpu ms    bytes"]
    lines += [
        f"{route:<14}{one.wall_s * 1e3:>9.2f}{one.wall_s / peer.wall_s:>8.1f}"
        f"{one.first_s * 1e3:>10.1f}{one.cpu_s * 1e3:>8.2f}{one.n_bytes:>9}"
        for route, one in taken.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
