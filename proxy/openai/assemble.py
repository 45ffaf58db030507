"""One JSON reply out of a stream of chunks, equal to what the child would have sent unstreamed.

llama-server does not notice that the caller of an unstreamed request left, so that all go upstream
as streams.
"""

import msgspec

from proxy.child.chunks import (
    ABSENT,
    NULL,
    Cached,
    Delta,
    Event,
    JsonText,
    TokenUsage,
    ToolCall,
    ToolCalls,
    read_event,
)
from proxy.child.connection import ALWAYS_READY
from proxy.child.refusals import refusal
from proxy.child.sse import DONE, PROGRESS, EventReader
from proxy.child.timings import Timings, sum_of
from proxy.child.upstream import UpstreamResponse
from proxy.errors import StreamCut, UpstreamBroken
from supervisor.leases.lease import Lease

STREAMED = b'"stream":true,"stream_options":{"include_usage":true},' + PROGRESS
"""The members that turn a caller's unstreamed request into one that can be assembled."""


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: Delta = msgspec.field(default_factory=Delta)
    text: msgspec.Raw = NULL
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Chunk(Event):
    choices: tuple[_Choice, ...] = ()
    usage: msgspec.Raw = ABSENT
    timings: msgspec.Raw = ABSENT


class _Head(Event):
    """What each chunk says again, which is read of the last one alone."""

    created: int = 0
    id: str = ""
    model: str = ""
    system_fingerprint: str = ""


_CHUNK = msgspec.json.Decoder(_Chunk)
_HEAD = msgspec.json.Decoder(_Head)
_TIMINGS = msgspec.json.Decoder(Timings)
_USAGE = msgspec.json.Decoder(TokenUsage)


async def assembled(
    lease: Lease, response: UpstreamResponse, *, chat: bool, n_choices: int = 1
) -> "Assembly":
    """All that a child streams. Raises what it refuses, ChildFailed, UpstreamError."""
    if response.status != 200:
        raise await refusal(response, lease)
    events = EventReader(response.socket_path)
    whole = Assembly(response.socket_path, chat=chat, n_choices=n_choices)

    def take(chunk: bytes) -> None:
        for event in events.feed(chunk):
            whole.add(event)

    await response.pour(take, ALWAYS_READY)
    return whole


class Assembly:
    """Collects the chunks of /v1/chat/completions or /v1/completions and gives the whole reply."""

    def __init__(self, socket_path: str, *, chat: bool, n_choices: int = 1) -> None:
        self._socket_path, self._chat = socket_path, chat
        self._parts = tuple(_Part() for _ in range(n_choices))
        self._last = b"{}"
        self._done = False

    def add(self, event: bytes) -> None:
        """Takes one event's payload. Raises ChildFailed for an error event, UpstreamBroken."""
        if event == DONE:
            self._done = True
            return
        self._last = event
        chunk = read_event(event, _CHUNK, self._socket_path)
        part = self._part(chunk.choices)
        # What a chunk does not have is the default itself: told from others without a call.
        if chunk.timings is not ABSENT:
            part.timings = chunk.timings
        if chunk.usage is not ABSENT:
            part.usage = chunk.usage
        for choice in chunk.choices:
            part.add(choice)

    def _part(self, choices: tuple[_Choice, ...]) -> "_Part":
        """What a chunk belongs to: the choice that it has a piece of, or the only one."""
        index = choices[0].index if choices else 0
        is_mixed = len(choices) > 1 and any(choice.index != index for choice in choices)
        if is_mixed or not 0 <= index < len(self._parts):
            raise UpstreamBroken(self._socket_path, f"a choice {index} that nobody asked for")
        return self._parts[index]

    @property
    def timings(self) -> Timings | None:
        """What the work took, once told."""
        told = [part.timings for part in self._parts if part.timings != ABSENT]
        return sum_of(map(_TIMINGS.decode, told)) if told else None

    def reply(self) -> bytes:
        """The whole reply. Raises StreamCut, UpstreamBroken."""
        if not self._done or any(part.finish is None for part in self._parts):
            raise StreamCut(self._socket_path)
        last = read_event(self._last, _HEAD, self._socket_path)
        reply: dict[str, object] = {
            "choices": [self._choice(index, part) for index, part in enumerate(self._parts)],
            "created": last.created,
            "model": last.model,
            "system_fingerprint": last.system_fingerprint,
            "object": "chat.completion" if self._chat else "text_completion",
        }
        if (usage := self._usage()) != ABSENT:
            reply["usage"] = usage
        reply["id"] = last.id
        if (timings := self._timings()) != ABSENT:
            reply["timings"] = timings
        return msgspec.json.encode(reply)

    def _usage(self) -> object:
        """As told of one choice; of several the sum (llama-server tells only the first's)."""
        if len(self._parts) == 1:
            return self._parts[0].usage
        told = [_USAGE.decode(part.usage) for part in self._parts if part.usage != ABSENT]
        cached = sum(usage.prompt_tokens_details.cached_tokens for usage in told)
        return TokenUsage(
            completion_tokens=sum(usage.completion_tokens for usage in told),
            prompt_tokens=sum(usage.prompt_tokens for usage in told),
            total_tokens=sum(usage.total_tokens for usage in told),
            prompt_tokens_details=Cached(cached),
        )

    def _timings(self) -> object:
        """Likewise."""
        return self._parts[0].timings if len(self._parts) == 1 else self.timings or ABSENT

    def _choice(self, index: int, part: "_Part") -> dict[str, object]:
        logprobs = {"content": part.logprobs} if part.logprobs is not None else None
        if not self._chat:
            return {
                "text": part.text.joined(),
                "index": index,
                "logprobs": logprobs,
                "finish_reason": part.finish,
            }
        choice: dict[str, object] = {
            "finish_reason": part.finish,
            "index": index,
            "message": part.message(),
        }
        if logprobs is not None:
            choice["logprobs"] = logprobs
        return choice


class _Part:
    """One choice in the making."""

    __slots__ = ("finish", "logprobs", "reasoning", "text", "timings", "tools", "usage")

    def __init__(self) -> None:
        self.text, self.reasoning, self.tools = JsonText(), JsonText(), ToolCalls()
        self.logprobs: list[msgspec.Raw] | None = None
        self.finish: str | None = None
        self.usage = self.timings = ABSENT

    def add(self, choice: _Choice) -> None:
        """Takes a piece of it."""
        delta = choice.delta
        if choice.text is not NULL:
            self.text.add(choice.text)
        if delta.content is not NULL:
            self.text.add(delta.content)
        if delta.reasoning_content is not NULL:
            self.reasoning.add(delta.reasoning_content)
        if choice.finish_reason:
            self.finish = choice.finish_reason
        if choice.logprobs is not None and choice.logprobs.content is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += choice.logprobs.content
        if delta.tool_calls is not None:
            self.tools.add(delta.tool_calls)

    def message(self) -> dict[str, object]:
        """As a chat's message."""
        message: dict[str, object] = {"role": "assistant", "content": self.text.joined()}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning.joined()
        if self.tools:
            message["tool_calls"] = [_tool_call(*call) for call in self.tools]
        return message


def _tool_call(call: ToolCall, arguments: msgspec.Raw) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function, "id": call.id or ""}
