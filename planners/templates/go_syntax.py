"""Reads the part of Go's text/template that TEMPLATE layers of chat models are written in.

    {{ .System }}  {{ if … }} … {{ else if … }} … {{ else }} … {{ end }}  {{ with … }}
    {{ range $i, $m := .Messages }}  {{ $x := … }}  {{ $x = … }}  {{ a | pipeline }}
    {{- trimmed -}}  {{/* a comment */}}
with the functions of FUNCTIONS. Anything else (define, block, template, break, other functions) is
refused by its name: a template that is half understood would put words into a model's mouth.
"""

import ast
import re
from collections.abc import Iterator

from msgspec import Struct

from planners.templates.go_nodes import (
    Assign,
    BadTemplate,
    Block,
    BlockKind,
    Call,
    Dot,
    Field,
    Literal,
    Malformed,
    Node,
    Output,
    Term,
    Text,
    Unknown,
    Variable,
)

FUNCTIONS = frozenset({"and", "eq", "index", "json", "len", "not", "or"})
MAX_BYTES = 64 << 10  # the longest of Ollama's library is 9 kB
MAX_DEPTH = 32  # of blocks and parentheses within each other
MAX_TERM_DEPTH = 64  # of calls and fields within each other, as a pipe puts them too

_BLANK = " \t\r\n"  # what a trim marker eats
_ACTION = re.compile(
    r"""\{\{(?P<left>-(?=[ \t\r\n]))?(?:
    [ \t\r\n]*(?P<comment>/\*.*?\*/)[ \t\r\n]*?
  | (?P<body>(?:"(?:\\.|[^"\\\n])*"|`[^`]*`|[^"`])*?)
    )(?P<right>(?<=[ \t\r\n])-)?\}\}""",
    re.DOTALL | re.VERBOSE,
)
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>"(?:\\.|[^"\\\n])*")
  | (?P<raw>`[^`]*`)
  | (?P<number>-?[0-9]{1,18})(?![\w.])
  | (?P<variable>\$\w*(?:\.[A-Za-z_]\w*)*)
  | (?P<field>(?:\.[A-Za-z_]\w*)+)
  | (?P<dot>\.)(?![\w.])
  | (?P<word>[A-Za-z_]\w*)
  | (?P<close>\)(?:\.[A-Za-z_]\w*)*)
  | (?P<sign>:=|=|\||\(|,)
    )""",
    re.VERBOSE,
)
_WORD = re.compile(r"\w*")
_ESCAPE = re.compile(
    r"\\(?:[abfnrtv\\\"]|u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|(.?))"
)


def parsed(source: str) -> tuple[Node, ...]:
    """A template's nodes. Raises BadTemplate, and Unknown for what is beyond this part of Go."""
    if len(source.encode()) > MAX_BYTES:
        raise BadTemplate(f"it is longer than {MAX_BYTES} bytes")
    reader = _Reader(_pieces(source))
    nodes, end = reader.nodes(depth=0)
    if end:
        raise Malformed(f"{{{{ {end} }}}} ends nothing")
    return nodes


class _Action(Struct, frozen=True):
    body: str


def _pieces(source: str) -> Iterator[Text | _Action]:
    """Text and actions in turn, with what their trim markers eat gone."""
    at, trims = 0, False
    while (opened := source.find("{{", at)) >= 0:
        found = _ACTION.match(source, opened)
        if found is None:
            raise Malformed("an action is not closed by }}")
        yield _text(source[at:opened], left=trims, right=bool(found["left"]))
        if found["comment"] is None:
            yield _Action(found["body"].strip(_BLANK))
        at, trims = found.end(), bool(found["right"])
    yield _text(source[at:], left=trims, right=False)


def _text(text: str, *, left: bool, right: bool) -> Text:
    if left:
        text = text.lstrip(_BLANK)
    return Text(text.rstrip(_BLANK) if right else text)


class _Reader:
    """Reads nodes from pieces, one pass."""

    def __init__(self, pieces: Iterator[Text | _Action]) -> None:
        self._pieces = pieces

    def nodes(self, *, depth: int) -> tuple[tuple[Node, ...], str]:
        """Nodes up to what ends them: `end`, `else` with its condition, "" for the template's."""
        if depth > MAX_DEPTH:
            raise BadTemplate(f"its blocks are nested deeper than {MAX_DEPTH}")
        nodes: list[Node] = []
        for piece in self._pieces:
            if isinstance(piece, Text):
                if piece.text:
                    nodes.append(piece)
                continue
            word, rest = _parted(piece.body)
            if word in ("end", "else"):
                return tuple(nodes), piece.body
            if word in ("if", "with", "range"):
                nodes.append(self._block(BlockKind(word), rest, depth=depth))
            else:
                nodes.append(_simple(piece.body))
        return tuple(nodes), ""

    def _block(self, kind: BlockKind, head: str, *, depth: int) -> Block:
        names, term = _head(kind, head)
        body, end = self.nodes(depth=depth + 1)
        otherwise: tuple[Node, ...] = ()
        word, rest = _parted(end)
        if word == "else":
            chained, condition = _parted(rest)
            if chained in ("if", "with"):
                return Block(
                    kind, term, names, body,
                    (self._block(BlockKind(chained), condition, depth=depth + 1),),
                )  # fmt: skip
            if rest:
                raise Unknown(f"else {rest}")
            otherwise, end = self.nodes(depth=depth + 1)
        if end != "end":
            raise Malformed(f"{{{{ {kind.value} }}}} has no {{{{ end }}}}")
        return Block(kind, term, names, body, otherwise)


def _parted(body: str) -> tuple[str, str]:
    """The word that an action begins with, and the rest."""
    found = _WORD.match(body)
    assert found is not None
    return found[0], body[found.end() :].strip(_BLANK)


def _simple(body: str) -> Node:
    tokens = _Tokens(body)
    if (name := tokens.taken("variable")) is not None:
        sign = tokens.taken("sign")
        if sign in (":=", "=") and name != "$" and "." not in name:
            return Assign(name, tokens.pipeline(), declares=sign == ":=")
        tokens = _Tokens(body)
    return Output(tokens.pipeline())


def _head(kind: BlockKind, head: str) -> tuple[tuple[str, ...], Term]:
    """The variables that a block declares, and its term."""
    tokens, names = _Tokens(head), []
    while (name := tokens.taken("variable")) is not None:
        names.append(name)
        sign = tokens.taken("sign")
        if sign == ":=":
            if len(names) > (2 if kind is BlockKind.RANGE else 1):
                raise BadTemplate(f"{{{{ {kind.value} }}}} declares too many variables")
            return tuple(names), tokens.pipeline()
        if sign != ",":
            break
    return (), _Tokens(head).pipeline()


class _Tokens:
    """The tokens of one action."""

    def __init__(self, body: str) -> None:
        self._body = body
        self._tokens = list(_tokens(body))
        self._at = 0

    def taken(self, kind: str) -> str | None:
        """The next token, where it is of that kind."""
        if self._next_kind() != kind:
            return None
        self._at += 1
        return self._tokens[self._at - 1][1]

    def pipeline(self) -> Term:
        """The term that all that is left makes."""
        term = self._piped(depth=0)
        if self._at < len(self._tokens):
            raise BadTemplate(
                f"{self._tokens[self._at][1]!r} is out of place in {self._body[:80]!r}"
            )
        if _depth(term) > MAX_TERM_DEPTH:
            raise BadTemplate(f"{self._body[:80]!r} goes deeper than {MAX_TERM_DEPTH}")
        return term

    def _next_kind(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    def _takes(self, sign: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == ("sign", sign):
            self._at += 1
            return True
        return False

    def _piped(self, *, depth: int) -> Term:
        if depth > MAX_DEPTH:
            raise BadTemplate(f"its parentheses are nested deeper than {MAX_DEPTH}")
        term = self._command(None, depth=depth)
        while self._takes("|"):
            term = self._command(term, depth=depth)
        return term

    def _command(self, piped: Term | None, *, depth: int) -> Term:
        """A value alone, or a function with its arguments, the last of which is piped into it."""
        word = self.taken("word")
        if word is None or word in ("true", "false", "nil"):
            term = self._operand(word, depth=depth)
            if piped is not None or self._starts_operand():
                raise BadTemplate(f"a value is called as a function in {self._body[:80]!r}")
            return term
        if word not in FUNCTIONS:
            raise Unknown(word)
        arguments = []
        while self._starts_operand():
            arguments.append(self._operand(self.taken("word"), depth=depth))
        if piped is not None:
            arguments.append(piped)
        return Call(word, _counted(word, tuple(arguments)))

    def _starts_operand(self) -> bool:
        kind = self._next_kind()
        if kind == "sign":
            return self._tokens[self._at][1] == "("
        return kind not in (None, "close")

    def _operand(self, word: str | None, *, depth: int) -> Term:
        if word is not None:
            return self._named(word)
        if (names := self.taken("field")) is not None:
            return _fields(Dot(), names)
        if self.taken("dot") is not None:
            return Dot()
        if (name := self.taken("variable")) is not None:
            name, dot, names = name.partition(".")
            return _fields(Variable(name), dot + names)
        if (text := self.taken("text")) is not None:
            return Literal(_unquoted(text))
        if (raw := self.taken("raw")) is not None:
            return Literal(raw[1:-1].replace("\r", ""))
        if (number := self.taken("number")) is not None:
            return Literal(int(number))
        if self._takes("("):
            term = self._piped(depth=depth + 1)
            if (close := self.taken("close")) is None:
                raise Malformed(f"a parenthesis is not closed in {self._body[:80]!r}")
            return _fields(term, close[1:])
        raise BadTemplate(f"a value is missing in {self._body[:80]!r}")

    def _named(self, word: str) -> Term:
        """A word where a value must stand: a constant, or a function without arguments."""
        if word in _CONSTANTS:
            return Literal(_CONSTANTS[word])
        if word not in FUNCTIONS:
            raise Unknown(word)
        return Call(word, _counted(word, ()))


def _depth(term: Term) -> int:
    """Of terms within each other. Looked at level by level: recursion is what it keeps safe."""
    depth, level = 0, [term]
    while level:
        depth += 1
        level = [inner for one in level for inner in _within(one)]
    return depth


def _within(term: Term) -> tuple[Term, ...]:
    match term:
        case Field(of=of):
            return (of,)
        case Call(arguments=arguments):
            return arguments
    return ()


def _fields(term: Term, names: str) -> Term:
    """`term.A.B` of ".A.B"."""
    for name in names.split(".")[1:]:
        term = Field(term, name)
    return term


_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "nil": None}
_COUNTS = {"json": (1, 1), "len": (1, 1), "not": (1, 1), "index": (2, 3), "eq": (2, 16)}
"""How many arguments a function has; `and` and `or`: from one on."""


def _counted(function: str, arguments: tuple[Term, ...]) -> tuple[Term, ...]:
    least, most = _COUNTS.get(function, (1, 64))
    if not least <= len(arguments) <= most:
        raise BadTemplate(f"{function} has {len(arguments)} arguments")
    return arguments


def _tokens(body: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(body):
        found = _TOKEN.match(body, at)
        if found is None:
            rest = body[at:].strip(_BLANK)
            if not rest:
                return
            raise Unknown(rest)
        kind = found.lastgroup
        assert kind is not None
        yield kind, found[kind]
        at = found.end()


def _unquoted(text: str) -> str:
    """A Go string in quotes. Raises BadTemplate for an escape of bytes, or that Go has not."""
    if any(bad[1] is not None for bad in _ESCAPE.finditer(text)):
        raise BadTemplate(f"the string {text[:80]} has an escape that is not known here")
    # Python reads no line that has these in it as they are; Go does.
    value = ast.literal_eval(text.replace("\r", "\\r").replace("\0", "\\x00"))
    assert isinstance(value, str)
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise BadTemplate(f"the string {text[:80]} is no Unicode")
    return value
