"""A chat at the terminal: what was said is kept here, and told again with each question."""

from importlib.util import find_spec

import click
from msgspec.structs import replace

from inferenceosd.commands.client_port import ClientPort, Refused
from inferenceosd.commands.run_answer import Asking, Printed, answer, told
from inferenceosd.commands.run_lines import (
    HELP,
    Meant,
    Order,
    Say,
    SetSystem,
    Unknown,
    is_open,
    meant,
)
from planners.recipe import Message
from supervisor.printable import printable

PROMPT, MORE = ">>> ", "... "


def chat(port: ClientPort, asking: Asking) -> None:
    """Ask and answer until who writes leaves. Raises Refused where the model cannot be loaded."""
    if find_spec("readline"):
        import readline  # noqa: F401  # late, and for what it does to input(): editing, recall
    list(told(port, asking.body(())))
    click.echo(f"{asking.model} is ready; /? lists commands, Ctrl-D leaves")
    talk = Talk(port, asking)
    while True:
        try:
            wished = meant(_written())
            if wished is Order.LEAVE:
                return
            talk.follow(wished)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\n/bye or Ctrl-D leaves")


def _written() -> str:
    """The next line, or the lines of a quotation. Raises EOFError, KeyboardInterrupt."""
    text = input(PROMPT)
    while is_open(text):
        text += f"\n{input(MORE)}"
    # What a terminal in another encoding sends is no text that JSON can carry.
    return text.encode(errors="replace").decode()


class Talk:
    """A conversation, and how its model is asked."""

    def __init__(self, port: ClientPort, asking: Asking) -> None:
        self._port, self._asking = port, asking
        self._said: tuple[Message, ...] = ()

    def follow(self, wished: Meant) -> None:
        """Do what was written."""
        match wished:
            case Say(text):
                self._ask(Message("user", text))
            case SetSystem(text):
                self._asking = replace(self._asking, system=text)
                click.echo("the system prompt is set")
            case Order.CLEAR:
                self._said = ()
                click.echo("what was said is forgotten")
            case Order.HELP:
                click.echo(HELP)
            case Unknown(word):
                click.echo(f"{word} is no command, or lacks something; /? lists them")
            case Order.NOTHING | Order.LEAVE:
                pass

    def _ask(self, question: Message) -> None:
        """What was answered is kept with the question, a part of it too; what failed is not."""
        printed = Printed(on_terminal=True)
        try:
            answer(self._port, self._asking, (*self._said, question), printed)
        except KeyboardInterrupt:
            click.echo("inferenceosctl: stopped", err=True)
        except Refused as exc:
            click.echo(f"inferenceosctl: {printable(str(exc))}", err=True)
            return
        if printed.text:
            self._said = (*self._said, question, Message("assistant", printed.text))
