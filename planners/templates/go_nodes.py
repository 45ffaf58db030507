"""What a template is once it is read: nodes, terms, and why it is not rendered. Pure."""

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct


class BadTemplate(ValueError):
    """A template that is not rendered here; says what of it, in a sentence."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Malformed(BadTemplate):
    """It is no template of Go's either."""


class Unknown(BadTemplate):
    """It uses something that Go has, and this does not."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"it uses {what[:80]}, which is not known here")


class Dot(Struct, frozen=True):
    """`.`: what the innermost `with` or `range` is about; outside of them, everything."""


class Variable(Struct, frozen=True):
    """`$name`; `$` alone is everything, wherever it stands."""

    name: str


class Literal(Struct, frozen=True):
    """A value that the template spells out."""

    value: str | int | bool | None


class Field(Struct, frozen=True):
    """`of.name`."""

    of: "Term"
    name: str


class Call(Struct, frozen=True):
    """A function of go_syntax.FUNCTIONS and what it is called with."""

    function: str
    arguments: tuple["Term", ...]


Term = Dot | Variable | Literal | Field | Call
"""What has a value. A pipeline is the Call of its last command, what is piped its last argument."""


class Text(Struct, frozen=True):
    """What stands between actions, trimmed already."""

    text: str


class Output(Struct, frozen=True):
    """An action that prints."""

    term: Term


class Assign(Struct, frozen=True):
    """`$name := term`, or `=` for one that exists."""

    name: str
    term: Term
    declares: bool


class BlockKind(Enum):
    """What a block does with its term."""

    IF = "if"
    WITH = "with"
    RANGE = "range"


class Block(Struct, frozen=True):
    """A body under a condition, with another value as its dot, or once for each of many."""

    kind: BlockKind
    term: Term
    names: tuple[str, ...]
    """Variables that it declares: of `range`, the value, or the index and the value."""
    body: tuple["Node", ...]
    otherwise: tuple["Node", ...]


Node = Text | Output | Assign | Block


def names_field(nodes: tuple[Node, ...], name: str) -> bool:
    """Whether a field of that name is used anywhere."""
    return any(name in _fields_of(term) for term in _terms(nodes))


def _terms(nodes: tuple[Node, ...]) -> Iterator[Term]:
    for node in nodes:
        if isinstance(node, Output | Assign | Block):
            yield node.term
        if isinstance(node, Block):
            yield from _terms(node.body)
            yield from _terms(node.otherwise)


def _fields_of(term: Term) -> Iterator[str]:
    if isinstance(term, Field):
        yield term.name
        yield from _fields_of(term.of)
    elif isinstance(term, Call):
        for argument in term.arguments:
            yield from _fields_of(argument)
