"""What a template makes of a conversation, as Ollama runs it.

A template that speaks of .Messages is run once. One that does not is run once for each turn, a
user's message and its answer; the last run ends where the answer is to be put.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from planners.templates.go_nodes import (
    Block,
    Dot,
    Field,
    Node,
    Output,
    names_field,
)
from planners.templates.go_render import rendered
from planners.templates.go_syntax import parsed
from planners.templates.go_values import Message, Raw, Tools, Value

_ANSWER = Output(Field(Dot(), "Response"))


class Said(Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str
    thinking: str = ""
    tool_name: str = ""
    tool_calls: tuple[object, ...] = ()
    """JSON objects, `{"function": {"name": …, "arguments": {…}}}`."""


class Template(Struct, frozen=True):
    """A TEMPLATE layer that is understood."""

    nodes: tuple[Node, ...]
    takes_messages: bool
    """It says itself how messages follow one another."""
    takes_tools: bool
    takes_suffix: bool


def read(source: str) -> Template:
    """A TEMPLATE layer's text. Raises BadTemplate."""
    nodes = parsed(source)
    takes_messages = names_field(nodes, "Messages")
    if not (takes_messages or names_field(nodes, "Response")):
        nodes += (_ANSWER,)
    return Template(
        nodes,
        takes_messages=takes_messages,
        takes_tools=names_field(nodes, "Tools"),
        takes_suffix=names_field(nodes, "Suffix"),
    )


def prompt(template: Template, said: Sequence[Said], *, tools: Sequence[object] = ()) -> str:
    """The text that a model is to go on with. Raises BadTemplate."""
    merged = list(_merged(said))
    if not template.takes_messages:
        return "".join(_turns(template.nodes, merged))
    system = "\n\n".join(one.content for one in merged if one.role == "system")
    return rendered(
        template.nodes,
        {
            "System": system,
            "Messages": [_message(one) for one in merged],
            "Tools": Tools(tuple(_tool(tool) for tool in tools)),
            "Response": "",
        },
    )


def infill(template: Template, *, prefix: str, suffix: str) -> str:
    """The text for what goes between two. Raises BadTemplate."""
    return rendered(template.nodes, {"Prompt": prefix, "Suffix": suffix, "Response": ""})


def _merged(said: Sequence[Said]) -> Iterator[Said]:
    """What one role says in a row is one message; tools' answers stay apart."""
    before: Said | None = None
    for one in said:
        if before is not None and before.role == one.role != "tool":
            before = replace(before, content=f"{before.content}\n\n{one.content}")
            continue
        if before is not None:
            yield before
        before = one
    if before is not None:
        yield before


def _turns(nodes: tuple[Node, ...], said: Sequence[Said]) -> Iterator[str]:
    turn = {"System": "", "Prompt": "", "Response": ""}
    for one in said:
        name = {"system": "System", "user": "Prompt", "assistant": "Response"}.get(one.role)
        if name is None:
            continue
        is_over = turn["Response"] or (name == "System" and turn["Prompt"])
        if is_over and name != "Response":
            yield rendered(nodes, turn)
            turn = dict.fromkeys(turn, "")
        turn[name] = one.content
    yield rendered(until_answer(nodes)[0], turn)


def until_answer(nodes: tuple[Node, ...]) -> tuple[tuple[Node, ...], bool]:
    """The nodes up to where the answer is printed, that one included; whether it is."""
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Block):
            body, is_there = until_answer(node.body)
            otherwise, is_there_else = ((), False) if is_there else until_answer(node.otherwise)
            kept.append(replace(node, body=body, otherwise=otherwise))
            if is_there or is_there_else:
                return tuple(kept), True
            continue
        kept.append(node)
        if node == _ANSWER:
            return tuple(kept), True
    return tuple(kept), False


def _message(one: Said) -> Message:
    calls = tuple(_call(call) for call in one.tool_calls)
    return Message(
        {
            "Role": one.role,
            "Content": one.content,
            "Thinking": one.thinking,
            "ToolName": one.tool_name,
            "ToolCalls": Tools(calls),
        }
    )


def _tool(tool: object) -> Raw:
    function = _part(tool, "function")
    fields: dict[str, Value] = {
        "Name": _text(function, "name"),
        "Description": _text(function, "description"),
        "Parameters": Raw(_part(function, "parameters"), {}),
    }
    return Raw(tool, {"Type": _text(tool, "type"), "Function": Raw(function, fields)})


def _call(call: object) -> Raw:
    function = _part(call, "function")
    fields: dict[str, Value] = {
        "Name": _text(function, "name"),
        "Arguments": Raw(_part(function, "arguments"), {}),
    }
    return Raw(call, {"Function": Raw(function, fields)})


def _part(of: object, name: str) -> object:
    return of.get(name, {}) if isinstance(of, Mapping) else {}


def _text(of: object, name: str) -> str:
    value = of.get(name) if isinstance(of, Mapping) else None
    return value if isinstance(value, str) else ""
