"""`make bench-router`: what the daemon adds to a llama-server against what its own router adds.

The same engine and model behind both, asked for something that costs the model nothing
(/tokenize): alternately, in a seeded order, one caller and then sixteen.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import httpx
import psutil

from bench.overhead import cpu_s
from bench.relay.built import program
from bench.relay.cases import request
from bench.relay.cores import children, part
from bench.relay.peers import Peer
from scripts.started_daemon import started_daemon
from supervisor.engines.quickstart import packaged_engine, quickstart_model_dir

DIRECT, ROUTER, OURS = PEERS = "direct", "router", "inferenceosd"
TOKENIZE = "/tokenize"
MEMBERS = {"content": "How long is this?"}
CALLERS = (1, 16)
LOAD_S = 60.0
LOOK_S = 0.1


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench.relay.router", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="rounds (9)")
    parser.add_argument("--seconds", type=float, default=1.0, help="per peer and crowd (1)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (1)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ios-bench-") as name:
        print(measured(Path(name), asked.rounds, asked.seconds, random.Random(asked.seed)))


def measured(folder: Path, rounds: int, seconds: float, chance: random.Random) -> str:
    """The table of a run."""
    load = program("load", folder)
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    with ExitStack() as held:
        direct, ours, model = held.enter_context(_daemon(folder / "d"))
        router = held.enter_context(_router(folder / "models", model))
        relays = (*router.pids, *ours.pids)
        part(relays, [pid for relay in relays for pid in children(relay)])
        turns = [(peer, n) for peer in (direct, router, ours) for n in CALLERS]
        for _ in range(rounds):
            for peer, n in chance.sample(turns, len(turns)):
                wire = request(TOKENIZE, model, MEMBERS)
                before_s = cpu_s(peer.pids)
                argv = [str(load), peer.address, str(n), str(seconds)]
                run = subprocess.run(argv, input=wire, capture_output=True, check=True)
                told = json.loads(run.stdout)
                assert told["errors"] == 0 < told["requests"], (peer.name, told)
                cpu_us = (cpu_s(peer.pids) - before_s) / told["requests"] * 1e6
                sample = (cpu_us, told["first_byte_p50_us"], told["requests"] / seconds)
                found.setdefault((peer.name, n), []).append(sample)
    return _report(found)


def _report(found: dict[tuple[str, int], list[tuple[float, float, float]]]) -> str:
    lines = [f"{'callers':>7}  {'':24}{'router':>10}{'ours':>10}{'ratio':>8}  goal"]
    for n in CALLERS:
        cpu, first, rate = (
            {name: median(sample[i] for sample in found[name, n]) for name in PEERS}
            for i in range(3)
        )
        added = {name: first[name] - first[DIRECT] for name in (ROUTER, OURS)}
        rows = (
            ("CPU us a request", cpu[ROUTER], cpu[OURS], "at most 2/3"),
            ("first byte, us added", added[ROUTER], added[OURS], "at most 1/3"),
            ("requests/s", rate[ROUTER], rate[OURS], "at least 1.5"),
        )
        lines += [
            f"{n:7}  {name:24}{router:10.0f}{ours:10.0f}{ours / router:8.2f}  {goal}"
            for name, router, ours, goal in rows
        ]
    return "\n".join(lines)


@contextmanager
def _daemon(folder: Path) -> Iterator[tuple[Peer, Peer, str]]:
    """The daemon's child, the daemon, and the model's name."""
    folder.mkdir()
    model_dir = quickstart_model_dir()
    assert model_dir is not None, "make installs the quickstart model first"
    with started_daemon(folder, model_dirs=[model_dir]) as daemon:
        daemon.wait_for_engines()
        told = httpx.get(f"{daemon.base}/v1/models", trust_env=False).raise_for_status().json()
        model: str = told["data"][0]["id"]
        assert daemon.ctl("load", model).returncode == 0
        (instance,) = daemon.status()["instances"]
        argv = psutil.Process(instance["pid"]).cmdline()
        child = Peer(DIRECT, argv[argv.index("--host") + 1])
        yield child, Peer(OURS, daemon.listen.rpartition(":")[2], (daemon.process.pid,)), model


@contextmanager
def _router(folder: Path, model: str) -> Iterator[Peer]:
    """llama-server as its own router, with the model loaded."""
    folder.mkdir()
    source = next(Path(quickstart_model_dir() or "").glob("*.gguf"))
    (folder / f"{model}.gguf").symlink_to(source)
    engine = packaged_engine()
    assert engine is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    listen = ("--host", "127.0.0.1", "--port", str(port))
    argv = [str(engine.path), "--models-dir", str(folder), *listen, "-t", "1"]
    env = {**os.environ, **dict(engine.env)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
    try:
        _wait_until_it_answers(port, model)
        yield Peer(ROUTER, str(port), (process.pid,))
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_answers(port: int, model: str) -> None:
    until_s = time.monotonic() + LOAD_S
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        while True:
            try:
                if client.post(TOKENIZE, json={"model": model, **MEMBERS}).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < until_s, "the router did not answer"
            time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
