"""`inferenceosctl pull`, `rm`, `cp`, `list` and `show`: models that come, go and are looked at."""

import sys
import time
from typing import TextIO

import click

from inferenceosd.commands.admin_client import WORK_S, Door, fail
from inferenceosd.commands.arguments import Name, as_json_option
from inferenceosd.commands.following import EXIT_INTERRUPTED
from inferenceosd.commands.progress import shown
from inferenceosd.commands.shelf_text import list_text, show_text
from planners.settings import MAX_NUMBER
from proxy.admin.models import ModelsReport
from proxy.admin.shelf import DoneReport, PullLine, ShowReport

COPY_S = 24 * 3600.0  # of a file to another disk, where the daemon knows how long it takes


@click.command()
@click.argument("model", type=Name())
@click.option(
    "--insecure", is_flag=True, help="Allow HTTP, for registries of this machine and network."
)
@click.option("--fit", "fits", is_flag=True, help="Choose the file of MODEL, hf.co/ORG/REPO.")
@click.option(
    "--context",
    type=click.IntRange(1, MAX_NUMBER),
    help="With --fit: tokens that one request must be able to use.  [default: 8192, or all it has]",
)
@click.option(
    "--hardware",
    type=click.File(encoding="utf-8"),
    help="With --fit: choose for the machine that `profile --record` wrote into this file.",
)
@click.option("--dry-run", is_flag=True, help="With --fit: show the choice, and pull nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --fit: print the choice as JSON.")
@click.pass_obj
def pull(
    door: Door,
    model: str,
    insecure: bool,
    fits: bool,
    context: int | None,
    hardware: TextIO | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Fetch MODEL from its registry, or what is missing of it.

    MODEL is named as in Ollama: smollm2:135m, hf.co/ORG/REPO:Q4_K_M, localhost:5000/library/tiny.
    Ctrl-C ends it, unless others wait for the same; what came is kept, and the next pull goes on.

    With --fit MODEL is a repository of Hugging Face, and the planner chooses among its files: the
    best quality that fits whole where memory is fastest, with the context; else the one that is
    predicted to be the fastest. It prints how each would run here, and pulls the first. Rows with ~
    are reckoned by size from another file's header; the choice itself never is.

    Exit status 1 where none fits.
    """
    if not fits:
        if context is not None or hardware is not None or dry_run or as_json:
            raise click.UsageError("--context, --hardware, --dry-run and --json go with --fit")
        fetch(door, model, insecure=insecure)
        return
    from inferenceosd.commands.fit import choose  # late: no other command needs the planner

    pick = choose(door, model, context=context, machine=hardware, as_json=as_json)
    if not dry_run:
        fetch(door, pick, insecure=insecure, is_aside=as_json)


def fetch(door: Door, model: str, *, insecure: bool = False, is_aside: bool = False) -> None:
    """Pull it, and show how far it is; ends the program where that fails.

    `is_aside`: on stderr alone, as stdout has something else to say.
    """
    told = door.told("/pull", PullLine, body={"model": model, "insecure": insecure})
    try:
        last = shown(told, is_aside=is_aside)
    except KeyboardInterrupt:
        click.echo("inferenceosctl: what came is kept; pull again to go on", err=True)
        sys.exit(EXIT_INTERRUPTED)
    if last.error:
        fail(last.error)
    if last.status != "success":
        fail("the pull broke off; pull again to go on")


@click.command()
@click.argument("models", metavar="MODEL...", type=Name(), nargs=-1, required=True)
@click.pass_obj
def rm(door: Door, models: tuple[str, ...]) -> None:
    """Delete each MODEL, and what no other needs of it.

    Only of the daemon's own store, where pulled, created and copied models are: other files and
    stores are not inferenceosd's to change.
    """
    for model in models:
        done = door.post("/delete", DoneReport, body={"model": model}, within_s=WORK_S)
        click.echo(f"{done.value.model} is deleted")


@click.command()
@click.argument("source", type=Name())
@click.argument("destination", type=Name())
@click.pass_obj
def cp(door: Door, source: str, destination: str) -> None:
    """Have SOURCE under the name DESTINATION too, in the daemon's own store."""
    asked = {"source": source, "destination": destination}
    done = door.post("/copy", DoneReport, body=asked, within_s=COPY_S)
    click.echo(f"{done.value.model} is there")


@click.command("list")
@as_json_option
@click.pass_obj
def list_models(door: Door, as_json: bool) -> None:
    """List the models on offer as `ollama list` does, newest first.

    `inferenceosctl models` tells more of each, and why other files are none.
    """
    now = time.time()
    answer = door.get("/models", ModelsReport)
    answer.show(lambda report: list_text(report, now=now), as_json=as_json)


@click.command()
@click.argument("model", type=Name())
@click.option("--modelfile", is_flag=True, help="Print its Modelfile alone.")
@as_json_option
@click.pass_obj
def show(door: Door, model: str, modelfile: bool, as_json: bool) -> None:
    """Show what MODEL is, where it lies, and how it is meant to be asked."""
    answer = door.post("/show", ShowReport, body={"model": model})
    if modelfile:
        click.echo(answer.value.modelfile.rstrip())
    else:
        answer.show(show_text, as_json=as_json)
