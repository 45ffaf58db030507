"""Puts a TEMPLATE layer into Jinja, which llama-server renders itself. Pure.

So that such a model is served like any other: tools, thinking, streaming and continuation are
llama-server's. Every value of the template has a Kind here, told from where it comes; what has
none, or is used as its kind cannot be, is refused. The tests hold the engine's text against Go's.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import count

from msgspec import Struct

from planners.templates.conversation import Template, until_answer
from planners.templates.go_nodes import (
    Assign,
    BadTemplate,
    Block,
    BlockKind,
    Dot,
    Field,
    Literal,
    Node,
    Output,
    Term,
    Text,
    Unknown,
    Variable,
    names_field,
)
from planners.templates.go_values import NO_VALUE


class Kind(Enum):
    """What sort of value an expression has."""

    ROOT = "everything"
    NIL = "nothing"
    TEXT = "text"
    NUMBER = "a number"
    TRUTH = "true or false"
    EITHER = "one of two kinds"
    MESSAGES = "messages"
    MESSAGE = "a message"
    TOOLS = "tools"
    TOOL = "a tool"
    CALLS = "tool calls"
    CALL = "a tool call"
    FUNCTION = "a function"
    JSON = "JSON"


class _Value(Struct, frozen=True):
    """An expression of Jinja, in parentheses where it needs them."""

    text: str
    kind: Kind


_PARTS = {
    Kind.MESSAGE: {
        "Role": ("role", Kind.TEXT),
        "Content": ("content", Kind.TEXT),
        "Thinking": ("thinking", Kind.TEXT),
        "ToolName": ("name", Kind.TEXT),
        "ToolCalls": ("tool_calls", Kind.CALLS),
    },
    Kind.TOOL: {"Function": ("function", Kind.FUNCTION), "Type": ("type", Kind.TEXT)},
    Kind.CALL: {"Function": ("function", Kind.FUNCTION)},
    Kind.FUNCTION: {
        "Name": ("name", Kind.TEXT),
        "Description": ("description", Kind.TEXT),
        "Parameters": ("parameters", Kind.JSON),
        "Arguments": ("arguments", Kind.JSON),
    },
}
"""Fields by the names that templates and messages have for them."""
_ITEMS = {Kind.MESSAGES: Kind.MESSAGE, Kind.TOOLS: Kind.TOOL, Kind.CALLS: Kind.CALL}
_SENT = (Kind.TOOLS, Kind.TOOL, Kind.CALLS, Kind.CALL, Kind.FUNCTION, Kind.JSON)
"""What came as JSON."""
_PRINTED_AS_JSON = (Kind.TOOLS, Kind.TOOL, Kind.JSON)
MAX_EXPRESSION = 64 << 10  # characters: `or` and `and` say their arguments twice
MAX_RANGES = 2
"""One within another. Each multiplies what the engine does by the number of a caller's messages or
tools, and nothing stops it: two take what its template takes of so many messages anyway."""
MAX_JINJA = 1 << 20  # characters; a template of Ollama's library comes to 10 thousand
_ALWAYS = (Kind.MESSAGE, Kind.TOOL, Kind.CALL, Kind.FUNCTION, Kind.ROOT)
"""Never empty."""
_NIL = _Value("none", Kind.NIL)

_MERGED = """\
{%- set v = namespace(said=[], system="", has_system=false) -%}
{%- for m in messages -%}
{%- set c = m.content if m.content is string else "" -%}
{%- if m.role == "system" -%}
{%- set v.system = v.system ~ "\\n\\n" ~ c if v.has_system else c -%}{%- set v.has_system = true -%}
{%- endif -%}
{%- if v.said and v.said[-1].role == m.role and m.role != "tool" -%}
{%- set l = v.said[-1] -%}
{%- set l = {"role": l.role, "content": l.content ~ "\\n\\n" ~ cOLD} -%}
{%- set v.said = v.said[:-1] + [l] -%}
{%- else -%}
{%- set l = {"role": m.role, "content": cNEW} -%}
{%- set v.said = v.said + [l] -%}
{%- endif -%}
{%- endfor -%}
"""
"""Of messages no more is told than is used: llama-server, and `capabilities`, look for names."""
_OPTIONAL = {
    "Thinking": ("thinking", 'm.reasoning_content or ""'),
    "ToolName": ("name", 'm.name or ""'),
    "ToolCalls": ("tool_calls", "m.tool_calls or []"),
}
_TURNS = """\
{%- set v.turns = [] -%}{%- set v.s = "" -%}{%- set v.p = "" -%}{%- set v.r = "" -%}
{%- for m in v.said -%}
{%- if (m.role == "system" and (v.p or v.r)) or (m.role == "user" and v.r) -%}
{%- set v.turns = v.turns + [{"s": v.s, "p": v.p, "r": v.r}] -%}
{%- set v.s = "" -%}{%- set v.p = "" -%}{%- set v.r = "" -%}
{%- endif -%}
{%- if m.role == "system" -%}{%- set v.s = m.content -%}{%- endif -%}
{%- if m.role == "user" -%}{%- set v.p = m.content -%}{%- endif -%}
{%- if m.role == "assistant" -%}{%- set v.r = m.content -%}{%- endif -%}
{%- endfor -%}
"""


def jinja(template: Template) -> str:
    """The same template for llama-server. Raises BadTemplate for what cannot be said in Jinja."""
    if template.takes_messages:
        root = {
            "System": _Value("v.system", Kind.TEXT),
            "Messages": _Value("v.said", Kind.MESSAGES),
            "Tools": _Value("(tools or [])", Kind.TOOLS),
            "Response": _Value('""', Kind.TEXT),
        }
        return _merged(template) + _Writer(root).written(template.nodes)
    every = {name: _Value(f"t.{name[0].lower()}", Kind.TEXT) for name in _TURN}
    last = {name: _Value(f"v.{name[0].lower()}", Kind.TEXT) for name in _TURN}
    turns = _Writer(every).written(template.nodes)
    answer = _Writer(last).written(until_answer(template.nodes)[0])
    return (
        f"{_merged(template)}{_TURNS}{{%- for t in v.turns -%}}\n{turns}{{%- endfor -%}}\n{answer}"
    )


def _merged(template: Template) -> str:
    used = [part for name, part in _OPTIONAL.items() if names_field(template.nodes, name)]
    old = "".join(f', "{key}": l.{key}' for key, _ in used)
    new = "".join(f', "{key}": {value}' for key, value in used)
    return _MERGED.replace("OLD", old).replace("NEW", new)


_TURN = ("System", "Prompt", "Response")


class _Scope:
    """Variables of a block and of those around it: each has a name of its own in Jinja."""

    def __init__(self, own: dict[str, _Value], around: "_Scope | None" = None) -> None:
        self._own, self._around = own, around

    def declare(self, name: str, value: _Value) -> None:
        self._own[name] = value

    def find(self, name: str) -> _Value:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope._own:
                return scope._own[name]
            scope = scope._around
        raise BadTemplate(f"{name} is not declared")


class _Writer:
    """Writes nodes as Jinja: all on tags that trim, so that only what is printed is text."""

    def __init__(self, root: Mapping[str, _Value]) -> None:
        self._root = root
        self._numbers = count()
        self._n_ranges = 0
        """How many are around what is being written."""

    def written(self, nodes: Sequence[Node]) -> str:
        everything = _Value("", Kind.ROOT)
        parts, n_chars = [], 0
        for part in self._nodes(nodes, everything, _Scope({"$": everything})):
            n_chars += len(part)
            if n_chars > MAX_JINJA:
                raise BadTemplate(f"it comes to more than {MAX_JINJA} characters of Jinja")
            parts.append(part)
        return "".join(parts)

    def _nodes(self, nodes: Sequence[Node], dot: _Value, scope: _Scope) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, Text):
                yield _tag_out(_quoted(node.text))
            elif isinstance(node, Output):
                yield _tag_out(_printed(self._value(node.term, dot, scope)))
            elif isinstance(node, Assign):
                yield self._assigned(node, dot, scope)
            elif node.kind is BlockKind.RANGE:
                yield from self._range(node, dot, scope)
            else:
                yield from self._branch(node, dot, scope)

    def _assigned(self, node: Assign, dot: _Value, scope: _Scope) -> str:
        value = self._value(node.term, dot, scope)
        if value.kind in (Kind.ROOT, Kind.NIL):
            raise BadTemplate(f"it puts {value.kind.value} into {node.name}")
        if node.declares:
            return self._declared(node.name, value, scope)
        known = scope.find(node.name)
        if known.kind is not value.kind:
            raise BadTemplate(f"{node.name} is {known.kind.value} first, then {value.kind.value}")
        return _tag(f"set {known.text} = {value.text}")

    def _declared(self, name: str, value: _Value, scope: _Scope) -> str:
        own = _Value(f"v.x{next(self._numbers)}", value.kind)
        scope.declare(name, own)
        return _tag(f"set {own.text} = {value.text}")

    def _branch(self, block: Block, dot: _Value, scope: _Scope) -> Iterator[str]:
        value = self._value(block.term, dot, scope)
        inner = _Scope({}, scope)
        if block.names or block.kind is BlockKind.WITH:
            name = block.names[0] if block.names else ""
            if value.kind in (Kind.ROOT, Kind.NIL):
                inner.declare(name, value)
            else:
                yield self._declared(name, value, inner)
                value = inner.find(name)
        body_dot = value if block.kind is BlockKind.WITH else dot
        yield _tag(f"if {_truth(value)}")
        if value.kind is not Kind.NIL:
            yield from self._nodes(block.body, body_dot, inner)
        if block.otherwise:
            yield _tag("else")
            yield from self._nodes(block.otherwise, dot, _Scope({}, scope))
        yield _tag("endif")

    def _range(self, block: Block, dot: _Value, scope: _Scope) -> Iterator[str]:
        many = self._value(block.term, dot, scope)
        if many.kind is Kind.NIL:
            yield from self._nodes(block.otherwise, dot, _Scope({}, scope))
            return
        if many.kind not in _ITEMS:
            raise BadTemplate(f"it ranges over {many.kind.value}")
        if self._n_ranges == MAX_RANGES:
            raise BadTemplate(f"its ranges are nested deeper than {MAX_RANGES}")
        number = next(self._numbers)
        one = _Value(f"v.d{number}", _ITEMS[many.kind])
        at = _Value(f"v.i{number}", Kind.NUMBER)
        names = dict(zip(reversed(block.names), (one, at), strict=False))
        # In the namespace: a variable of the loop itself is not seen by what is set within it.
        yield _tag(f"for d{number} in {many.text}")
        yield _tag(f"set {one.text} = d{number}") + _tag(f"set {at.text} = loop.index0")
        self._n_ranges += 1
        yield from self._nodes(block.body, one, _Scope(names, scope))
        self._n_ranges -= 1
        yield _tag("endfor")
        if block.otherwise:
            yield _tag(f"if not {many.text}")
            yield from self._nodes(block.otherwise, dot, _Scope({}, scope))
            yield _tag("endif")

    def _value(self, term: Term, dot: _Value, scope: _Scope) -> _Value:
        if isinstance(term, Literal):
            return _literal(term.value)
        if isinstance(term, Dot):
            return dot
        if isinstance(term, Variable):
            return scope.find(term.name)
        if isinstance(term, Field):
            return self._field(self._value(term.of, dot, scope), term.name)
        value = _called(term.function, [self._value(one, dot, scope) for one in term.arguments])
        if len(value.text) > MAX_EXPRESSION:
            raise BadTemplate("one of its expressions comes to too much Jinja")
        return value

    def _field(self, of: _Value, name: str) -> _Value:
        if of.kind is Kind.ROOT:
            return self._root.get(name, _NIL)
        parts = _PARTS.get(of.kind, {})
        if name not in parts:
            raise Unknown(f".{name} of {of.kind.value}")
        key, kind = parts[name]
        text = f"{of.text}.{key}"
        if kind is Kind.TEXT and of.kind is not Kind.MESSAGE:
            text = f'({text} or "")'  # a caller may have left it out
        return _Value(text, kind)


def _called(function: str, values: list[_Value]) -> _Value:
    first, *others = values
    if function in ("and", "or"):
        return _chosen(function, values)
    if function == "eq":
        return _equal(first, others)
    if function == "not":
        return _Value(f"(not {_truth(first)})", Kind.TRUTH)
    if function == "len":
        if first.kind not in _ITEMS:
            raise BadTemplate(f"it asks for the length of {first.kind.value}")
        return _Value(f"({first.text}|length)", Kind.NUMBER)
    if function == "json":
        return _Value(_json(first), Kind.TEXT)
    return _indexed(first, others)


def _chosen(function: str, values: list[_Value]) -> _Value:
    """The first that decides, or the last, as in Go; of two kinds, it is good for a condition."""
    kinds = {value.kind for value in values}
    if len(kinds) > 1 or Kind.TRUTH in kinds:
        text = f" {function} ".join(_truth(value) for value in values)
        return _Value(f"({text})", Kind.TRUTH if kinds == {Kind.TRUTH} else Kind.EITHER)
    text = values[-1].text
    for value in reversed(values[:-1]):
        if function == "or":
            text = f"({value.text} if {_truth(value)} else {text})"
        else:
            text = f"({text} if {_truth(value)} else {value.text})"
    return _Value(text, values[0].kind)


def _equal(first: _Value, others: list[_Value]) -> _Value:
    comparable = (Kind.TEXT, Kind.NUMBER, Kind.TRUTH)
    for other in others:
        if other.kind is not first.kind or first.kind not in comparable:
            raise BadTemplate(f"it compares {first.kind.value} with {other.kind.value}")
    text = " or ".join(f"{first.text} == {other.text}" for other in others)
    return _Value(f"({text})", Kind.TRUTH)


def _indexed(of: _Value, at: list[_Value]) -> _Value:
    if len(at) != 1 or of.kind not in _ITEMS or at[0].kind is not Kind.NUMBER:
        raise BadTemplate(f"it uses index on {of.kind.value}")
    return _Value(f"{of.text}[{at[0].text}]", _ITEMS[of.kind])


def _literal(value: str | int | bool | None) -> _Value:
    if value is None:
        return _NIL
    if isinstance(value, bool):
        return _Value("true" if value else "false", Kind.TRUTH)
    if isinstance(value, int):
        return _Value(str(value), Kind.NUMBER)
    return _Value(_quoted(value), Kind.TEXT)


def _truth(value: _Value) -> str:
    """A condition: whether it is not empty."""
    if value.kind is Kind.NIL:
        return "false"
    if value.kind in _ALWAYS:
        return "true"
    if value.kind in (Kind.TRUTH, Kind.EITHER):
        return value.text
    if value.kind is Kind.NUMBER:
        return f"({value.text} != 0)"
    if value.kind is Kind.JSON:
        raise BadTemplate("it asks whether JSON is empty")
    return f"({value.text}|length > 0)"


def _printed(value: _Value) -> str:
    if value.kind is Kind.NIL:
        return _quoted(NO_VALUE)
    if value.kind is Kind.TRUTH:
        return f'("true" if {value.text} else "false")'
    if value.kind in (Kind.TEXT, Kind.NUMBER):
        return value.text
    if value.kind in _PRINTED_AS_JSON:
        return _json(value)
    raise BadTemplate(f"it prints {value.kind.value} whole")


def _json(value: _Value) -> str:
    """As Go's encoding/json, which spares pages some characters."""
    if value.kind not in (*_SENT, Kind.TEXT):
        raise BadTemplate(f"it encodes {value.kind.value}")
    text = f'{value.text}|tojson(separators=(",", ":"))'
    for char in "<>&":
        text += f'|replace("{char}", "\\\\u{ord(char):04x}")'
    return f"({text})"


def _quoted(text: str) -> str:
    """A string of llama-server's Jinja, which knows no escapes by number: all else is as it is."""
    return '"' + text.translate(_ESCAPES) + '"'


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def _tag(text: str) -> str:
    return f"{{%- {text} -%}}\n"


def _tag_out(text: str) -> str:
    return f"{{{{- {text} -}}}}\n"
