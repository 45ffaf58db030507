"""`inferenceosctl create`: a model of one's own, by a Modelfile."""

import sys

import click

from inferenceosd.commands.admin_client import Door, fail
from inferenceosd.commands.arguments import Name
from inferenceosd.commands.client_port import Refused, client_port, key_option
from inferenceosd.commands.following import EXIT_INTERRUPTED
from inferenceosd.commands.progress import display
from inferenceosd.lean_imports import lean_imports


@click.command()
@click.argument("model", type=Name())
@click.option(
    "--file",
    "-f",
    "path",
    metavar="FILE",
    default="Modelfile",
    show_default=True,
    help='The Modelfile; "-" is standard input.',
)
@key_option
@click.pass_obj
def create(door: Door, model: str, path: str, key: str | None) -> None:
    """Make MODEL by a Modelfile, in the daemon's own store.

    Its commands: FROM, PARAMETER, TEMPLATE, SYSTEM, ADAPTER, MESSAGE, LICENSE, RENDERER, PARSER,
    REQUIRES. FROM names a model, which is pulled where it is not there, or a GGUF file, which is
    uploaded; a second FROM, its projector. Paths are relative to the Modelfile.

    It is asked on the port of clients, so where there are API keys it needs one, of scope manage.
    """
    with lean_imports():
        from inferenceosd.commands.creation import BadSource, read_order, send

    try:
        order = read_order(path)
    except BadSource as exc:
        fail(str(exc))
    for name in order.dropped:
        click.echo(f"inferenceosctl: {name} is no parameter any more: left out", err=True)
    try:
        with client_port(door, key) as port, display() as tell:
            last = send(port, model, order, tell=tell)
    except (BadSource, Refused) as exc:
        fail(str(exc))
    except KeyboardInterrupt:
        click.echo("inferenceosctl: no model is made", err=True)
        sys.exit(EXIT_INTERRUPTED)
    if last.error:
        fail(last.error)
    if last.status != "success":
        fail("it broke off; no model is made")
