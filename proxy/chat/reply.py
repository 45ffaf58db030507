"""A reply in the making, out of what a child streams on /v1/chat/completions.

For dialects that are told as a chat: thoughts, texts and tool calls, one after another; texts stay
JSON. It knows no dialect.
"""

from collections.abc import Iterator
from enum import Enum

import msgspec

from proxy.child.chunks import Delta, Event, JsonText, TokenUsage, ToolCall, read_event
from proxy.child.sse import DONE, EventReader
from proxy.child.timings import Timings
from proxy.errors import StreamCut, UpstreamBroken

EMPTY = msgspec.Raw(b'""')


class _Progress(msgspec.Struct):
    total: int = 0
    cache: int = 0


class _Choice(msgspec.Struct):
    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class _Chunk(Event):
    choices: tuple[_Choice, ...] = ()
    created: int = 0
    id: str = ""
    model: str = ""
    usage: TokenUsage | None = None
    timings: Timings | None = None
    prompt_progress: _Progress | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class PartKind(Enum):
    """What a part of a reply is."""

    THOUGHT = "thought"
    TEXT = "text"
    CALL = "call"


class Part:
    """A thought, a text or a tool call; the number is its place in the reply."""

    __slots__ = ("call", "kind", "number", "text")

    def __init__(self, kind: PartKind, number: int, call: ToolCall | None = None) -> None:
        self.kind, self.number = kind, number
        self.call = call or ToolCall()
        self.text = JsonText()
        """Of a call: its arguments, JSON in a JSON string."""

    @property
    def call_id(self) -> str:
        """A tool call's id, as the child gave it."""
        return self.call.id or f"call_{self.number}"

    @property
    def name(self) -> str:
        """A tool call's function."""
        return self.call.function.name or ""


class ChatReply:
    """What has been heard of one reply: its parts, and what it cost so far."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._events = EventReader(socket_path)
        self._calls: dict[int, Part] = {}
        self.parts: list[Part] = []
        self.id = self.model = ""
        self.created = 0
        self.n_prompt = self.n_cached = self.n_decoded = 0
        """Tokens. Those of the prompt are known before the first of the reply."""
        self.n_thought = 0
        """Tokens decoded up to the end of the thoughts, where each chunk tells its timings."""
        self.finish: str | None = None
        self.timings: Timings | None = None
        self._done = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """What `chunk` adds. Raises ChildFailed at an error event, UpstreamBroken."""
        for event in self._events.feed(chunk):
            if event == DONE:
                self._done = True
                continue
            told = read_event(event, _CHUNK, self._socket_path)
            self._note(told)
            for choice in told.choices:
                self.finish = choice.finish_reason or self.finish
                if _says(choice.delta.reasoning_content):
                    self.n_thought = self.n_decoded
                yield choice.delta

    def _note(self, told: _Chunk) -> None:
        self.id, self.model, self.created = told.id, told.model, told.created
        if told.prompt_progress is not None:
            self.n_prompt, self.n_cached = told.prompt_progress.total, told.prompt_progress.cache
        if told.timings is not None:
            self.timings = told.timings
            self.n_decoded = told.timings.predicted_n
        if told.usage is not None:
            self.n_prompt = told.usage.prompt_tokens
            self.n_cached = told.usage.prompt_tokens_details.cached_tokens
            self.n_decoded = told.usage.completion_tokens

    def pieces(self, delta: Delta) -> Iterator[tuple[Part, msgspec.Raw]]:
        """The pieces of text in `delta`, each with the part that it was added to.

        Raises UpstreamBroken for a tool call that goes on after another part began.
        """
        if _says(delta.reasoning_content):
            yield self._added(self._part(PartKind.THOUGHT), delta.reasoning_content)
        if _says(delta.content):
            yield self._added(self._part(PartKind.TEXT), delta.content)
        for call in delta.tool_calls or ():
            piece = call.function.arguments
            yield self._added(self._call(call), piece if _says(piece) else EMPTY)

    def _added(self, part: Part, piece: msgspec.Raw) -> tuple[Part, msgspec.Raw]:
        part.text.add(piece)
        return part, piece

    def _part(self, kind: PartKind) -> Part:
        if not self.parts or self.parts[-1].kind is not kind:
            self.parts.append(Part(kind, len(self.parts)))
        return self.parts[-1]

    def _call(self, told: ToolCall) -> Part:
        part = self._calls.get(told.index)
        if part is None:
            part = self._calls[told.index] = Part(PartKind.CALL, len(self.parts), told)
            self.parts.append(part)
        elif part is not self.parts[-1]:
            raise UpstreamBroken(self._socket_path, "a tool call went on after its end")
        return part

    def check_end(self) -> None:
        """Raises StreamCut."""
        if not self._done or self.finish is None:
            raise StreamCut(self._socket_path)


def _says(raw: msgspec.Raw) -> bool:
    """Whether it is a string with something in it."""
    return len(memoryview(raw)) > 2 and bytes(memoryview(raw)[:1]) == b'"'
