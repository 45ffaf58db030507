"""What templates are about: a conversation's values, as Go would print, compare and encode them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from planners.templates.go_nodes import BadTemplate

NO_VALUE = "<no value>"
"""What Go prints where there is nothing."""

_HTML = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
"""What Go's encoding/json escapes so that JSON may stand in a page."""


class Raw(msgspec.Struct, frozen=True):
    """A value of JSON that callers gave, printed and encoded as such: a tool, its arguments."""

    value: object
    fields: "Mapping[str, Value]"
    """By the names that templates know them by; empty where they know none."""


class Message(msgspec.Struct, frozen=True):
    """One message; it has no text of its own."""

    fields: "Mapping[str, Value]"


Value = str | int | bool | None | Raw | Message | Sequence["Value"]


@dataclass(frozen=True, slots=True)
class Tools(Sequence[Value]):
    """Tools, or calls of them: many, and printed as the JSON of all."""

    items: tuple[Raw, ...]

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        return self.items[at]

    def __len__(self) -> int:
        return len(self.items)


def is_true(value: Value) -> bool:
    """As `if` sees it: what is empty is not."""
    return True if isinstance(value, Raw | Message) else bool(value)


def printed(value: Value) -> str:
    """As an action prints it. Raises BadTemplate for what has no text of its own."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return NO_VALUE
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, Raw | Tools):
        return encoded(value)
    raise BadTemplate("it prints messages whole")


def encoded(value: Value) -> str:
    """As JSON. Raises BadTemplate for messages, whose JSON is Go's own business."""
    text = msgspec.json.encode(_plain(value)).decode()
    for char, escape in _HTML.items():  # str.translate takes twenty times as long
        text = text.replace(char, escape)
    return text


def _plain(value: Value) -> object:
    if isinstance(value, Raw):
        return value.value
    if isinstance(value, Tools):
        return [item.value for item in value.items]
    if isinstance(value, Message) or not isinstance(value, str | int | bool | None):
        raise BadTemplate("it encodes messages whole")
    return value


def same(one: Value, other: Value) -> bool:
    """As `eq` compares. Raises BadTemplate for values of two kinds, and for those without parts."""
    if type(one) is not type(other) or not isinstance(one, str | int | bool):
        raise BadTemplate("it compares values that do not compare")
    return one == other
