"""`make bench-relay`: CPU per request and per chunk against nginx, over a child of constant cost.

All relays stand before a C program that speaks llama-server's wire; each round asks every case of
every peer in a seeded order, and ratios are of medians over rounds. One of them, the floor, does
nothing but pass bytes on in Python: whatever it takes, nobody who does more can be below. What is
clocked is CPU time of the relay's own threads: wall-clock throughput on a shared machine says who
else ran. Relays have one core, callers and
children another (bench.relay.cores), where there are two.
"""

import argparse
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic

from bench.overhead import cpu_s
from bench.relay.built import engine, program
from bench.relay.cases import CASES, EMBED, Case
from bench.relay.cores import children, part
from bench.relay.crowd import STREAMS, crowd, lost_races
from bench.relay.peers import Peer, floor, nginx, program_of_nginx, upstream
from scripts.started_daemon import StartedDaemon, started_daemon
from tests.fakes.tiny_models import tiny_models, write

CHAT_MODEL, EMBED_MODEL = "dense", "encoder"  # tiny ones: their child never reads them
CROWD_MODELS = ("crowd-1", "crowd-2", "crowd-3", "crowd-4")  # of 256 slots each, the most there are
CONFIG = """
[backends.constant]
path = "{engine}"
[models]
parallel = 64
keep_alive = "-1"
context = 512
[memory]
reserve = "0"
"""
CROWD = """
[[model]]
name = "{name}"
parallel = 256
"""
LONGEST_S = 60.0  # that a case is asked for
DIRECT, NGINX, FLOOR, OURS = "direct", "nginx", "floor", "inferenceosd"


@dataclass(slots=True)
class Samples:
    """What one peer showed in one case, a value per round."""

    cpu_us: list[float] = field(default_factory=list)
    first_byte_us: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    errors: int = 0


Table = dict[tuple[str, str], Samples]
"""By case and peer."""


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.relay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="per case and peer (2)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (1)")
    parser.add_argument("--only", default="", help="cases whose name has this")
    asked = parser.parse_args()
    cases = [case for case in CASES if asked.only in case.name]
    with tempfile.TemporaryDirectory(prefix="ios-bench-") as name, stage(Path(name)) as found:
        load = program("load", Path(name))
        table = measured(
            cases, found.peers, load, rounds=asked.rounds, seconds=asked.seconds, seed=asked.seed
        )
        print(report(cases, table))
        if not asked.only:
            print(crowded(found.daemon, load))


@dataclass(frozen=True, slots=True)
class Stage:
    """All that is up while it is measured."""

    peers: tuple[Peer, ...]
    daemon: StartedDaemon


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """The peers over a child each; nginx only where it is installed."""
    folder.chmod(0o755)
    constant = program("upstream", folder)
    models = folder / "models"
    models.mkdir()
    by_name = {model.name: model for model in tiny_models()}
    for name in (CHAT_MODEL, EMBED_MODEL):
        write(by_name[name], models)
    for name in CROWD_MODELS:
        shutil.copy(models / f"{CHAT_MODEL}.gguf", models / f"{name}.gguf")
    config = CONFIG.format(engine=engine(folder, upstream=constant, models=models))
    config += "".join(CROWD.format(name=name) for name in CROWD_MODELS)
    own = folder / "d"
    own.mkdir()
    with ExitStack() as held:
        child = held.enter_context(upstream(constant, folder / "child.sock"))
        others = [Peer(DIRECT, str(child.path))]
        if program_of_nginx() is not None:
            others.append(held.enter_context(nginx(folder / "nginx", child.path)))
        others.append(held.enter_context(floor(child.path)))
        daemon = held.enter_context(started_daemon(own, model_dirs=[models], config=config))
        daemon.wait_for_engines()
        for name in (CHAT_MODEL, EMBED_MODEL, *CROWD_MODELS):
            loaded = daemon.ctl("load", name)
            assert loaded.returncode == 0, loaded.stderr
        ours = Peer(OURS, daemon.listen.rpartition(":")[2], (daemon.process.pid,))
        found = (*others, ours)
        relays = [pid for peer in found for pid in peer.pids]
        part(relays, (child.pid, *children(daemon.process.pid)))
        yield Stage(found, daemon)


def measured(
    cases: Sequence[Case],
    found: Sequence[Peer],
    load: Path,
    *,
    rounds: int,
    seconds: float,
    seed: int,
) -> Table:
    """Every case of every peer, once a round, in a seeded order."""
    chance = random.Random(seed)
    table: Table = {}
    turns = [
        (case, peer)
        for case in cases
        for peer in found
        if peer.name == OURS or not case.asks_daemon_only
    ]
    for _ in range(rounds):
        for case, peer in chance.sample(turns, len(turns)):
            samples = table.setdefault((case.name, peer.name), Samples())
            _run(case, peer, load, samples, seconds=seconds)
    return table


def _run(case: Case, peer: Peer, load: Path, samples: Samples, *, seconds: float) -> None:
    """A sample; longer where the machine gave the peer no time to answer anything."""
    model = EMBED_MODEL if case.path == EMBED else CHAT_MODEL
    while True:
        before_s, began_s = cpu_s(peer.pids), monotonic()
        told = json.loads(
            subprocess.run(
                [load, peer.address, str(case.callers), str(seconds)],
                input=case.request(model), capture_output=True, check=True,
            ).stdout
        )  # fmt: skip
        spent_s, took_s = cpu_s(peer.pids) - before_s, monotonic() - began_s
        units = told["events"] if case.per_event else told["requests"] * (case.n_chunks or 1)
        samples.errors += told["errors"]
        if units:
            break
        seconds *= 4
        assert seconds < LONGEST_S, f"{peer.name} answered nothing: {case.name}"
    samples.cpu_us.append(spent_s / units * 1e6)
    samples.per_s.append(units / took_s)
    samples.first_byte_us.append(told["first_byte_p50_us"])


def report(cases: Sequence[Case], table: Table) -> str:
    """A line per case: CPU of the relays, ratios to nginx, what each adds to the first byte."""
    lines = [
        f"{'case':28}{'nginx':>9}{'floor':>9}{'ours':>9}  us CPU{'floor':>8}{'ours':>7}{'limit':>7}"
        f"{'first byte, us added: nginx':>30}{'floor':>8}{'ours':>8}{'errors':>8}"
    ]
    for case in cases:
        line = f"{case.name:28}"
        if case.asks_daemon_only or (case.name, NGINX) not in table:
            cpu_us = median(table[case.name, OURS].cpu_us)
            line += f"{'-':>9}{'-':>9}{cpu_us:9.1f}{'':>8}{'-':>8}{'-':>7}{'-':>7}{'-':>30}"
            line += f"{'-':>8}{'-':>8}"
        else:
            other, least, ours = (table[case.name, name] for name in (NGINX, FLOOR, OURS))
            base_us = median(table[case.name, DIRECT].first_byte_us)
            cpu_us = median(other.cpu_us)
            line += "".join(f"{median(peer.cpu_us):9.1f}" for peer in (other, least, ours))
            line += f"{'':8}{median(least.cpu_us) / cpu_us:8.2f}{median(ours.cpu_us) / cpu_us:7.2f}"
            line += f"{case.limit:7.1f}{median(other.first_byte_us) - base_us:30.0f}"
            line += "".join(
                f"{median(peer.first_byte_us) - base_us:8.0f}" for peer in (least, ours)
            )
        errors = sum(samples.errors for (name, _), samples in table.items() if name == case.name)
        lines.append(f"{line}{errors:8}")
    return "\n".join(lines)


def crowded(daemon: StartedDaemon, load: Path) -> str:
    """Three lines: memory of idle streams, callers who leave at once, races that were lost."""
    found = crowd(daemon, CROWD_MODELS)
    n_requests, n_errors = lost_races(daemon, load, EMBED_MODEL)
    return (
        f"{STREAMS} idle streams: {found.bytes_per_stream / 1000:.1f} kB each\n"
        f"{STREAMS} callers leave at once: all slots free after {found.freed_s:.2f} s\n"
        f"{n_requests} POSTs while the child hangs up at random: {n_errors} errors"
    )


if __name__ == "__main__":
    main()
