"""Anthropic's replies: one message, or the events that it is streamed as."""

from collections.abc import Mapping, Sequence

import msgspec

from proxy.anthropic.stops import StopSequences
from proxy.chat.reply import ChatReply, Part, PartKind
from proxy.child.chunks import Delta

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""This dialect's sign of life in a stream that has nothing to say yet; allowed anywhere."""

_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":'
_PIECE = {
    PartKind.THOUGHT: _DELTA + b'{"type":"thinking_delta","thinking":%b}}\n\n',
    PartKind.TEXT: _DELTA + b'{"type":"text_delta","text":%b}}\n\n',
    PartKind.CALL: _DELTA + b'{"type":"input_json_delta","partial_json":%b}}\n\n',
}
_SIGNATURE = _DELTA + b'{"type":"signature_delta","signature":""}}\n\n'
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessageWriter:
    """Words one reply; `is_over` once a stop sequence is met."""

    def __init__(self, reply: ChatReply, *, stops: tuple[str, ...] = ()) -> None:
        self._reply = reply
        self._stops = StopSequences(stops) if stops else None
        self._begun = False
        self._open: Part | None = None

    @property
    def is_over(self) -> bool:
        """True where a stop sequence was met."""
        return self._stops is not None and self._stops.hit is not None

    def add(self, delta: Delta) -> bytes:
        """The events for what was just heard."""
        if self.is_over:
            return b""
        if self._stops is not None:
            delta = _stopped(self._stops, delta)
        return self._events(delta)

    def _events(self, delta: Delta) -> bytes:
        events = []
        for part, piece in self._reply.pieces(delta):
            if part is not self._open:
                events += [*self._starts(), self._closed(), _event(_block_start(part))]
                self._open = part
            if len(memoryview(piece)) > 2:
                events.append(_PIECE[part.kind] % (part.number, piece))
        return b"".join(events)

    def _starts(self) -> list[bytes]:
        if self._begun:
            return []
        self._begun = True
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None}
        usage = {**self._prompt_usage(), "output_tokens": 0}
        return [_event({"type": "message_start", "message": {**message, "usage": usage}})]

    def _closed(self) -> bytes:
        part, self._open = self._open, None
        if part is None:
            return b""
        signature = _SIGNATURE % part.number if part.kind is PartKind.THOUGHT else b""
        return signature + _event({"type": "content_block_stop", "index": part.number})

    def end(self) -> bytes:
        """What was held back, and the end of the stream."""
        last = self._events(self._held())
        delta = {
            "type": "message_delta",
            "delta": self._stop(),
            "usage": {**self._prompt_usage(), "output_tokens": self._reply.n_decoded},
        }
        ends = [self._closed(), _event(delta), _event({"type": "message_stop"})]
        return b"".join([last, *self._starts(), *ends])

    def whole(self) -> bytes:
        """The message."""
        self._events(self._held())
        usage = {**self._prompt_usage(), "output_tokens": self._reply.n_decoded}
        content = [_block(part) for part in self._reply.parts]
        return msgspec.json.encode({**self._message(content), **self._stop(), "usage": usage})

    def _held(self) -> Delta:
        """The text that might have been the beginning of a stop sequence."""
        held = self._stops.rest() if self._stops is not None else ""
        return Delta(content=_json(held))

    def _message(self, content: Sequence[object]) -> dict[str, object]:
        return {
            "id": "msg_" + self._reply.id.removeprefix("chatcmpl-"),
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._reply.model,
        }

    def _stop(self) -> dict[str, object]:
        hit = self._stops.hit if self._stops is not None else None
        if hit is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": hit}
        reason = _STOP_REASONS.get(self._reply.finish or "", "end_turn")
        return {"stop_reason": reason, "stop_sequence": None}

    def _prompt_usage(self) -> dict[str, int]:
        """Tokens of the prompt, those apart that were still in the slot."""
        reply = self._reply
        return {
            "input_tokens": reply.n_prompt - reply.n_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reply.n_cached,
        }


def _stopped(stops: StopSequences, delta: Delta) -> Delta:
    """`delta` with as much of its text as may be told."""
    text = msgspec.json.decode(delta.content, type=str | None)
    told = stops.take(text) if text else ""
    calls = None if stops.hit is not None else delta.tool_calls
    if delta.tool_calls:
        told += stops.rest()  # a sequence is not looked for across a tool call
    return msgspec.structs.replace(delta, content=_json(told), tool_calls=calls)


def _json(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


def _event(told: Mapping[str, object]) -> bytes:
    kind = str(told["type"]).encode()
    return b"event: %b\ndata: %b\n\n" % (kind, msgspec.json.encode(told))


def _block_start(part: Part) -> dict[str, object]:
    block: dict[str, object]
    match part.kind:
        case PartKind.THOUGHT:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        case PartKind.TEXT:
            block = {"type": "text", "text": ""}
        case PartKind.CALL:
            block = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
    return {"type": "content_block_start", "index": part.number, "content_block": block}


def _block(part: Part) -> dict[str, object]:
    match part.kind:
        case PartKind.THOUGHT:
            return {"type": "thinking", "thinking": part.text.joined(), "signature": ""}
        case PartKind.TEXT:
            return {"type": "text", "text": part.text.joined()}
        case PartKind.CALL:
            told = _input(part)
            return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": told}


def _input(part: Part) -> object:
    """A call's arguments as an object; empty, as llama-server has it, where they were cut off."""
    arguments = msgspec.json.decode(part.text.joined(), type=str)
    try:
        return msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {}
