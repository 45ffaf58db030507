"""`make bench-migration`: what callers see of moves and of kills, against uninterrupted streams.

Each round starts a stream per slot, in dialects drawn at random, and once one of them has come to a
point drawn at random the model is moved (`moves`: another context, other slots; `rpc`: another
split over two loopback servers), or its process is killed (`kills`). Texts are compared with those
of the same requests, undisturbed. All are greedy, so each is to be equal.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

from bench.migration.streams import DIALECTS, PROMPTS, WITHIN_S, Dialect, Ended, called
from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import quickstart_model_dir
from tests.fakes.rpc_servers import rpc_server

SLOTS = 4
N_TOKENS = 96
READY_S = 120.0
CONFIG = f"[models]\nparallel = {SLOTS}\ncontext = 1024\n[fleet]\nrestart_limit = 1000\n"
MOVES = (("--context", "2048"), ("--context", "1024"), ("--parallel", "6"), ("--parallel", "4"))
SPLITS = (("--tensor-split", "1,1"), ("--tensor-split", "3,1"), ("--tensor-split", "1,3"))


@dataclass(slots=True)
class Account:
    """What became of all streams."""

    streams: int = 0
    resumed: int = 0
    """Times that one went on in another process; who ended before that is not among them."""
    failed: list[str] = field(default_factory=list)
    """Each with the error that its caller got."""
    silent: int = 0
    """Ended without a word."""
    differing: list[str] = field(default_factory=list)
    """Each that came to other words, with both."""
    pauses_s: list[float] = field(default_factory=list)
    """The longest between two pieces of each stream."""
    moves_s: list[float] = field(default_factory=list)
    """How long each move took."""

    @property
    def identical(self) -> int:
        """Byte for byte as undisturbed."""
        return self.streams - len(self.failed) - len(self.differing) - self.silent

    def text(self, what: str) -> str:
        """A line for people, and one for each stream that was not as it should be."""
        lines = [
            f"{what}: {self.streams} streams, {self.resumed} resumed, {len(self.failed)} failed,"
            f" {self.silent} silent ends, {self.identical} identical,"
            f" {len(self.differing)} in other words",
        ]
        if self.pauses_s:
            ranked = sorted(self.pauses_s)
            p95 = ranked[int(0.95 * (len(ranked) - 1))]
            lines.append(f"  pause p50 {median(ranked):.2f} s, p95 {p95:.2f} s")
        if self.moves_s:
            lines.append(f"  move p50 {median(self.moves_s):.2f} s")
        lines += [f"  failed: {each}" for each in self.failed[:10]]
        lines += [f"  differs: {each}" for each in self.differing[:10]]
        return "\n".join(lines)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.migration", description=__doc__)
    parser.add_argument("--moves", type=int, default=200, help="streams that move (200)")
    parser.add_argument("--rpc", type=int, default=40, help="streams between RPC devices (40)")
    parser.add_argument("--kills", type=int, default=200, help="streams of killed processes (200)")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for what, n in (("moves", asked.moves), ("rpc", asked.rpc), ("kills", asked.kills)):
        if n:
            print(measured(what, streams=n, seed=asked.seed).text(what), flush=True)


def measured(what: str, *, streams: int, seed: int) -> Account:
    """What a daemon in a temporary folder showed."""
    draw = random.Random(seed)
    account = Account()
    with world(has_servers=what == "rpc") as daemon, ThreadPoolExecutor(SLOTS) as threads:
        model = httpx.get(f"{daemon.base}/v1/models", trust_env=False).json()["data"][0]["id"]
        alone: dict[tuple[str, str], str] = {}
        n_round = 0
        while account.streams < streams:
            pairs = [(draw.choice(DIALECTS), draw.choice(PROMPTS)) for _ in range(SLOTS)]
            _undisturbed(daemon, threads, model, pairs, alone)
            reach = draw.randrange(1, N_TOKENS // 2)
            ended = _round(daemon, threads, model, pairs, account, reach, what, n_round)
            _take(account, pairs, ended, alone)
            n_round += 1
        account.resumed = _resumed(daemon)
    return account


def _resumed(daemon: StartedDaemon) -> int:
    """How often a stream went on in another process."""
    page = httpx.get(f"{daemon.base}/metrics", trust_env=False).text
    lines = [
        line for line in page.splitlines() if line.startswith("inferenceosd_resumptions_total")
    ]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


@contextmanager
def world(*, has_servers: bool) -> Iterator[StartedDaemon]:
    """A daemon with the quickstart model, loaded."""
    model_dir = quickstart_model_dir()
    assert model_dir is not None, "make installs the quickstart model first"
    with ExitStack() as held:
        config = CONFIG
        if has_servers:
            names = [held.enter_context(rpc_server()).address for _ in range(2)]
            config += f'[rpc]\nservers = ["{names[0]}", "{names[1]}"]\n'
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="ios-bench-"))
        daemon = held.enter_context(
            started_daemon(Path(folder), model_dirs=[model_dir], config=config)
        )
        daemon.wait_for_engines()
        model = httpx.get(f"{daemon.base}/v1/models", trust_env=False).json()["data"][0]["id"]
        assert daemon.ctl("load", model).returncode == 0
        if has_servers:
            both = [part for name in names for part in ("--device", f"rpc:{name}")]
            told = daemon.ctl("migrate", model, *both, "--tensor-split", "2,1", "--layers", "31")
            assert told.returncode == 0, told.stderr
        yield daemon


def _undisturbed(
    daemon: StartedDaemon,
    threads: ThreadPoolExecutor,
    model: str,
    pairs: Sequence[tuple[Dialect, str]],
    alone: dict[tuple[str, str], str],
) -> None:
    """The texts of those that were not asked yet."""
    for dialect, prompt in pairs:
        key = dialect.path, prompt
        if key not in alone:
            caller = called(
                threads, daemon.base, model, dialect, prompt, n_tokens=N_TOKENS, reach=1
            )
            ended = caller.future.result(WITHIN_S)
            assert ended.has_end, ended
            assert not ended.error, ended
            alone[key] = ended.text


def _round(
    daemon: StartedDaemon,
    threads: ThreadPoolExecutor,
    model: str,
    pairs: Sequence[tuple[Dialect, str]],
    account: Account,
    reach: int,
    what: str,
    n_round: int,
) -> list[Ended]:
    callers = [
        called(threads, daemon.base, model, dialect, prompt, n_tokens=N_TOKENS, reach=reach)
        for dialect, prompt in pairs
    ]
    callers[n_round % SLOTS].reached.wait(WITHIN_S)
    if what == "kills":
        _kill(daemon)
    else:
        options = (SPLITS if what == "rpc" else MOVES)[n_round % (3 if what == "rpc" else 4)]
        began_s = time.monotonic()
        told = daemon.ctl("migrate", model, *options)
        account.moves_s.append(time.monotonic() - began_s)
        assert told.returncode == 0, told.stderr
    return [caller.future.result(WITHIN_S) for caller in callers]


def _kill(daemon: StartedDaemon) -> None:
    """SIGKILL the child, once it is there."""
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        pids = [i["pid"] for i in daemon.status()["instances"] if i["state"] == "ready"]
        if pids and pids[0]:
            os.kill(pids[0], signal.SIGKILL)
            return
        time.sleep(0.02)
    raise SystemExit("no child is ready to be killed")


def _take(
    account: Account,
    pairs: Sequence[tuple[Dialect, str]],
    ended: Sequence[Ended],
    alone: dict[tuple[str, str], str],
) -> None:
    for (dialect, prompt), each in zip(pairs, ended, strict=True):
        account.streams += 1
        account.pauses_s.append(each.longest_gap_s)
        due = alone[dialect.path, prompt]
        if each.error:
            account.failed.append(f"{dialect.path} {prompt!r}: {each.error[:300]}")
        elif not each.has_end:
            account.silent += 1
        elif each.text != due:
            account.differing.append(f"{dialect.path} {prompt!r}: {each.text!r}, not {due!r}")


if __name__ == "__main__":
    main()
