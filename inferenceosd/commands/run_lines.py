"""What is written in a chat: something to say, or a command. Pure."""

import re
from enum import Enum

from msgspec import Struct

MARK = '"""'
HELP = """\
/set system TEXT   Answer by another system prompt from now on
/clear             Forget what was said
/bye               Leave; so does Ctrl-D
/?                 Show this
\"\"\"                Begin, and end, a text of several lines
Ctrl-C             Stop an answer"""
_SYSTEM = re.compile(r"/set\s+system\s+(.+)", re.DOTALL)
_OPENED = re.compile(r'\s*(?:/set\s+system\s+)?"""')


class Say(Struct, frozen=True):
    """Something for the model."""

    text: str


class SetSystem(Struct, frozen=True):
    """Another system prompt."""

    text: str


class Unknown(Struct, frozen=True):
    """What looks like a command and is none."""

    word: str


class Order(Enum):
    """A command of one word."""

    LEAVE = "leave"
    CLEAR = "clear"
    HELP = "help"
    NOTHING = "nothing"


Meant = Say | SetSystem | Unknown | Order

_ORDERS = {
    "/bye": Order.LEAVE,
    "/exit": Order.LEAVE,
    "/clear": Order.CLEAR,
    "/?": Order.HELP,
    "/help": Order.HELP,
}


def is_open(text: str) -> bool:
    """True where another line belongs to it: its quotation has not ended."""
    opened = _OPENED.match(text)
    return opened is not None and not text[opened.end() :].rstrip().endswith(MARK)


def meant(text: str) -> Meant:
    """What is to be done with what was written, all lines of a quotation together."""
    stripped = text.strip()
    if not stripped.startswith("/"):
        said = _unquoted(stripped)
        return Say(said) if said.strip() else Order.NOTHING
    system = _SYSTEM.fullmatch(stripped)
    if system is not None:
        return SetSystem(_unquoted(system[1]))
    return _ORDERS.get(stripped, Unknown(stripped.split()[0]))


def _unquoted(text: str) -> str:
    return text[3:-3].strip("\n") if text.startswith(MARK) else text
