"""`inferenceosctl logs`, `events` and `forget`: what was written down, and what it taught."""

import math
import shutil
import sys
from functools import partial

import click

from inferenceosd.commands import report
from inferenceosd.commands.admin_client import Door, Query
from inferenceosd.commands.arguments import Duration, Name, as_json_option
from inferenceosd.commands.following import show_stream
from inferenceosd.lean_imports import lean_imports
from proxy.admin.orders import ForgetReport
from proxy.admin.records import (
    DEFAULT_EVENTS,
    DEFAULT_LINES,
    MAX_EVENTS,
    MAX_LINES,
    EventsReport,
    Followed,
    LogReport,
)


def _terminal_columns() -> int | None:
    """Of the terminal that the answer goes to; None where it goes elsewhere, as to grep."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@click.command()
@click.argument("model", type=Name())
@click.option(
    "--tail",
    "-n",
    type=click.IntRange(1, MAX_LINES),
    default=DEFAULT_LINES,
    show_default=True,
    help="Lines.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on with each line as it is written.")
@click.pass_obj
def logs(door: Door, model: str, tail: int, follow: bool) -> None:
    """Print the last lines that the llama-server of MODEL wrote.

    Of the one that runs or, from the state folder, of the last one that did, which works without a
    daemon too. --follow goes on over launches until Ctrl-C, or until the daemon stops, which is
    exit status 0; 1 where it broke off.
    """
    query: Query = {"model": model, "tail": tail}
    if follow:
        show_stream(door.follow("/logs", Followed, query=query), lines=report.followed_log)
        return
    if door.is_silent():
        with lean_imports():
            from inferenceosd.commands.offline import log_here
            from inferenceosd.commands.plan_question import found_here

        click.echo(report.log_text(found_here(partial(log_here, model, tail=tail))))
        return
    door.get("/logs", LogReport, query=query).show(report.log_text, as_json=False)


@click.command()
@click.option("--model", type=Name(), help="Only of this model.")
@click.option("--since", type=Duration(), metavar="SPAN", help="Only of the last 1h, 30m, ...")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_EVENTS),
    default=DEFAULT_EVENTS,
    show_default=True,
    help="At most.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on with each event as it happens.")
@as_json_option
@click.pass_obj
def events(
    door: Door,
    model: str | None,
    since: float | None,
    limit: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Print what happened and why: loads, evictions, crashes.

    Also of a model that is no longer on offer. Long reasons are folded on a terminal; elsewhere an
    event is a line. --follow goes on until Ctrl-C, or until the daemon stops, which is exit status
    0; 1 where it broke off. With --json it prints one event a line.
    """
    columns = _terminal_columns()
    query: dict[str, str | int] = {"limit": limit}
    if model is not None:
        query["model"] = model
    if since is not None:
        query["since_s"] = math.ceil(since)
    if follow:
        in_lines = partial(report.followed_event, columns=columns)
        lines = report.followed_event_json if as_json else in_lines
        show_stream(door.follow("/events", Followed, query=query), lines=lines)
        return
    answer = door.get("/events", EventsReport, query=query)
    answer.show(partial(report.events_text, columns=columns), as_json=as_json)


@click.command()
@click.argument("model", type=Name(), required=False)
@click.option(
    "--device", type=Name(), metavar="NAME", help="What was learned of launches on this device."
)
@click.option("--all", "everything", is_flag=True, help="All of it.")
@as_json_option
@click.pass_obj
def forget(
    door: Door, model: str | None, device: str | None, everything: bool, as_json: bool
) -> None:
    """Forget what launches and requests taught.

    Of MODEL (the context that callers made it grow to is of that, too), of a device, or all.

    The next plan goes by data sheets and defaults again. NAME is a device as status shows it, the
    engine's name for it, or host.
    """
    if sum((model is not None, device is not None, everything)) != 1:
        raise click.UsageError("say what to forget: MODEL, --device NAME or --all")
    asked = {"model": model, "device": device, "all": everything}
    answer = door.post("/forget", ForgetReport, body=asked)
    answer.show(report.forget_text, as_json=as_json)
