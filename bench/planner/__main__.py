"""`make bench-planner`: accuracy of the plans' bytes over a table of launches, and live."""

import argparse
import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from bench.planner.live import Live, handful
from bench.planner.rows import ODD, Left, Row, read_rows
from bench.planner.scores import HEAD, Error, errors, line, report
from planners.graph.reservation import forget
from planners.layout.dry_runs import PreflightFailed

TABLE = Path(__file__).parents[1] / "data" / "planning_actuals.jsonl"
SHAPES = TABLE.with_name("planning_shapes.jsonl")
OTHERS = TABLE.with_name("planning_others.jsonl")
TWINS = TABLE.with_name("planning_twins.jsonl")
MENDED = TABLE.with_name("planning_mended.jsonl")
STRANGERS = TABLE.with_name("planning_strangers.jsonl")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="bench-planner", description=__doc__)
    rows = os.environ.get("ROWS")
    parser.add_argument(
        "--rows", type=Path, nargs="*",
        default=[Path(rows)] if rows else [TABLE, SHAPES, OTHERS, TWINS, MENDED, STRANGERS],
        help="tables of launches (those in bench/data)",
    )  # fmt: skip
    parser.add_argument("--live", type=int, default=5, help="models loaded live (5; 0 for none)")
    parser.add_argument("--real", type=int, default=2, help="of real models' shapes, too (2)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of live launches (1)")
    asked = parser.parse_args()
    # Each dry run is logged as it ends, which would cut the tables in two.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for table in asked.rows:
        print(over_table(table))
    if asked.live or asked.real:
        print(over_live(models=asked.live, real=asked.real, seed=asked.seed))


def over_table(path: Path) -> str:
    """The accuracy of the closed form over one table, and the time that it took."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        read = list(read_rows(lines))
    rows = [row for row in read if isinstance(row, Row)]
    left = [row for row in read if isinstance(row, Left)]
    found: list[Error] = []
    times: list[float] = []
    started = time.perf_counter()
    for row in rows:
        forget()
        before = time.perf_counter()
        try:
            found += list(errors(row))
        except ODD as exc:
            left.append(Left(row.name, f"odd row: {type(exc).__name__}: {exc}"))
        times.append(time.perf_counter() - before)
    spent_s = time.perf_counter() - started
    return "\n".join((
        f"closed form, {path.name}: {len(read) - len(left)} of {len(read)} rows",
        *(f"  left out: {row.name}: {row.reason}" for row in left),
        report(found),
        _timing(times, spent_s),
    ))  # fmt: skip


def over_live(*, models: int, real: int, seed: int) -> str:
    """The accuracy of both predictions over a seeded handful of launches on this machine."""
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        found = asyncio.run(handful(seed=seed, models=models, real=real, folder=Path(folder)))
    lines = [f"live launches, seed {seed}: processor, software Vulkan device, loopback servers"]
    lines += [f"  {launch.name}: {_told(launch)}" for launch in found]
    closed = [error for launch in found for error in launch.judged(launch.predicted)]
    dry = [
        error
        for launch in found
        if not isinstance(launch.dry, PreflightFailed)
        for error in launch.judged(launch.dry)
    ]
    failed = [launch.dry for launch in found if isinstance(launch.dry, PreflightFailed)]
    lines += [
        f"closed form, live: {len(closed)} devices",
        report(closed),
        f"preflight, live (over several devices the closed form): {len(dry)} devices",
        report(dry),
        *_over_several(found),
    ]
    lines += [f"preflight failed: {failure.reason}" for failure in failed]
    times = sorted(launch.dry_s for launch in found if launch.dry_s is not None)
    if times:
        lines.append(f"one dry run: median {times[len(times) // 2]:.2f} s, most {times[-1]:.2f} s")
    return "\n".join(lines)


def _over_several(found: Sequence[Live]) -> Iterator[str]:
    """Both predictions where a plan does not go by the dry run: why it does not."""
    several = [launch for launch in found if len(launch.shape.split) > 1]
    closed = [error for launch in several for error in launch.judged(launch.predicted)]
    dry = [
        error
        for launch in several
        if not isinstance(launch.dry_anyway, PreflightFailed)
        for error in launch.judged(launch.dry_anyway)
    ]
    if closed and dry:
        yield f"several devices: closed form / preflight\n{HEAD}"
        yield line("  closed form", closed)
        yield line("  preflight", dry)


def _told(launch: Live) -> str:
    if launch.died:
        return f"the engine did not load it: {launch.died.splitlines()[-1][:100]}"
    closed = ", ".join(f"{share:+.2%}" for share in launch.errors(launch.predicted))
    dry = ", ".join(f"{share:+.2%}" for share in launch.dry_errors) or "failed"
    return f"closed form {closed}; preflight {dry}"


def _timing(times_s: Sequence[float], spent_s: float) -> str:
    if not times_s:
        return ""
    middle = sorted(times_s)[len(times_s) // 2]
    return (
        f"prediction of one launch: median {middle * 1e3:.1f} ms, "
        f"most {max(times_s) * 1e3:.1f} ms ({spent_s:.1f} s in all)"
    )


if __name__ == "__main__":
    main()
