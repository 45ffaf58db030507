"""Work on the daemon's store as it goes on: bars on a terminal, lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from proxy.admin.shelf import PullLine

Tell = Callable[[PullLine], None]


def shown(told: Iterator[PullLine], *, is_aside: bool = False) -> PullLine:
    """Show each step; its last line, an error or "success" where it did not break off."""
    last = PullLine()
    with display(is_aside=is_aside) as tell:
        for last in told:
            tell(last)
    return last


@contextmanager
def display(*, is_aside: bool = False) -> Iterator[Tell]:
    """What to tell each step; a file is known by its digest. `is_aside`: on stderr alone."""
    shows = _bars if sys.stderr.isatty() else _lines
    with shows(is_aside=is_aside) as tell:
        yield tell


@contextmanager
def _lines(*, is_aside: bool) -> Iterator[Tell]:
    """Each step once, for a log."""
    before = ""

    def tell(line: PullLine) -> None:
        nonlocal before
        if line.status and line.status != before:
            click.echo(line.status, err=is_aside)
            before = line.status

    yield tell


@contextmanager
def _bars(*, is_aside: bool) -> Iterator[Tell]:
    """A bar for each file, and "success"."""
    # Late: a library of colours that no other command needs.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    tasks: dict[str, TaskID] = {}
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(),
        TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    bars = Progress(*columns, console=Console(stderr=True))
    is_done = False

    def tell(line: PullLine) -> None:
        nonlocal is_done
        is_done = line.status == "success"
        if line.digest and line.digest not in tasks:
            tasks[line.digest] = bars.add_task(line.status, total=line.total)
        if line.digest:
            bars.update(tasks[line.digest], completed=line.completed)

    with bars:
        yield tell
    if is_done:
        click.echo("success", err=is_aside)
