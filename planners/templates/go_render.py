"""Renders templates as Go's text/template does, as far as go_syntax knows it. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from planners.templates.go_nodes import (
    Assign,
    BadTemplate,
    Block,
    BlockKind,
    Call,
    Dot,
    Field,
    Literal,
    Node,
    Output,
    Term,
    Text,
    Unknown,
    Variable,
)
from planners.templates.go_values import Message, Raw, Value, encoded, is_true, printed, same

MAX_RENDERED = 16 << 20  # characters; nested ranges over many messages multiply
MAX_WORK = 16 << 20  # characters that functions read, nodes included: well below a second
_NODE_WORK = 64  # what a node costs beside them


def rendered(nodes: Sequence[Node], root: Mapping[str, Value]) -> str:
    """The text that a template makes of `root`'s values. Raises BadTemplate."""
    out: list[str] = []
    n_chars = 0
    for text in _Rendering(root).texts(nodes, root, _Scope({"$": root})):
        n_chars += len(text)
        if n_chars > MAX_RENDERED:
            raise BadTemplate(f"it makes more than {MAX_RENDERED} characters")
        out.append(text)
    return "".join(out)


_Dot = Value | Mapping[str, Value]
"""A value, or the root: the map that everything is in."""


class _Scope:
    """Variables: a block's own, then those around it."""

    def __init__(self, own: dict[str, _Dot], around: "_Scope | None" = None) -> None:
        self.own, self._around = own, around

    def holder(self, name: str) -> dict[str, _Dot]:
        """Where the variable of that name is. Raises BadTemplate where it is nowhere."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.own:
                return scope.own
            scope = scope._around
        raise BadTemplate(f"{name} is not declared")


class _Rendering:
    def __init__(self, root: Mapping[str, Value]) -> None:
        self._root = root
        self._work = 0

    def _spend(self, n_chars: int) -> None:
        """What prints nothing takes its time too. Raises BadTemplate."""
        self._work += n_chars
        if self._work > MAX_WORK:
            raise BadTemplate("it takes too long")

    def texts(self, nodes: Sequence[Node], dot: _Dot, scope: _Scope) -> Iterator[str]:
        for node in nodes:
            self._spend(_NODE_WORK)
            if isinstance(node, Text):
                yield node.text
            elif isinstance(node, Output):
                yield printed(_as_value(self._value(node.term, dot, scope)))
            elif isinstance(node, Assign):
                value = self._value(node.term, dot, scope)
                holder = scope.own if node.declares else scope.holder(node.name)
                holder[node.name] = value
            elif node.kind is BlockKind.RANGE:
                yield from self._range(node, dot, scope)
            else:
                yield from self._branch(node, dot, scope)

    def _branch(self, block: Block, dot: _Dot, scope: _Scope) -> Iterator[str]:
        value = self._value(block.term, dot, scope)
        inner = _Scope(dict.fromkeys(block.names, value), scope)
        is_met = bool(value) if isinstance(value, Mapping) else is_true(value)
        if is_met and block.kind is BlockKind.WITH:
            dot = value
        yield from self.texts(block.body if is_met else block.otherwise, dot, inner)

    def _range(self, block: Block, dot: _Dot, scope: _Scope) -> Iterator[str]:
        many = self._value(block.term, dot, scope)
        if many is None:
            many = ()
        if isinstance(many, str) or not isinstance(many, Sequence):
            raise BadTemplate("it ranges over what is not a list")
        for at, one in enumerate(many):
            self._spend(_NODE_WORK)
            values = (at, one) if len(block.names) == 2 else (one,)
            inner = _Scope(dict(zip(block.names, values, strict=False)), scope)
            yield from self.texts(block.body, one, inner)
        if not many:
            yield from self.texts(block.otherwise, dot, _Scope({}, scope))

    def _value(self, term: Term, dot: _Dot, scope: _Scope) -> _Dot:
        if isinstance(term, Literal):
            return term.value
        if isinstance(term, Dot):
            return dot
        if isinstance(term, Variable):
            return scope.holder(term.name)[term.name]
        if isinstance(term, Field):
            return _field(self._value(term.of, dot, scope), term.name)
        return self._called(term, dot, scope)

    def _called(self, call: Call, dot: _Dot, scope: _Scope) -> _Dot:
        if call.function in ("and", "or"):
            return self._chosen(call, dot, scope)
        values = [_as_value(self._value(term, dot, scope)) for term in call.arguments]
        self._spend(_NODE_WORK + sum(len(value) for value in values if isinstance(value, str)))
        first, *others = values
        if call.function == "eq":
            return any([same(first, other) for other in others])
        if call.function == "not":
            return not is_true(first)
        if call.function == "len":
            return _length(first)
        if call.function == "json":
            return encoded(first)
        for at in others:
            first = _indexed(first, at)
        return first

    def _chosen(self, call: Call, dot: _Dot, scope: _Scope) -> _Dot:
        """The first argument that decides, or the last."""
        decisive = call.function == "or"
        value: _Dot = None
        for term in call.arguments:
            value = self._value(term, dot, scope)
            if (bool(value) if isinstance(value, Mapping) else is_true(value)) is decisive:
                break
        return value


def _as_value(value: _Dot) -> Value:
    if isinstance(value, Mapping):
        raise BadTemplate("it uses all values at once as one")
    return value


def _field(of: _Dot, name: str) -> Value:
    if isinstance(of, Mapping):
        return of.get(name)
    if isinstance(of, Raw | Message):
        if name not in of.fields:
            raise Unknown(f".{name}")
        return of.fields[name]
    raise BadTemplate(f"it asks for .{name} of what has no parts")


def _length(value: Value) -> int:
    if isinstance(value, str):
        return len(value.encode())
    if not isinstance(value, Sequence):
        raise BadTemplate("it asks for the length of what has none")
    return len(value)


def _indexed(of: Value, at: Value) -> Value:
    if isinstance(of, str) or not isinstance(of, Sequence) or type(at) is not int:
        raise BadTemplate("it uses index on what is not a list")
    if not 0 <= at < len(of):
        raise BadTemplate(f"it asks for number {at} of {len(of)}")
    return of[at]
