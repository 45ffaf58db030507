"""llama-server's events, read into the pieces that Ollama's replies are made of."""

from typing import Any, Protocol

import msgspec

from proxy.errors import ChildFailed, UpstreamBroken
from proxy.forward import Timings, event_error
from proxy.ollama.replies import EMPTY
from proxy.sse import DONE

_NULL = msgspec.Raw(b"null")
_ABSENT = msgspec.Raw()


class Piece(msgspec.Struct):
    """What one event adds to a reply; texts as JSON strings."""

    text: bytes = EMPTY
    thinking: bytes = b""
    logprobs: bytes = b""


class Reading(Protocol):
    """A stream of one of llama-server's routes."""

    finish: str | None
    """Why the reply ended; None until it has."""
    timings: Timings

    def read(self, event: bytes) -> Piece | None:
        """What an event adds, None where nothing. Raises ChildFailed, UpstreamBroken."""

    def tool_calls(self) -> bytes:
        """All tool calls as Ollama's JSON; empty where there is none."""


class _Probability(msgspec.Struct):
    token: str = ""
    logprob: float = 0.0
    top_logprobs: list["_Probability"] = []


class _Probabilities(msgspec.Struct):
    content: list[_Probability] | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)


class _Delta(msgspec.Struct):
    content: msgspec.Raw = _NULL
    reasoning_content: msgspec.Raw = _NULL
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None
    logprobs: _Probabilities | None = None


class _ChatEvent(msgspec.Struct):
    choices: list[_Choice] = []
    timings: Timings | None = None
    error: msgspec.Raw = _ABSENT


class _CompletionEvent(msgspec.Struct):
    content: msgspec.Raw = _NULL
    stop: bool = False
    stop_type: str = ""
    timings: Timings | None = None
    completion_probabilities: list[_Probability] | None = None
    error: msgspec.Raw = _ABSENT


_CHAT = msgspec.json.Decoder(_ChatEvent)
_COMPLETION = msgspec.json.Decoder(_CompletionEvent)


class ChatReading:
    """/v1/chat/completions."""

    def __init__(self, socket_path: str, *, top_logprobs: int) -> None:
        self._socket_path, self._top = socket_path, top_logprobs
        self.finish: str | None = None
        self.timings = Timings()
        self._calls: dict[int, _ToolCall] = {}

    def read(self, event: bytes) -> Piece | None:
        if event == DONE:
            return None
        try:
            told = _CHAT.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise UpstreamBroken(self._socket_path, f"an event that is no chunk ({exc})") from exc
        if told.error != _ABSENT:
            raise ChildFailed(event_error(event))
        if told.timings is not None:
            self.timings = told.timings
        if not told.choices:
            return None
        choice = told.choices[0]
        if choice.finish_reason is not None:
            self.finish = "length" if choice.finish_reason == "length" else "stop"
        delta = choice.delta
        if delta.tool_calls is not None:
            self._collect(delta.tool_calls)
        text, thinking = bytes(delta.content), bytes(delta.reasoning_content)
        has_text, has_thinking = (
            text[:1] == b'"' and text != EMPTY,
            thinking[:1] == b'"' and thinking != EMPTY,
        )
        if not has_text and not has_thinking and choice.logprobs is None:
            return None
        return Piece(
            text if has_text else EMPTY,
            thinking if has_thinking else b"",
            _logprobs(choice.logprobs.content, self._top) if choice.logprobs is not None else b"",
        )

    def _collect(self, calls: list[_ToolCall]) -> None:
        for call in calls:
            known = self._calls.setdefault(call.index, call)
            if known is call:
                continue
            known.id = known.id or call.id
            known.function.name = known.function.name or call.function.name
            known.function.arguments = (known.function.arguments or "") + (
                call.function.arguments or ""
            )

    def tool_calls(self) -> bytes:
        if not self._calls:
            return b""
        return msgspec.json.encode([self._call(index) for index in sorted(self._calls)])

    def _call(self, index: int) -> dict[str, Any]:
        call = self._calls[index]
        try:
            arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
        except msgspec.DecodeError as exc:
            raise ChildFailed(
                f"the arguments of its call to {call.function.name} are no JSON object"
            ) from exc
        told = {"index": index, "name": call.function.name or "", "arguments": arguments}
        return {"id": call.id, "function": told} if call.id else {"function": told}


class CompletionReading:
    """/completion and /infill."""

    def __init__(self, socket_path: str, *, top_logprobs: int) -> None:
        self._socket_path, self._top = socket_path, top_logprobs
        self.finish: str | None = None
        self.timings = Timings()

    def read(self, event: bytes) -> Piece | None:
        try:
            told = _COMPLETION.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise UpstreamBroken(
                self._socket_path, f"an event that is no completion ({exc})"
            ) from exc
        if told.error != _ABSENT:
            raise ChildFailed(event_error(event))
        if told.stop:
            self.finish = "length" if told.stop_type == "limit" else "stop"
            self.timings = told.timings or self.timings
        text = bytes(told.content)
        has_text = text[:1] == b'"' and text != EMPTY
        if not has_text and told.completion_probabilities is None:
            return None
        return Piece(
            text if has_text else EMPTY, b"", _logprobs(told.completion_probabilities, self._top)
        )

    def tool_calls(self) -> bytes:
        return b""


def _logprobs(told: list[_Probability] | None, top: int) -> bytes:
    """Ollama's entries: bytes are those of the token's text, alternatives only where asked for."""
    if not told:
        return b""
    return msgspec.json.encode([_logprob(entry, top) for entry in told])


def _logprob(entry: _Probability, top: int) -> dict[str, object]:
    told: dict[str, object] = {
        "token": entry.token,
        "logprob": entry.logprob,
        "bytes": list(entry.token.encode()),
    }
    if top and entry.top_logprobs:
        told["top_logprobs"] = [_logprob(other, 0) for other in entry.top_logprobs[:top]]
    return told
