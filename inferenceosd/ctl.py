"""`inferenceosctl`: questions and orders to a running daemon, over its Unix socket."""

import io
import os
import sys
import time
from contextlib import suppress
from typing import Any

import click

from inferenceosd import __version__
from inferenceosd.commands import report
from inferenceosd.commands.admin_client import WORK_S, Door, fail
from inferenceosd.commands.arguments import Name, as_json_option
from inferenceosd.commands.create import create
from inferenceosd.commands.engines import engines
from inferenceosd.commands.keys import key
from inferenceosd.commands.machine import doctor, plan, profile
from inferenceosd.commands.moves import migrate, yield_memory
from inferenceosd.commands.records import events, forget, logs
from inferenceosd.commands.run import run
from inferenceosd.commands.shelf import cp, list_models, pull, rm, show
from inferenceosd.logs import quiet_logging
from inferenceosd.platform_folders import runtime_folder, state_folder, this_platform
from inferenceosd.settings.config import Options, read_config
from inferenceosd.settings.error import ConfigError
from proxy.admin.models import ModelsReport
from proxy.admin.orders import LoadReport, ReloadReport, RetryReport, UnloadReport
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


@click.command()
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


@click.command()
@as_json_option
@click.pass_obj
def models(door: Door, as_json: bool) -> None:
    """List the models on offer, and why other files are not."""
    door.get("/models", ModelsReport).show(report.models_text, as_json=as_json)


@click.command()
@click.argument("model", type=Name())
@click.pass_obj
def load(door: Door, model: str) -> None:
    """Load MODEL and wait until it is ready."""
    answer = door.post("/load", LoadReport, body={"model": model}, within_s=LOAD_S)
    answer.show(report.load_text, as_json=False)


@click.command()
@click.argument("model", type=Name())
@click.pass_obj
def unload(door: Door, model: str) -> None:
    """Unload MODEL once its running requests are done."""
    door.post("/unload", UnloadReport, body={"model": model}).show(
        report.unload_text, as_json=False
    )


@click.command()
@click.argument("model", type=Name())
@click.pass_obj
def retry(door: Door, model: str) -> None:
    """Forget that MODEL failed; its next request loads it at once.

    Without it, what failed of itself is tried again after fleet.restart_cooldown; what only a
    changed file or setting can mend is not.
    """
    door.post("/retry", RetryReport, body={"model": model}).show(report.retry_text, as_json=False)


@click.command()
@click.pass_obj
def reload(door: Door) -> None:
    """Apply the changed configuration; unchanged models go on.

    A wrong configuration changes nothing: its first mistake is printed, exit status 1.
    """
    door.post("/reload", ReloadReport, within_s=WORK_S).show(report.reload_text, as_json=False)


for command in (
    status,
    models,
    plan,
    profile,
    doctor,
    load,
    unload,
    retry,
    reload,
    logs,
    events,
    forget,
    key,
    engines,
    migrate,
    yield_memory,
    run,
    pull,
    create,
    rm,
    cp,
    list_models,
    show,
):
    main.add_command(command)
