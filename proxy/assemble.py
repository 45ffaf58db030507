"""One JSON reply out of a stream of chunks, equal to what the child would have sent unstreamed.

llama-server does not notice that the caller of an unstreamed request left, so all go upstream as
streams. Texts are joined as written in JSON: a piece never ends within a character or an escape.
"""

import msgspec

from proxy.errors import ChildFailed, UpstreamBroken
from proxy.forward import Timings, event_error
from proxy.sse import DONE

STREAMED = b'"stream":true,"stream_options":{"include_usage":true},"return_progress":true'
"""The members that turn a caller's unstreamed request into one that can be assembled."""

_NULL = msgspec.Raw(b"null")
_ABSENT = msgspec.Raw()


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: msgspec.Raw = _NULL


class _ToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)


class _Delta(msgspec.Struct):
    content: msgspec.Raw = _NULL
    reasoning_content: msgspec.Raw = _NULL
    tool_calls: list[_ToolCall] | None = None


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta = msgspec.field(default_factory=_Delta)
    text: msgspec.Raw = _NULL
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    created: int = 0
    id: str = ""
    model: str = ""
    system_fingerprint: str = ""
    usage: msgspec.Raw = _ABSENT
    timings: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_CHUNK = msgspec.json.Decoder(_Chunk)
_TIMINGS = msgspec.json.Decoder(Timings)


class _Text:
    """JSON strings joined without decoding."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, raw: msgspec.Raw) -> None:
        part = bytes(raw)
        if part[:1] == b'"':
            self._parts.append(part[1:-1])

    def __bool__(self) -> bool:
        return bool(self._parts)

    def joined(self) -> msgspec.Raw:
        return msgspec.Raw(b'"' + b"".join(self._parts) + b'"')


class Assembly:
    """Collects the chunks of /v1/chat/completions or /v1/completions and gives the whole reply."""

    def __init__(self, socket_path: str, *, chat: bool) -> None:
        self._socket_path, self._chat = socket_path, chat
        self._text, self._reasoning = _Text(), _Text()
        self._tools: dict[int, tuple[_ToolCall, _Text]] = {}
        self._logprobs: list[msgspec.Raw] | None = None
        self._finish: str | None = None
        self._last = _Chunk()
        self._usage = self._timings = _ABSENT
        self._done = False

    def add(self, event: bytes) -> None:
        """Takes one event's payload. Raises ChildFailed for an error event, UpstreamBroken."""
        if event == DONE:
            self._done = True
            return
        try:
            chunk = _CHUNK.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise UpstreamBroken(self._socket_path, f"an event that is no chunk ({exc})") from exc
        if chunk.error != _ABSENT:
            raise ChildFailed(event_error(event))
        self._last = chunk
        if chunk.timings != _ABSENT:
            self._timings = chunk.timings
        if chunk.usage != _ABSENT:
            self._usage = chunk.usage
        for choice in chunk.choices:
            self._add_choice(choice)

    def _add_choice(self, choice: _Choice) -> None:
        self._text.add(choice.delta.content if self._chat else choice.text)
        self._reasoning.add(choice.delta.reasoning_content)
        self._finish = choice.finish_reason or self._finish
        if choice.logprobs is not None and choice.logprobs.content is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += choice.logprobs.content
        for call in choice.delta.tool_calls or ():
            known, arguments = self._tools.setdefault(call.index, (call, _Text()))
            known.id = known.id or call.id
            known.function.name = known.function.name or call.function.name
            arguments.add(call.function.arguments)

    @property
    def timings(self) -> Timings | None:
        """What the work took, once told."""
        return _TIMINGS.decode(self._timings) if self._timings != _ABSENT else None

    def reply(self) -> bytes:
        """The whole reply. Raises UpstreamBroken where the stream ended before its end."""
        if not self._done or self._finish is None:
            raise UpstreamBroken(self._socket_path, "its stream ended before its end")
        last = self._last
        reply: dict[str, object] = {
            "choices": [self._choice()],
            "created": last.created,
            "model": last.model,
            "system_fingerprint": last.system_fingerprint,
            "object": "chat.completion" if self._chat else "text_completion",
        }
        if self._usage != _ABSENT:
            reply["usage"] = self._usage
        reply["id"] = last.id
        if self._timings != _ABSENT:
            reply["timings"] = self._timings
        return msgspec.json.encode(reply)

    def _choice(self) -> dict[str, object]:
        logprobs = {"content": self._logprobs} if self._logprobs is not None else None
        if not self._chat:
            return {
                "text": self._text.joined(),
                "index": 0,
                "logprobs": logprobs,
                "finish_reason": self._finish,
            }
        choice: dict[str, object] = {
            "finish_reason": self._finish,
            "index": 0,
            "message": self._message(),
        }
        if logprobs is not None:
            choice["logprobs"] = logprobs
        return choice

    def _message(self) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant"}
        message["content"] = self._text.joined() if self._text or not self._tools else None
        if self._reasoning:
            message["reasoning_content"] = self._reasoning.joined()
        if self._tools:
            message["tool_calls"] = [self._tool_call(index) for index in sorted(self._tools)]
        return message

    def _tool_call(self, index: int) -> dict[str, object]:
        call, arguments = self._tools[index]
        function = {"name": call.function.name, "arguments": arguments.joined()}
        return {"type": "function", "function": function, "id": call.id or ""}
