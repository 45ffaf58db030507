"""A stream of the daemon's, printed as it comes, until it stops or nobody reads on."""

import select
import sys
from collections.abc import Callable, Iterable, Iterator

import click

from inferenceosd.commands.admin_client import EXIT_FAILED
from proxy.admin.records import Followed

EXIT_INTERRUPTED = 130  # as a shell tells of SIGINT


def show_stream(told: Iterable[Followed], *, lines: Callable[[Followed], Iterator[str]]) -> None:
    """Print what `lines` makes of each value; Ctrl-C and a reader who left end it quietly."""
    try:
        for each in told:
            if each.skipped:
                note = f"inferenceosctl: {each.skipped} lines are missing: they came too fast"
                click.echo(note, err=True)
            for line in lines(each):
                click.echo(line)
            if each.is_last:
                click.echo("inferenceosctl: the daemon stopped", err=True)
                return
            if _nobody_reads():  # found out with a sign of life: the next line may be hours away
                sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _nobody_reads() -> bool:
    """True where stdout is a pipe whose other end is closed."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file, as in tests
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
