"""`make bench`: starts a daemon with the quickstart model and prints what it adds to its child."""

import argparse
import tempfile
from pathlib import Path

import httpx
import psutil

from bench.overhead import Samples, Side, interleaved, report
from bench.wire import Wire
from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.quickstart import quickstart_model_dir


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="rounds, each side once (60)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per streamed answer (64)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of sides (1)")
    asked = parser.parse_args()
    print(measured(rounds=asked.rounds, n_tokens=asked.tokens, seed=asked.seed))


def measured(*, rounds: int, n_tokens: int, seed: int) -> str:
    """The table of a run in a temporary folder."""
    model_dir = quickstart_model_dir()
    assert model_dir is not None, "make installs the quickstart model first"
    with (
        tempfile.TemporaryDirectory(prefix="inferenceosd-bench-") as folder,
        started_daemon(Path(folder), model_dirs=[model_dir]) as daemon,
    ):
        daemon.wait_for_engines()
        models = httpx.get(f"{daemon.base}/v1/models", trust_env=False).raise_for_status()
        model = models.json()["data"][0]["id"]
        assert daemon.ctl("load", model).returncode == 0
        sides = _sides(daemon)
        interleaved(*sides, model=model, rounds=rounds, n_tokens=n_tokens, seed=seed)
    return report(*(side.samples for side in sides))


def _sides(daemon: StartedDaemon) -> tuple[Side, Side, Side]:
    """The daemon, its child, and the child again."""
    (instance,) = daemon.status()["instances"]
    child: int = instance["pid"]
    argv = psutil.Process(child).cmdline()
    socket = argv[argv.index("--host") + 1]
    return (
        Side(Wire(daemon.listen), (daemon.process.pid, child), Samples()),
        Side(Wire(socket), (child,), Samples()),
        Side(Wire(socket), (child,), Samples()),
    )


if __name__ == "__main__":
    main()
