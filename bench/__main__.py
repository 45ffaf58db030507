"""`make bench`: starts a daemon with the quickstart model and prints what it adds to its child."""

import argparse

from bench.overhead import Samples, Side, interleaved, report
from bench.quickstart import loaded, quickstart_daemon
from bench.wire import Wire
from scripts.started_daemon import StartedDaemon


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
    with quickstart_daemon() as (daemon, model):
        sides = _sides(daemon, model)
        interleaved(*sides, model=model, rounds=rounds, n_tokens=n_tokens, seed=seed)
    return report(*(side.samples for side in sides))


def _sides(daemon: StartedDaemon, model: str) -> tuple[Side, Side, Side]:
    """The daemon, its child, and the child again."""
    child, socket = loaded(daemon, model)
    return (
        Side(Wire(daemon.listen), (daemon.process.pid, child), Samples()),
        Side(Wire(socket), (child,), Samples()),
        Side(Wire(socket), (child,), Samples()),
    )


if __name__ == "__main__":
    main()
