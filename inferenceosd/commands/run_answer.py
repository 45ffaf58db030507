"""One answer of a model's, printed as it comes."""

import sys
from collections.abc import Generator, Sequence
from contextlib import closing

import click
import msgspec

from inferenceosd.commands.client_port import ClientPort, Refused
from planners.recipe import Message

DIM, BRIGHT = "\x1b[2m", "\x1b[22m"  # ECMA-48's faint, and its end
NS_PER_S = 1e9


class _Said(msgspec.Struct):
    content: str = ""
    thinking: str = ""


class ChatLine(msgspec.Struct):
    """One line of /api/chat; durations are nanoseconds."""

    message: _Said = msgspec.field(default_factory=_Said)
    done: bool = False
    done_reason: str = ""
    error: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0


class Asking(msgspec.Struct, frozen=True):
    """How a model is asked, whatever it is asked."""

    model: str
    system: str | None = None
    form: object = None
    """`json`, or a JSON schema; None for text."""
    keep_alive: str | None = None
    tells: bool = False
    """Whether what an answer took is shown."""

    def body(self, messages: Sequence[Message]) -> dict[str, object]:
        """The request of /api/chat; without messages it loads the model."""
        first = () if self.system is None or not messages else (Message("system", self.system),)
        told: dict[str, object] = {"model": self.model, "messages": (*first, *messages)}
        if messages and self.form is not None:
            told["format"] = self.form
        return told | ({} if self.keep_alive is None else {"keep_alive": self.keep_alive})


class Printed(msgspec.Struct):
    """An answer on its way to standard output."""

    on_terminal: bool
    parts: list[str] = msgspec.field(default_factory=list)
    _is_dimmed: bool = False
    _is_at_start: bool = True

    @property
    def text(self) -> str:
        """What has come of it, as the model wrote it."""
        return "".join(self.parts)

    def print(self, said: _Said) -> None:
        """Puts out what came. Thoughts are for who watches, not for what reads a pipe."""
        if said.thinking and self.on_terminal:
            self._put(said.thinking, is_dimmed=True)
        if said.content:
            self.parts.append(said.content)
            self._put(said.content, is_dimmed=False)

    def end(self) -> None:
        """Has what follows begin on a line of its own, and bright."""
        self._put("" if self._is_at_start else "\n", is_dimmed=False)

    def _put(self, text: str, *, is_dimmed: bool) -> None:
        if is_dimmed != self._is_dimmed:
            self._is_dimmed = is_dimmed
            _write(DIM if is_dimmed else f"{BRIGHT}\n\n" if text.strip() else BRIGHT)
        if text:
            self._is_at_start = text.endswith("\n")
            _write(harmless(text) if self.on_terminal else text)


def _write(text: str) -> None:
    """At once. Not click's echo: it would leave out of a model's text what looks like a colour."""
    sys.stdout.write(text)
    sys.stdout.flush()


def harmless(text: str) -> str:
    """`text` as a terminal shows it, without what would command the terminal."""
    return "".join(
        c if c in "\n\t" or not (c < " " or "\x7f" <= c <= "\x9f") else ascii(c)[1:-1] for c in text
    )


def one_answer(port: ClientPort, asking: Asking, prompt: str) -> None:
    """Print the answer to `prompt`. Raises Refused, KeyboardInterrupt."""
    answer(port, asking, [Message("user", prompt)], Printed(sys.stdout.isatty()))


def answer(port: ClientPort, asking: Asking, messages: Sequence[Message], printed: Printed) -> None:
    """Print what the model says to `messages`, and what it took where that is wanted.

    Whatever ends it early, Ctrl-C among it, frees the model. Raises Refused.
    """
    last = ChatLine()
    try:
        with closing(told(port, asking.body(messages))) as lines:
            for last in lines:
                printed.print(last.message)
    finally:
        printed.end()
    if last.done_reason == "length":
        click.echo("inferenceosctl: the answer is cut: it came to its limit of tokens", err=True)
    if asking.tells:
        click.echo(what_it_took(last), err=True)


def told(port: ClientPort, body: dict[str, object]) -> Generator[ChatLine, None, None]:
    """The lines of /api/chat. Raises Refused where the last is none that ends an answer."""
    line = ChatLine()
    with closing(port.lines("/api/chat", body, ChatLine)) as lines:
        for line in lines:
            if line.error:
                raise Refused(line.error)
            yield line
    if not line.done:
        raise Refused("the answer broke off")


def what_it_took(last: ChatLine) -> str:
    """Tokens, seconds and tokens/s, as `ollama run --verbose` names them. Pure."""
    rows = [
        ("total duration", _seconds(last.total_duration)),
        ("load duration", _seconds(last.load_duration)),
        ("prompt eval count", f"{last.prompt_eval_count} tokens"),
        ("prompt eval duration", _seconds(last.prompt_eval_duration)),
        ("prompt eval rate", _rate(last.prompt_eval_count, last.prompt_eval_duration)),
        ("eval count", f"{last.eval_count} tokens"),
        ("eval duration", _seconds(last.eval_duration)),
        ("eval rate", _rate(last.eval_count, last.eval_duration)),
    ]
    return "\n".join(f"{name + ':':<22}{value}" for name, value in rows)


def _seconds(ns: int) -> str:
    return f"{ns / NS_PER_S:.3f} s"


def _rate(tokens: int, ns: int) -> str:
    return f"{tokens / (ns / NS_PER_S):.2f} tokens/s" if ns else "-"
