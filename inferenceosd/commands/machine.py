"""`inferenceosctl plan`, `profile` and `doctor`: this machine, and how models would run on it.

They answer without a daemon too, for files and for the machine as found here.
"""

import sys
from functools import partial
from typing import TextIO

import click
import msgspec
from msgspec.structs import replace

from inferenceosd.commands.admin_client import EXIT_FAILED, Door, fail
from inferenceosd.commands.arguments import Name, as_json_option
from inferenceosd.lean_imports import lean_imports
from planners.settings import MAX_NUMBER, MAX_SLOTS
from proxy.admin.models import ModelsReport
from proxy.admin.status import StatusReport


@click.command()
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


@click.command()
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


@click.command()
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
