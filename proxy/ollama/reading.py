"""llama-server's events, read into the pieces that Ollama's replies are made of."""

import re
from typing import Any, Protocol

import msgspec

from proxy.child.chunks import NULL, Delta, Event, ToolCall, ToolCalls, read_event
from proxy.child.sse import DONE
from proxy.child.timings import Timings
from proxy.errors import ChildFailed
from proxy.ollama.replies import EMPTY


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


class _Choice(msgspec.Struct):
    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None
    logprobs: _Probabilities | None = None


class _ChatEvent(Event):
    choices: tuple[_Choice, ...] = ()
    timings: Timings | None = None


class _CompletionEvent(Event):
    content: msgspec.Raw = NULL
    stop: bool = False
    stop_type: str = ""
    timings: Timings | None = None
    completion_probabilities: list[_Probability] | None = None


_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"')
_CHAT = msgspec.json.Decoder(_ChatEvent)
_COMPLETION = msgspec.json.Decoder(_CompletionEvent)


class _Around:
    """What stands around the text in a chunk that holds nothing else of interest.

    One token's chunk is like the one before but for its text: who knows what that one says need
    not read this one.
    """

    __slots__ = ("_after", "_before")

    def __init__(self) -> None:
        self._before = self._after = b""

    def note(self, event: bytes, text: bytes) -> None:
        """Takes a chunk that was read, and holds but this text, a JSON string."""
        before, _, after = event.partition(text)
        if before.endswith(b'"content":'):
            self._before, self._after = before, after

    def text_in(self, event: bytes) -> bytes | None:
        """The text of a chunk that is like the one noted; None where it is not, or is empty."""
        if not (self._before and event.startswith(self._before) and event.endswith(self._after)):
            return None
        text = event[len(self._before) : -len(self._after)]
        return text if text != EMPTY and _STRING.fullmatch(text) else None


class ChatReading:
    """/v1/chat/completions."""

    def __init__(self, socket_path: str, *, top_logprobs: int) -> None:
        self._socket_path, self._top = socket_path, top_logprobs
        self.finish: str | None = None
        self.timings = Timings()
        self._calls = ToolCalls()
        self._around = _Around()

    def read(self, event: bytes) -> Piece | None:
        if (alike := self._around.text_in(event)) is not None:
            return Piece(alike)
        if event == DONE:
            return None
        told = read_event(event, _CHAT, self._socket_path)
        if told.timings is not None:
            self.timings = told.timings
        if not told.choices:
            return None
        choice = told.choices[0]
        if choice.finish_reason is not None:
            self.finish = "length" if choice.finish_reason == "length" else "stop"
        delta = choice.delta
        if delta.tool_calls is not None:
            self._calls.add(delta.tool_calls)
        text, thinking = bytes(delta.content), bytes(delta.reasoning_content)
        has_text, has_thinking = _says_something(text), _says_something(thinking)
        if not has_text and not has_thinking and choice.logprobs is None:
            return None
        if has_text and (told.timings, choice) == (None, _Choice(Delta(content=delta.content))):
            self._around.note(event, text)
        return Piece(
            text if has_text else EMPTY,
            thinking if has_thinking else b"",
            _logprobs(choice.logprobs.content, self._top) if choice.logprobs is not None else b"",
        )

    def tool_calls(self) -> bytes:
        if not self._calls:
            return b""
        return msgspec.json.encode([_tool_call(*call) for call in self._calls])


class CompletionReading:
    """/completion and /infill."""

    def __init__(self, socket_path: str, *, top_logprobs: int) -> None:
        self._socket_path, self._top = socket_path, top_logprobs
        self.finish: str | None = None
        self.timings = Timings()

    def read(self, event: bytes) -> Piece | None:
        told = read_event(event, _COMPLETION, self._socket_path)
        if told.stop:
            self.finish = "length" if told.stop_type == "limit" else "stop"
            self.timings = told.timings or self.timings
        text = bytes(told.content)
        has_text = _says_something(text)
        if not has_text and told.completion_probabilities is None:
            return None
        return Piece(
            text if has_text else EMPTY, b"", _logprobs(told.completion_probabilities, self._top)
        )

    def tool_calls(self) -> bytes:
        return b""


def _tool_call(call: ToolCall, arguments: msgspec.Raw) -> dict[str, Any]:
    """Ollama's form, with the arguments as an object. Raises ChildFailed where they are none."""
    name, text = call.function.name or "", msgspec.json.decode(arguments, type=str)
    try:
        decoded = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise ChildFailed(f"the arguments of its call to {name} are no JSON object") from exc
    told = {"index": call.index, "name": name, "arguments": decoded}
    return {"id": call.id, "function": told} if call.id else {"function": told}


def _says_something(json_text: bytes) -> bool:
    """True for a JSON string with characters in it; null and absent members are none."""
    return json_text[:1] == b'"' and json_text != EMPTY


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
