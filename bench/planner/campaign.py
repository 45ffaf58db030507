"""`python -m bench.planner.campaign --seed S --n N`: launches nobody tuned for, judged at once.

Random models of every kind that is drawn and random flags, each launched with the real engine and
compared device by device, the host too. What misses the bar is told with all its numbers.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.planner.engine import live_engine
from bench.planner.measure import measured_rows
from bench.planner.rows import Left, Row, read_rows
from bench.planner.scores import Error, all_errors, report
from bench.planner.shapes import ARCHITECTURES, OTHERS
from planners.hardware import HOST

BAR_SHARE = 0.01
ROUNDING_BYTES = 25_000  # a log's sizes are rounded to 0.01 MiB, and up to four of them add up


def main() -> None:
    """Parse, launch, judge, print."""
    parser = argparse.ArgumentParser(prog="bench.planner.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of all choices (1)")
    parser.add_argument("--n", type=int, default=164, help="launches (164: four of each kind)")
    parser.add_argument("--launches", type=int, default=4, help="launches of one model (4)")
    parser.add_argument("--engine", type=Path, help="a llama-server (the quickstart's)")
    parser.add_argument("--only", nargs="*", default=(*ARCHITECTURES, *OTHERS), help="kinds")
    parser.add_argument("--out", type=Path, help="a table for the rows, to be judged again")
    asked = parser.parse_args()
    engine = live_engine()
    if asked.engine is not None:
        engine = replace(engine, path=str(asked.engine.resolve()))
    measured = list(
        measured_rows(
            engine, seed=asked.seed, rows=asked.n, launches=asked.launches, kinds=asked.only
        )
    )
    if asked.out is not None:
        asked.out.write_text("".join(json.dumps(row) + "\n" for row in measured))
    print(f"seed {asked.seed}: {told(measured)}")


def told(measured: Iterable[dict[str, Any]]) -> str:
    """How the predictions of these launches held."""
    read = list(read_rows(map(json.dumps, measured)))
    rows = [row for row in read if isinstance(row, Row)]
    found = [error for row in rows for error in all_errors(row)]
    lines = [f"{len(rows)} of {len(read)} launches, {len(found)} devices"]
    lines += [f"  left out: {row.name}: {row.reason}" for row in read if isinstance(row, Left)]
    missed = misses(found)
    lines += [f"  missed: {_spelled(error)}" for error in missed]
    others = [error for error in found if not _is_beside(error)]
    lines += [report(others), f"beyond {BAR_SHARE:.0%} and rounding: {len(missed)}"]
    return "\n".join(lines)


def misses(found: Iterable[Error]) -> Sequence[Error]:
    """Devices off by more than the bar and what rounding explains, or with inexact parts."""
    return [
        error
        for error in found
        if not error.are_parts_exact
        or (
            abs(error.share) > BAR_SHARE
            and abs(error.predicted_bytes - error.actual_bytes) > ROUNDING_BYTES
        )
    ]


def _is_beside(error: Error) -> bool:
    """Whether it is the host beside devices, for which the report has no line."""
    return error.device == HOST and bool(error.row.shape.split)


def _spelled(error: Error) -> str:
    actual = next(part for device, part in error.row.actual.items() if device == error.device)
    return (
        f"{error.share:+.2%} on {error.device}, {error.predicted_bytes} for {error.actual_bytes} "
        f"({actual}): {error.row.name}"
    )


if __name__ == "__main__":
    main()
