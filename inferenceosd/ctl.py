"""`inferenceosctl`: questions and orders to a running daemon, over its Unix socket."""

import io
import math
import os
import shutil
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

import click
import msgspec
from msgspec.structs import replace

from inferenceosd import __version__
from inferenceosd.commands import report
from inferenceosd.commands.admin_client import EXIT_FAILED, WORK_S, Door, Query, fail
from inferenceosd.commands.arguments import Duration, Name, as_json_option
from inferenceosd.commands.create import create
from inferenceosd.commands.engines import engines
from inferenceosd.commands.following import show_stream
from inferenceosd.commands.keys import key
from inferenceosd.commands.moves import migrate, yield_memory
from inferenceosd.commands.run import run
from inferenceosd.commands.shelf import cp, list_models, pull, rm, show
from inferenceosd.lean_imports import lean_imports
from inferenceosd.logs import quiet_logging
from inferenceosd.platform_folders import runtime_folder, state_folder, this_platform
from inferenceosd.settings.config import Options, read_config
from inferenceosd.settings.error import ConfigError
from planners.settings import MAX_NUMBER, MAX_SLOTS
from proxy.admin.models import ModelsReport
from proxy.admin.orders import ForgetReport, LoadReport, ReloadReport, RetryReport, UnloadReport
from proxy.admin.records import (
    DEFAULT_EVENTS,
    DEFAULT_LINES,
    MAX_EVENTS,
    MAX_LINES,
    EventsReport,
    Followed,
    LogReport,
)
from proxy.admin.status import StatusReport

LOAD_S = 24 * 3600.0  # it knows when a load has stalled; we only wait

EPILOG = """\
\b
Examples:
  inferenceosctl status                   what runs, where, how fast, until when
  inferenceosctl run smollm2 "why?"       one answer; without a prompt, a chat
  inferenceosctl pull smollm2:135m        fetch a model; list, show, cp and rm go with it
  inferenceosctl create mine -f Modelfile
  inferenceosctl plan qwen3 --context 32768
  inferenceosctl plan ./qwen3.gguf --hardware server.json
  inferenceosctl plan qwen3 gemma3        both at once, beside each other
  inferenceosctl events --model qwen3 --since 1h
  inferenceosctl status --json | jq .devices

The socket is admin.sock in the daemon's runtime folder, or admin.socket of the configuration
that inferenceosd itself would read here.

Exit status: 0, 1 where the daemon does not answer or says no, 2 for wrong usage.
"""


def _usual_door() -> Door:
    """Where a daemon started here would listen; a broken configuration does not keep us out."""
    try:
        return Door(read_config(Options()).admin_socket)
    except ConfigError as exc:
        platform = this_platform()
        state_dir = state_folder(os.environ, platform)
        run_dir = runtime_folder(os.environ, platform, state_dir=state_dir)
        return Door(os.path.join(run_dir, "admin.sock"), unread=str(exc))


class Program(click.Group):
    """The commands, and what may fail in all of them."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one; what cannot be printed as it is, is escaped. Does not return."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            with quiet_logging():
                return super().main(*args, **kwargs)
        except OSError as exc:
            # What is left in the buffer would fail once more, with a traceback, at the very end.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            fail(f"cannot write the answer: {exc.strerror or exc}")


def _terminal_columns() -> int | None:
    """Of the terminal that the answer goes to; None where it goes elsewhere, as to grep."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@click.group(cls=Program, epilog=EPILOG)
@click.option(
    "--socket",
    "socket_path",
    metavar="PATH",
    envvar="INFERENCEOSD_ADMIN_SOCKET",
    help="The daemon's admin socket. [$INFERENCEOSD_ADMIN_SOCKET]",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context, socket_path: str | None) -> None:
    """Ask a running inferenceosd what it does, and tell it what to do."""
    context.obj = Door(socket_path) if socket_path else _usual_door()


@main.command()
@as_json_option
@click.pass_obj
def status(door: Door, as_json: bool) -> None:
    """Show models in memory, devices, and engines.

    Per model: its process, layers per device, context × slots, requests, tokens/s of the last one,
    and how long it stays.

    Its memory per device: buffers PREDICTED and MEASURED; RESERVED for what no buffer shows, a
    driver's context and a full prompt cache among it; TAKEN of that as it was loaded.

    Its speed: predicted, and MEASURED, the median of requests that had it to themselves, from
    three on; how long this LOAD took, and what is USUAL here.

    Per device: total, free, and what is ours.
    """
    now = time.time()
    answer = door.get("/status", StatusReport)
    answer.show(lambda value: report.status_text(value, now=now), as_json=as_json)


@main.command()
@as_json_option
@click.pass_obj
def models(door: Door, as_json: bool) -> None:
    """List the models on offer, and why other files are not."""
    door.get("/models", ModelsReport).show(report.models_text, as_json=as_json)


@main.command()
@click.argument("models", metavar="MODEL...", type=Name(), nargs=-1, required=True)
@click.option("--context", type=click.IntRange(1, MAX_NUMBER), help="Tokens one request may use.")
@click.option("--parallel", type=click.IntRange(1, MAX_SLOTS), help="Requests served at once.")
@click.option(
    "--hardware",
    type=click.File(encoding="utf-8"),
    help="Plan for the machine that `profile --record` wrote into this file.",
)
@as_json_option
@click.pass_obj
def plan(
    door: Door,
    models: tuple[str, ...],
    context: int | None,
    parallel: int | None,
    hardware: TextIO | None,
    as_json: bool,
) -> None:
    """Show how MODEL would be launched now, and why; loads nothing.

    Of several, how they would be launched beside each other: memory, speed, what each concession
    cost and what is left alone by model, then the sum by device, and which of them a [[group]]
    keeps apart.

    Memory by device with what is free and what is left, the layers' places, predicted speed, the
    flags, each concession, each device left alone and why, and what one more GiB would bring.
    Models that nobody uses are reckoned to be stopped for one, as a launch would, and named.

    MODEL is a name, or the path of a GGUF file, as ./x and /x always are; files are planned here,
    without the daemon.

    Exit status 1 where one does not fit.
    """
    with lean_imports():  # late, here and below: half of our modules, which no other command needs
        from inferenceosd.commands.offline import is_path
        from inferenceosd.commands.plan_question import PlanQuestion, recorded_machine

    machine = None if hardware is None else recorded_machine(hardware)
    by_path = {is_path(model) for model in models}
    if len(by_path) > 1:
        fail("name models or files, not both: files are planned here, models by the daemon")
    asked = PlanQuestion(models, context, parallel, machine)
    ask = asked.of_files if by_path == {True} else partial(asked.of_daemon, door)
    if not ask(as_json=as_json):
        sys.exit(EXIT_FAILED)


@main.command()
@click.option(
    "--record",
    type=click.Path(),
    metavar="FILE",
    help="Write it as JSON for `plan --hardware`.",
)
@as_json_option
@click.pass_obj
def profile(door: Door, record: str | None, as_json: bool) -> None:
    """Show the hardware: memory, devices and their links, disks.

    Asks the daemon; without one it looks for itself, which takes some seconds more.
    """
    with lean_imports():
        from inferenceosd.commands.offline import model_dirs_here, profile_here
        from inferenceosd.commands.plan_question import found_here
        from inferenceosd.commands.profile_text import profile_text
        from inferenceosd.commands.recording import with_paths
        from planners.profile_json import decode_profile

    if door.is_open():
        text = door.get("/profile", msgspec.Raw).sent.decode()
        dirs = door.get("/models", ModelsReport).value.dirs
    else:
        text, dirs = found_here(profile_here), found_here(model_dirs_here)
    recorded = found_here(lambda: decode_profile(text))
    if record is not None:
        _write(record, text)
    shown = replace(recorded, hardware=with_paths(recorded.hardware, dirs=dirs))
    click.echo(text.rstrip() if as_json else profile_text(shown))


def _write(path: str, text: str) -> None:
    """Make it the file's text; "-" is standard output. Ends the program where that is refused."""
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        fail(f"{path} cannot be written: {exc.strerror}")


@main.command()
@as_json_option
@click.pass_obj
def doctor(door: Door, as_json: bool) -> None:
    """Check what is often wrong and say how to mend it.

    Settings, port, engines, drivers, libraries, device files, devices, control groups, model
    files, groups, disks, sleep. Works with and without a running daemon; with one, by its eyes.

    Exit status 1 where something failed.
    """
    with lean_imports():
        from inferenceosd.commands.checkup import Told, facts_now
        from inferenceosd.commands.doctor import checks, has_failed
        from inferenceosd.commands.doctor_text import doctor_text
        from inferenceosd.commands.plan_question import found_here
        from inferenceosd.commands.recording import with_paths
        from planners.profile_json import decode_profile

    told = None
    if door.is_open():
        status = door.get("/status", StatusReport).value
        text = door.get("/profile", msgspec.Raw).sent.decode()
        offered = door.get("/models", ModelsReport).value
        names = tuple(name for each in offered.models for name in (each.model, *each.aliases))
        hardware = found_here(lambda: decode_profile(text)).hardware
        told = Told(status, with_paths(hardware, dirs=offered.dirs), names)
    found = checks(facts_now(told, socket_path=door.socket_path))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"checks": found}), indent=2))
    else:
        click.echo(doctor_text(found))
    if has_failed(found):
        sys.exit(EXIT_FAILED)


@main.command()
@click.argument("model", type=Name())
@click.pass_obj
def load(door: Door, model: str) -> None:
    """Load MODEL and wait until it is ready."""
    answer = door.post("/load", LoadReport, body={"model": model}, within_s=LOAD_S)
    answer.show(report.load_text, as_json=False)


@main.command()
@click.argument("model", type=Name())
@click.pass_obj
def unload(door: Door, model: str) -> None:
    """Unload MODEL once its running requests are done."""
    door.post("/unload", UnloadReport, body={"model": model}).show(
        report.unload_text, as_json=False
    )


@main.command()
@click.argument("model", type=Name())
@click.pass_obj
def retry(door: Door, model: str) -> None:
    """Forget that MODEL failed; its next request loads it at once.

    Without it, what failed of itself is tried again after fleet.restart_cooldown; what only a
    changed file or setting can mend is not.
    """
    door.post("/retry", RetryReport, body={"model": model}).show(report.retry_text, as_json=False)


@main.command()
@click.pass_obj
def reload(door: Door) -> None:
    """Apply the changed configuration; unchanged models go on.

    A wrong configuration changes nothing: its first mistake is printed, exit status 1.
    """
    door.post("/reload", ReloadReport, within_s=WORK_S).show(report.reload_text, as_json=False)


@main.command()
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


@main.command()
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


@main.command()
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


main.add_command(key)
main.add_command(engines)
main.add_command(migrate)
main.add_command(yield_memory)
main.add_command(run)
main.add_command(pull)
main.add_command(create)
main.add_command(rm)
main.add_command(cp)
main.add_command(list_models)
main.add_command(show)
