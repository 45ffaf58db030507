"""`inferenceosctl run`: a chat with a model, or one answer to a prompt."""

import sys
from typing import Any

import click
import msgspec

from inferenceosd.commands.admin_client import Door, fail
from inferenceosd.commands.arguments import Name
from inferenceosd.commands.client_port import ClientPort, Refused, client_port, key_option
from inferenceosd.commands.following import EXIT_INTERRUPTED
from inferenceosd.commands.shelf import fetch
from inferenceosd.lean_imports import lean_imports


class Format(click.ParamType[Any]):
    """`json`, or a file with a JSON schema: what /api/chat takes as format."""

    name = "format"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if value == "json":
            return value
        try:
            with open(str(value), "rb") as file:
                return msgspec.json.decode(file.read(), type=dict[str, Any])
        except OSError as exc:
            self.fail(f"{value!r} is neither json nor a file: {exc.strerror}", param, ctx)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            self.fail(f"{value!r} holds no JSON schema: {exc}", param, ctx)


@click.command()
@click.argument("model", type=Name())
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="The system prompt.")
@click.option(
    "--format",
    "form",
    type=Format(),
    metavar="json|FILE",
    help="Have it answer in JSON: any, or by the JSON schema in FILE.",
)
@click.option(
    "--keepalive", metavar="SPAN", help="Keep MODEL loaded for 10m, 1h, ... after; -1 for ever."
)
@click.option("--pull", "pulls", is_flag=True, help="Fetch MODEL first if it is not there.")
@click.option("--insecure", is_flag=True, help="With --pull: allow HTTP, as pull does.")
@click.option("--verbose", is_flag=True, help="Show tokens, seconds and tokens/s at the end.")
@key_option
@click.pass_obj
def run(
    door: Door,
    model: str,
    prompt: str | None,
    system: str | None,
    form: object,
    keepalive: str | None,
    pulls: bool,
    insecure: bool,
    verbose: bool,
    key: str | None,
) -> None:
    """Chat with MODEL, or have one answer to PROMPT.

    With PROMPT it prints the answer as it comes, and ends. What is piped into it is the prompt, or
    goes below PROMPT. Without both, on a terminal, it is a chat: /? lists its commands, Ctrl-C
    stops an answer, Ctrl-D leaves.

    It is asked on the port of clients, so where there are API keys it needs one, of scope infer.
    What the model thinks is shown on a terminal, dimmed, and nowhere else.
    """
    asked = _asked(prompt)
    with lean_imports():
        from inferenceosd.commands.run_answer import Asking, one_answer
        from inferenceosd.commands.run_chat import chat

    asking = Asking(model, system=_utf8(system), form=form, keep_alive=keepalive, tells=verbose)
    try:
        with client_port(door, key) as port:
            missing = _missing(port, model)
            if missing and not pulls:
                fail(f"{missing}; --pull fetches it first")
            if missing:
                fetch(door, model, insecure=insecure)
            if asked is None:
                chat(port, asking)
            else:
                one_answer(port, asking, asked)
    except Refused as exc:
        fail(str(exc))
    except KeyboardInterrupt:
        click.echo(err=True)
        sys.exit(EXIT_INTERRUPTED)


def _asked(prompt: str | None) -> str | None:
    """What is to be answered; None for a chat, with somebody who reads and writes here."""
    is_at_terminal = sys.stdin is not None and sys.stdin.isatty()
    if prompt is None and is_at_terminal and sys.stdout.isatty():
        return None
    piped = "" if sys.stdin is None or (is_at_terminal and prompt is not None) else _read()
    whole = "\n\n".join(part for part in (_utf8(prompt), piped) if part)
    if not whole.strip():
        fail("there is no prompt: write one after MODEL, or pipe it in")
    return whole


def _read() -> str:
    try:
        return sys.stdin.buffer.read().decode().rstrip("\n")
    except UnicodeDecodeError:
        fail("what is piped in is no UTF-8")
    except OSError as exc:
        fail(f"what is piped in cannot be read: {exc.strerror}")


def _utf8(text: str | None) -> str | None:
    """The same; ends the program where an argument's bytes are no text."""
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        fail(f"{text!r:.80} is no UTF-8")
    return text


def _missing(port: ClientPort, model: str) -> str:
    """The daemon's sentence where it has no such model; "" where it has."""
    try:
        port.post("/api/show", msgspec.json.encode({"model": model}))
    except Refused as exc:
        if exc.status != 404:
            raise
        return str(exc)
    return ""
