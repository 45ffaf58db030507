"""Responses: the object, or the numbered events that it is streamed as."""

from collections.abc import Iterable

import msgspec

from proxy.chat.reply import ChatReply, Part, PartKind
from proxy.child.chunks import NULL, Delta
from proxy.errors import Answer
from proxy.responses.requests import ResponseRequest

_PREFIXES = {PartKind.THOUGHT: "rs", PartKind.TEXT: "msg", PartKind.CALL: "fc"}
_PIECES = {
    PartKind.THOUGHT: "response.reasoning_text",
    PartKind.TEXT: "response.output_text",
    PartKind.CALL: "response.function_call_arguments",
}
_WHOLE = {PartKind.THOUGHT: "text", PartKind.TEXT: "text", PartKind.CALL: "arguments"}
_DELTA = (
    b'event: %b.delta\ndata: {"type":"%b.delta","sequence_number":%d,"item_id":%b,'
    b'"output_index":%d,%b"delta":%b}\n\n'
)
_FAILURES = {"context_length_exceeded": "invalid_prompt"}
_ONLY_CONTENT = b'"content_index":0,'
_LOGPROBS = b'"logprobs":[],'


class ResponseWriter:
    """Words one reply to `asked`; of all that is told of it, the id is the same."""

    is_over = False

    def __init__(
        self,
        reply: ChatReply,
        *,
        asked: ResponseRequest,
        unique: str,
        created_at: int,
        n_dropped: int | None = None,
    ) -> None:
        self._reply, self._asked = reply, asked
        self._unique, self._created_at, self._n_dropped = unique, created_at, n_dropped
        self._n_events = 0
        self._open: Part | None = None

    def add(self, delta: Delta) -> bytes:
        """The events for what was just heard."""
        events = []
        for part, piece in self._reply.pieces(delta):
            if part is not self._open:
                events += [*self._starts(), *self._closed("completed"), *self._opened(part)]
            if len(memoryview(piece)) > 2:
                events.append(self._piece(part, piece))
        return b"".join(events)

    def end(self) -> bytes:
        """The end of what is open, and the whole response."""
        status = self._status()
        events = [*self._starts(), *self._closed(status)]
        last = self._event(f"response.{status}", response=self._response(status))
        return b"".join([*events, last])

    def whole(self) -> bytes:
        """The response."""
        return msgspec.json.encode(self._response(self._status()))

    def failed(self, said: Answer) -> bytes:
        """The last event of a stream that broke off."""
        code = _FAILURES.get(said.code or "", "server_error")
        response = self._response("failed", error={"code": code, "message": said.message})
        return b"".join([*self._starts(), self._event("response.failed", response=response)])

    def _starts(self) -> Iterable[bytes]:
        if self._n_events:
            return ()
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def _opened(self, part: Part) -> Iterable[bytes]:
        self._open = part
        item = self._item(part, "in_progress", content=())
        yield self._event("response.output_item.added", output_index=part.number, item=item)
        if part.kind is not PartKind.CALL:
            told = _content(part, text=msgspec.Raw(b'""'))
            yield self._event("response.content_part.added", **self._at(part), part=told)

    def _piece(self, part: Part, piece: msgspec.Raw) -> bytes:
        kind = _PIECES[part.kind].encode()
        item_id = msgspec.json.encode(self._item_id(part))
        more = b"" if part.kind is PartKind.CALL else _ONLY_CONTENT
        if part.kind is PartKind.TEXT:
            more += _LOGPROBS
        number = self._numbered()
        return _DELTA % (kind, kind, number, item_id, part.number, more, piece)

    def _closed(self, status: str) -> Iterable[bytes]:
        part, self._open = self._open, None
        if part is None:
            return
        told: dict[str, object] = {_WHOLE[part.kind]: part.text.joined()}
        if part.kind is PartKind.TEXT:
            told["logprobs"] = []
        if part.kind is PartKind.CALL:
            told["name"] = part.name
        yield self._event(f"{_PIECES[part.kind]}.done", **self._at(part), **told)
        if part.kind is not PartKind.CALL:
            told = _content(part, text=part.text.joined())
            yield self._event("response.content_part.done", **self._at(part), part=told)
        item = self._item(part, status)
        yield self._event("response.output_item.done", output_index=part.number, item=item)

    def _at(self, part: Part) -> dict[str, object]:
        at: dict[str, object] = {"item_id": self._item_id(part), "output_index": part.number}
        return at if part.kind is PartKind.CALL else {**at, "content_index": 0}

    def _event(self, kind: str, **told: object) -> bytes:
        data = {"type": kind, "sequence_number": self._numbered(), **told}
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(data))

    def _numbered(self) -> int:
        number, self._n_events = self._n_events, self._n_events + 1
        return number

    def _status(self) -> str:
        return "incomplete" if self._reply.finish == "length" else "completed"

    def _item_id(self, part: Part) -> str:
        return f"{_PREFIXES[part.kind]}_{self._unique}{part.number}"

    def _item(
        self, part: Part, status: str, *, content: Iterable[object] | None = None
    ) -> dict[str, object]:
        item: dict[str, object] = {"id": self._item_id(part), "status": status}
        if content is None:
            content = [_content(part, text=part.text.joined())]
        match part.kind:
            case PartKind.THOUGHT:
                return {"type": "reasoning", **item, "summary": [], "content": list(content)}
            case PartKind.TEXT:
                return {"type": "message", **item, "role": "assistant", "content": list(content)}
            case PartKind.CALL:
                arguments = part.text.joined() if status != "in_progress" else ""
                told = {"call_id": part.call_id, "name": part.name, "arguments": arguments}
                return {"type": "function_call", **item, **told}

    def _output(self, status: str) -> list[dict[str, object]]:
        """The items so far; the last of what did not end well did not end either."""
        if status == "in_progress":
            return []
        parts = self._reply.parts
        last = "completed" if status == "completed" else "incomplete"
        whole = [self._item(part, "completed") for part in parts[:-1]]
        return [*whole, *(self._item(part, last) for part in parts[-1:])]

    def _response(self, status: str, *, error: object = None) -> dict[str, object]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        done_at = self._reply.created if status == "completed" else None
        response = {
            "id": f"resp_{self._unique}",
            "object": "response",
            "created_at": self._created_at,
            "completed_at": done_at,
            "status": status,
            "error": error,
            "incomplete_details": cut,
            "model": self._reply.model or self._asked.model,
            "output": self._output(status),
            **_repeated(self._asked),
            "usage": self._usage() if status in ("completed", "incomplete") else None,
        }
        if self._n_dropped is not None:
            response["prompt_tokens_dropped"] = self._n_dropped
        return response

    def _usage(self) -> dict[str, object]:
        reply = self._reply
        return {
            "input_tokens": reply.n_prompt,
            "input_tokens_details": {"cached_tokens": reply.n_cached},
            "output_tokens": reply.n_decoded,
            "output_tokens_details": {"reasoning_tokens": reply.n_thought},
            "total_tokens": reply.n_prompt + reply.n_decoded,
        }


def _content(part: Part, *, text: msgspec.Raw) -> dict[str, object]:
    if part.kind is PartKind.THOUGHT:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _repeated(asked: ResponseRequest) -> dict[str, object]:
    """What a response repeats of its request, and what is never so."""
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": _or(asked.metadata, b"{}"),
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "reasoning": asked.reasoning,
        "temperature": asked.temperature,
        "text": _or(asked.text, b'{"format":{"type":"text"}}'),
        "tool_choice": _or(asked.tool_choice, b'"auto"'),
        "tools": _or(asked.tools, b"[]"),
        "top_p": asked.top_p,
        "background": False,
        "previous_response_id": None,
        "store": False,
        "truncation": asked.truncation or "disabled",
    }


def _or(told: msgspec.Raw, default: bytes) -> msgspec.Raw:
    return msgspec.Raw(default) if told == NULL else told
