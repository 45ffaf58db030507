"""What a caller has of a stream already: kept as it went out, read only if its child is lost.

Most of it is kept as it is, as what went out is not changed; a long one is packed: a child says its
frame with each word, ten times as long as that. Who asks afterwards pays for reading.
"""

import sys
import zlib
from enum import Enum

import msgspec

from proxy.child.sse import DONE

KEPT_BYTES = 16 << 20  # of one stream; 60 000 chunks, or a tenth of them with log probabilities
PACKED_BYTES = 64 << 10  # at once: 250 chunks, packed in half a millisecond to a thirtieth
PARTS = 64  # of a chunk each, beyond which they are joined: alone each takes a fifth more
FASTEST = 1  # of zlib's levels; the others take longer for hardly less


class Kind(Enum):
    """What a child's stream is made of."""

    CHAT = b"/v1/chat/completions"
    TEXT = b"/v1/completions"
    COMPLETION = b"/completion"
    INFILL = b"/infill"

    @property
    def is_raw(self) -> bool:
        """True for llama-server's own chunks, which have no choices and no end mark."""
        return self in (Kind.COMPLETION, Kind.INFILL)


KINDS = {kind.value: kind for kind in Kind}
"""By the route that it is a reply of."""

Channel = tuple[int, str]
"""One text that grows through a stream: of which choice, and which of its texts."""

CONTENT, REASONING = "content", "reasoning"


class Delivered:
    """The events that went out to one caller; asked for nothing while all goes well."""

    __slots__ = ("_last", "_last_bytes", "_packed", "is_whole", "kept_bytes")

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._last: list[bytes] = []
        self._last_bytes = 0
        self.kept_bytes = 0
        """Of what went out."""
        self.is_whole = True
        """False once it is more than is kept: the stream can then not be gone on with."""

    def add(self, events: bytes) -> None:
        """Takes whole events, as they went out."""
        kept_bytes = self.kept_bytes + len(events)
        if kept_bytes > KEPT_BYTES:
            self._packed, self._last, self.kept_bytes, self.is_whole = [], [], 0, False
            return
        self._last.append(events)
        self.kept_bytes = kept_bytes
        self._last_bytes += len(events)
        if self._last_bytes >= PACKED_BYTES:
            self._packed.append(zlib.compress(b"".join(self._last), FASTEST))
            self._last, self._last_bytes = [], 0
        elif len(self._last) > PARTS:
            self._last = [b"".join(self._last)]

    @property
    def held_bytes(self) -> int:
        """Of memory that this takes."""
        lists = (self._packed, self._last)
        return sum(sys.getsizeof(kept) + sum(map(sys.getsizeof, kept)) for kept in lists)

    def events(self) -> list[bytes]:
        """The payloads, without comments."""
        told = b"".join([*map(zlib.decompress, self._packed), *self._last]).split(b"\n\n")
        return [event[6:] for event in told if event.startswith(b"data: ")]


class Usage(msgspec.Struct, omit_defaults=True):
    """What OpenAI's dialect says a reply took."""

    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0


class Timings(msgspec.Struct):
    """What a child says its work took, cached tokens apart."""

    predicted_n: int = 0
    predicted_ms: float = 0.0
    prompt_n: int = 0
    cache_n: int = 0


class Progress(msgspec.Struct):
    """How far a prompt was read."""

    total: int = 0
    cache: int = 0
    time_ms: float = 0.0


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list["_Piece"] | None = None


class _Called(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Piece(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Called = msgspec.field(default_factory=_Called)


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta = msgspec.field(default_factory=_Delta)
    text: str | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One payload, as far as any kind of stream is read here."""

    choices: tuple[_Choice, ...] = ()
    id: str = ""
    created: int = 0
    model: str = ""
    system_fingerprint: str = ""
    usage: Usage | None = None
    timings: Timings | None = None
    prompt_progress: Progress | None = None
    index: int = 0
    content: str | None = None
    stop: bool = False
    tokens_evaluated: int = 0
    tokens_predicted: int = 0


_CHUNK = msgspec.json.Decoder(Chunk)


class Unreadable(Exception):
    """A payload of another shape."""


def read_chunk(event: bytes) -> Chunk:
    """A payload's fields. Raises Unreadable."""
    try:
        return _CHUNK.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise Unreadable(str(exc)) from exc


def pieces(chunk: Chunk, kind: Kind) -> list[tuple[Channel, str]]:
    """What a payload adds to which text, in its order."""
    if kind.is_raw:
        if chunk.prompt_progress is not None or not chunk.content:
            return []
        return [((chunk.index, CONTENT), chunk.content)]
    found: list[tuple[Channel, str]] = []
    for choice in chunk.choices:
        at, delta = choice.index, choice.delta
        for name, text in (
            (CONTENT, choice.text),
            (REASONING, delta.reasoning_content),
            (CONTENT, delta.content),
        ):
            if text:
                found.append(((at, name), text))
        for call in delta.tool_calls or ():
            for name, text in (("name", call.function.name), ("", call.function.arguments)):
                if text:
                    found.append(((at, f"tool {call.index} {name}"), text))
    return found


class Told(msgspec.Struct):
    """What the caller has, read."""

    kind: Kind
    texts: dict[Channel, str] = msgspec.field(default_factory=dict)
    finishes: dict[int, str] = msgspec.field(default_factory=dict)
    """Why each choice ended, of those that have."""
    call_ids: dict[tuple[int, int], str] = msgspec.field(default_factory=dict)
    """Random ones, by choice and call: the caller answers under these."""
    roles: set[int] = msgspec.field(default_factory=set)
    """Choices whose role was told."""
    first: Chunk = msgspec.field(default_factory=Chunk)
    """Whose id and time the whole reply has."""
    usage: Usage | None = None
    is_done: bool = False
    predicted_n: int | None = None
    """Tokens written, where the caller asked for timings with each."""
    prompt: Progress | None = None
    """How the prompt was read."""

    @property
    def content(self) -> str:
        """Of the first choice."""
        return self.texts.get((0, CONTENT), "")

    @property
    def has_text(self) -> bool:
        """False while the caller has nothing that a model wrote."""
        return bool(self.texts)

    @property
    def has_calls(self) -> bool:
        """True once a tool call was begun."""
        return any(name.startswith("tool ") for _, name in self.texts)

    @property
    def has_reasoning(self) -> bool:
        """True once a thought was told."""
        return any(name == REASONING for _, name in self.texts)


def told_by(delivered: Delivered, kind: Kind) -> Told:
    """What went out so far. Raises Unreadable for what no child writes."""
    told = Told(kind)
    for event in delivered.events():
        if event == DONE:
            told.is_done = True
            continue
        _add(told, read_chunk(event))
    return told


def _add(told: Told, chunk: Chunk) -> None:
    if chunk.prompt_progress is not None:
        told.prompt = chunk.prompt_progress
        if not pieces(chunk, told.kind):  # which most callers never see
            return
    if not told.first.id and not told.first.model:
        told.first = chunk
    for channel, text in pieces(chunk, told.kind):
        told.texts[channel] = told.texts.get(channel, "") + text
    for choice in chunk.choices:
        if choice.delta.role is not None:
            told.roles.add(choice.index)
        if choice.finish_reason is not None:
            told.finishes[choice.index] = choice.finish_reason
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                told.call_ids[choice.index, call.index] = call.id
    if told.kind.is_raw and chunk.stop:
        told.finishes[chunk.index] = "stop"
        told.is_done = True
    told.usage = chunk.usage or told.usage
    if chunk.timings is not None:
        told.predicted_n = chunk.timings.predicted_n
