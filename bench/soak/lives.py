"""`python -m bench.soak.lives`: what many loads and unloads of the real engine leave behind.

Loads the quickstart model by a request, unloads it, waits until no child is left, over and over,
and prints what the daemon holds each EVERY lives. Exit status 1 where descriptors, threads,
children, or files in the runtime folder have grown; memory is shown, and grows by what is kept of
events.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import quickstart_model_dir

EVERY = 25
WARM_UP = 3  # lives before the first look: what is made once is no leak
WITHIN_S = 30.0
LOOK_S = 0.02  # cadence: no event tells when a thread or a connection has gone


@dataclass(frozen=True, slots=True)
class Held:
    """What the daemon holds between two lives."""

    descriptors: int
    threads: int
    processes: int
    files: int
    """In its runtime folder."""
    rss_bytes: int

    def exceeds(self, before: "Held") -> bool:
        """True where anything but memory has grown."""
        return (
            self.descriptors > before.descriptors
            or self.threads > before.threads
            or self.processes > before.processes
            or self.files > before.files
        )


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.soak.lives", description=__doc__)
    parser.add_argument("--times", type=int, default=200, help="loads and unloads (200)")
    asked = parser.parse_args()
    model_dir = quickstart_model_dir()
    if model_dir is None:
        sys.exit("lives: no quickstart model: run make test, or scripts/quickstart.py")
    with (
        tempfile.TemporaryDirectory(prefix="ios-lives-") as folder,
        started_daemon(Path(folder), model_dirs=[model_dir]) as daemon,
    ):
        daemon.wait_for_engines()
        has_leaked = _lived(daemon, times=asked.times)
    print("NOT good" if has_leaked else "good")
    sys.exit(has_leaked)


def _lived(daemon: StartedDaemon, *, times: int) -> bool:
    """Whether something was left; prints as it goes."""
    print(f"{'lives':>6}{'descriptors':>13}{'threads':>9}{'children':>10}{'files':>7}{'MiB':>8}")
    transport = httpx.HTTPTransport(uds=str(daemon.admin_socket))
    with (
        httpx.Client(base_url=daemon.base, timeout=WITHIN_S, trust_env=False) as public,
        httpx.Client(transport=transport, base_url="http://admin", timeout=WITHIN_S) as admin,
    ):
        (model,) = (told["id"] for told in public.get("/v1/models").json()["data"])
        for _ in range(WARM_UP):
            _one_life(public, admin, model)
        before = _settled(daemon, None)
        _show(0, before)
        after = before
        for n in range(1, times + 1):
            _one_life(public, admin, model)
            if n % EVERY == 0 or n == times:
                after = _settled(daemon, before)
                _show(n, after)
    return after.exceeds(before)


def _one_life(public: httpx.Client, admin: httpx.Client, model: str) -> None:
    told = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
    public.post("/v1/chat/completions", json=told).raise_for_status()
    admin.post("/unload", json={"model": model}).raise_for_status()
    until_s = time.monotonic() + WITHIN_S
    while admin.get("/status").raise_for_status().json()["instances"]:
        if time.monotonic() > until_s:
            sys.exit(f"lives: a child did not end within {WITHIN_S:.0f} s of its unload")
        time.sleep(LOOK_S)


def _settled(daemon: StartedDaemon, before: Held | None) -> Held:
    """What is held once what is closing has closed, or after WITHIN_S."""
    until_s = time.monotonic() + (1.0 if before is None else WITHIN_S)
    while True:
        held = _held(daemon)
        if (before is not None and not held.exceeds(before)) or time.monotonic() > until_s:
            return held
        time.sleep(LOOK_S)


def _held(daemon: StartedDaemon) -> Held:
    process = psutil.Process(daemon.process.pid)
    return Held(
        descriptors=process.num_fds(),
        threads=process.num_threads(),
        processes=len(process.children(recursive=True)),
        files=sum(1 for _ in (daemon.folder / "run").rglob("*")),
        rss_bytes=process.memory_info().rss,
    )


def _show(n: int, held: Held) -> None:
    print(
        f"{n:>6}{held.descriptors:>13}{held.threads:>9}{held.processes:>10}{held.files:>7}"
        f"{held.rss_bytes / (1 << 20):>8.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
