"""Ollama's reply objects, written from llama-server's JSON without decoding its texts."""

from datetime import UTC, datetime
from time import monotonic, time_ns

import msgspec

from proxy.child.timings import Timings

EMPTY = b'""'
FOREVER_AT_S = 10_989_000_000.0  # in 2318: Go's longest duration from now


class _Clock:
    """`created_at`: RFC 3339 with nanoseconds; the second's text is kept, as tokens come faster."""

    __slots__ = ("_prefix", "_second")

    def __init__(self) -> None:
        self._second, self._prefix = -1, b""

    def now(self) -> bytes:
        second, ns = divmod(time_ns(), 1_000_000_000)
        if second != self._second:
            text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second, self._prefix = second, text.encode()
        return b"%b.%09dZ" % (self._prefix, ns)


_CLOCK = _Clock()


def rfc3339(seconds: float) -> str:
    """UTC seconds as local time with its offset; the year 2318 at most, Ollama's "forever"."""
    return datetime.fromtimestamp(min(seconds, FOREVER_AT_S)).astimezone().isoformat()


def json_string(text: str) -> bytes:
    """`text` as JSON."""
    return msgspec.json.encode(text)


class Ending(msgspec.Struct, frozen=True):
    """What the last object of a reply tells."""

    reason: str
    timings: Timings
    load_ns: int
    started_s: float
    """Monotonic; when the request came in."""
    context: tuple[int, ...] = ()
    n_dropped: int | None = None
    """Tokens of the prompt that were left out; None where that was not asked for."""

    def members(self) -> bytes:
        """`"done":true,…`; zeros are left out, as Go's omitempty does."""
        timings = self.timings
        told = {
            "total_duration": round((monotonic() - self.started_s) * 1e9),
            "load_duration": max(1, self.load_ns),
            "prompt_eval_count": timings.cache_n + timings.prompt_n,
            "prompt_eval_duration": round(timings.prompt_ms * 1e6),
            "eval_count": timings.predicted_n,
            "eval_duration": round(timings.predicted_ms * 1e6),
        }
        told = {key: value for key, value in told.items() if value}
        if self.n_dropped is not None:
            told["prompt_tokens_dropped"] = self.n_dropped
        context = b',"context":' + msgspec.json.encode(self.context) if self.context else b""
        reason = json_string(self.reason)
        return b'"done":true,"done_reason":%b%b,%b' % (
            reason,
            context,
            msgspec.json.encode(told)[1:-1],
        )


class Writer:
    """Writes the objects of one reply. Texts are JSON strings as bytes."""

    __slots__ = ("_chat", "_head")

    def __init__(self, *, model: str, chat: bool) -> None:
        self._chat = chat
        self._head = b'{"model":%b,"created_at":"' % json_string(model)

    def piece(self, text: bytes, *, thinking: bytes = b"", logprobs: bytes = b"") -> bytes:
        """One object of a stream that goes on."""
        extra = b',"logprobs":' + logprobs if logprobs else b""
        return self._start(text, thinking, b"") + b'"done":false' + extra + b"}"

    def last(
        self,
        ending: Ending,
        *,
        text: bytes = EMPTY,
        thinking: bytes = b"",
        tool_calls: bytes = b"",
        logprobs: bytes = b"",
    ) -> bytes:
        """The last object, or the only one."""
        extra = b',"logprobs":' + logprobs if logprobs else b""
        return self._start(text, thinking, tool_calls) + ending.members() + extra + b"}"

    def bare(self, reason: str) -> bytes:
        """The only object of a load or an unload."""
        return self._start(EMPTY, b"", b"") + b'"done":true,"done_reason":%b}' % json_string(reason)

    def _start(self, text: bytes, thinking: bytes, tool_calls: bytes) -> bytes:
        thought = b',"thinking":' + thinking if thinking else b""
        calls = b',"tool_calls":' + tool_calls if tool_calls else b""
        if self._chat:
            shape = b'%b%b","message":{"role":"assistant","content":%b%b%b},'
        else:
            shape = b'%b%b","response":%b%b%b,'
        return shape % (self._head, _CLOCK.now(), text, thought, calls)
