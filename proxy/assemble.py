"""One JSON reply out of a stream of chunks, equal to what the child would have sent unstreamed.

llama-server does not notice that the caller of an unstreamed request left, so that all go upstream
as streams.
"""

import msgspec

from proxy.chunks import ABSENT, NULL, Delta, Event, JsonText, ToolCall, ToolCalls, read_event
from proxy.errors import UpstreamBroken
from proxy.forward import Timings
from proxy.sse import DONE

STREAMED = b'"stream":true,"stream_options":{"include_usage":true},"return_progress":true'
"""The members that turn a caller's unstreamed request into one that can be assembled."""


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: Delta = msgspec.field(default_factory=Delta)
    text: msgspec.Raw = NULL
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Chunk(Event):
    choices: tuple[_Choice, ...] = ()
    created: int = 0
    id: str = ""
    model: str = ""
    system_fingerprint: str = ""
    usage: msgspec.Raw = ABSENT
    timings: msgspec.Raw = ABSENT


_CHUNK = msgspec.json.Decoder(_Chunk)
_TIMINGS = msgspec.json.Decoder(Timings)


class Assembly:
    """Collects the chunks of /v1/chat/completions or /v1/completions and gives the whole reply."""

    def __init__(self, socket_path: str, *, chat: bool) -> None:
        self._socket_path, self._chat = socket_path, chat
        self._text, self._reasoning, self._tools = JsonText(), JsonText(), ToolCalls()
        self._logprobs: list[msgspec.Raw] | None = None
        self._finish: str | None = None
        self._last = _Chunk()
        self._usage = self._timings = ABSENT
        self._done = False

    def add(self, event: bytes) -> None:
        """Takes one event's payload. Raises ChildFailed for an error event, UpstreamBroken."""
        if event == DONE:
            self._done = True
            return
        chunk = self._last = read_event(event, _CHUNK, self._socket_path)
        if chunk.timings != ABSENT:
            self._timings = chunk.timings
        if chunk.usage != ABSENT:
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
        if choice.delta.tool_calls is not None:
            self._tools.add(choice.delta.tool_calls)

    @property
    def timings(self) -> Timings | None:
        """What the work took, once told."""
        return _TIMINGS.decode(self._timings) if self._timings != ABSENT else None

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
        if self._usage != ABSENT:
            reply["usage"] = self._usage
        reply["id"] = last.id
        if self._timings != ABSENT:
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
            message["tool_calls"] = [_tool_call(*call) for call in self._tools]
        return message


def _tool_call(call: ToolCall, arguments: msgspec.Raw) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function, "id": call.id or ""}
