"""The events that a child streams, as far as the dialects read them alike; texts stay JSON.

A piece of a text never ends within a character or an escape, so that pieces are joined undecoded.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from proxy.child.refusals import event_error
from proxy.errors import ChildFailed, UpstreamBroken

NULL = msgspec.Raw(b"null")
ABSENT = msgspec.Raw()


class Event(msgspec.Struct):
    """What any event may be instead of the one that was waited for."""

    error: msgspec.Raw = ABSENT


class Function(msgspec.Struct):
    """The function of a tool call, or a piece of it."""

    name: str | None = None
    arguments: msgspec.Raw = NULL


class ToolCall(msgspec.Struct):
    """A tool call, or a piece of it."""

    index: int = 0
    id: str | None = None
    function: Function = msgspec.field(default_factory=Function)


class Cached(msgspec.Struct):
    """The part of a prompt that was there already."""

    cached_tokens: int = 0


class TokenUsage(msgspec.Struct):
    """The last chunk's `usage`, in tokens."""

    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: Cached = msgspec.field(default_factory=Cached)


class Delta(msgspec.Struct):
    """What a chunk of /v1/chat/completions adds to the message."""

    content: msgspec.Raw = NULL
    reasoning_content: msgspec.Raw = NULL
    tool_calls: list[ToolCall] | None = None


E = TypeVar("E", bound=Event)


def read_event(event: bytes, decoder: msgspec.json.Decoder[E], socket_path: str) -> E:
    """An event's payload. Raises ChildFailed for an error, UpstreamBroken for what is no event."""
    try:
        told = decoder.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UpstreamBroken(socket_path, f"an event of another shape ({exc})") from exc
    if told.error is not ABSENT:
        raise ChildFailed(event_error(event))
    return told


class JsonText:
    """A JSON string put together from its pieces, without decoding them."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, raw: msgspec.Raw) -> None:
        """Takes a piece; null and absent members are none."""
        part = bytes(raw)
        if part[:1] == b'"':
            self._parts.append(part[1:-1])

    def __bool__(self) -> bool:
        return bool(self._parts)

    def joined(self) -> msgspec.Raw:
        """The whole string."""
        return msgspec.Raw(b'"' + b"".join(self._parts) + b'"')


class ToolCalls:
    """Tool calls put together from their pieces."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[int, tuple[ToolCall, JsonText]] = {}

    def add(self, pieces: Iterable[ToolCall]) -> None:
        """Takes the pieces of one chunk."""
        for piece in pieces:
            known, arguments = self._calls.setdefault(piece.index, (piece, JsonText()))
            known.id = known.id or piece.id
            known.function.name = known.function.name or piece.function.name
            arguments.add(piece.function.arguments)

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __iter__(self) -> Iterator[tuple[ToolCall, msgspec.Raw]]:
        """Each call with its arguments, a JSON string, by index."""
        for index in sorted(self._calls):
            call, arguments = self._calls[index]
            yield call, arguments.joined()
