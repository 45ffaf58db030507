"""Two streams made one: what a second child writes, as if the first had gone on.

Ids, roles, counts and ends are made whole; what was delivered is dropped. Payloads in,
payloads out. After a seam each is decoded and written anew; before one nothing of this runs.
"""

from typing import Any

import msgspec

from proxy.child.sse import DONE
from proxy.continuity.continuation import Continue, Finish, Replay, Resend
from proxy.continuity.delivered import (
    Channel,
    Chunk,
    Kind,
    Progress,
    Timings,
    Told,
    Unreadable,
    pieces,
    read_chunk,
)

Payload = dict[str, Any]
"""An event that is written anew: what we do not know of it stays."""


class Diverged(Exception):
    """A replay wrote something else than what was delivered: the two do not make one reply."""


class Splice:
    """Takes a second stream's payloads and gives those that the caller is still to get.

    `prompt`: how the first child had read the prompt, where it told. `wants_progress`: whether the
    caller asked to see that.
    """

    def __init__(
        self,
        way: Resend | Replay | Continue,
        told: Told,
        *,
        prompt: Progress | None = None,
        wants_progress: bool = False,
    ) -> None:
        self._way, self._told, self._kind = way, told, told.kind
        self._prompt, self._wants_progress = prompt, wants_progress
        self._due: dict[Channel, str] = dict(told.texts) if isinstance(way, Replay) else {}
        self.cached_tokens: int | None = None
        """Of the second child's prompt, once told: what proves that a restore was used."""
        self.prompt_tokens: int | None = None
        """Of the second child's prompt, with what was delivered, once told."""

    def take(self, event: bytes) -> bytes | None:
        """What of a payload the caller gets; None for nothing. Raises Diverged, Unreadable."""
        if event == DONE:
            self._check_all_was_written()
            return event
        chunk, payload = read_chunk(event), msgspec.json.decode(event)
        if not isinstance(payload, dict):
            raise Unreadable("an event that is no object")
        if "error" in payload:
            return event
        if chunk.prompt_progress is not None:
            self._note(chunk.prompt_progress)
            if not pieces(chunk, self._kind):
                return event if self._wants_progress and isinstance(self._way, Resend) else None
            del payload["prompt_progress"]  # beside the echo of a beginning of the caller's own
        if isinstance(self._way, Replay):
            self._drop_delivered(chunk, payload)
        self._make_whole(chunk, payload)
        is_new = _says(payload, chunk, self._kind) and not self._has_end(chunk)
        return msgspec.json.encode(payload) if is_new else None

    def _note(self, progress: Progress) -> None:
        self.cached_tokens, self.prompt_tokens = progress.cache, progress.total

    # what was delivered

    def _drop_delivered(self, chunk: Chunk, payload: Payload) -> None:
        """Cuts from each text of a payload what the caller has of it. Raises Diverged."""
        for channel, text in pieces(chunk, self._kind):
            due = self._due.get(channel, "")
            if not due:  # new, once all that the caller has of this choice was written again
                self._check_all_was_written(channel[0])
                continue
            if not (due.startswith(text) or text.startswith(due)):
                raise Diverged("what was delivered would be written otherwise now")
            self._due[channel] = due[len(text) :]
            _cut(payload, channel, len(due), self._kind)
        for index in _ended(chunk, self._kind):
            self._check_all_was_written(index)

    def _check_all_was_written(self, index: int | None = None) -> None:
        """Raises Diverged where one choice, or any, had more before than it will have."""
        if any(due for (at, _), due in self._due.items() if index in (None, at)):
            raise Diverged("less would be written now than was delivered")

    def _has_end(self, chunk: Chunk) -> bool:
        """Whether a payload is the end of choices whose end the caller has: of several prompts."""
        ended = _ended(chunk, self._kind)
        return bool(ended) and all(index in self._told.finishes for index in ended)

    # one reply's frame

    def _make_whole(self, chunk: Chunk, payload: Payload) -> None:
        if self._told.first.id:  # `created` is each chunk's own in llama-server
            payload["id"] = self._told.first.id
        for choice in payload.get("choices", ()):
            self._make_choice_whole(choice)
        if isinstance(self._way, Continue):
            self._add_counts(self._way, chunk, payload)

    def _make_choice_whole(self, choice: Payload) -> None:
        index, delta = choice.get("index", 0), choice.get("delta")
        if not delta:
            return
        # llama-server opens with a role, and a null beside it.
        if index in self._told.roles and "role" in delta:
            del delta["role"]
            if delta.get("content", "") is None:
                del delta["content"]
        for call in delta.get("tool_calls") or ():
            if (index, call.get("index", 0)) in self._told.call_ids:
                # Clients join what pieces of one call say: a second id would spoil the first.
                call.pop("id", None)
                call.pop("type", None)

    def _add_counts(self, way: Continue, chunk: Chunk, payload: Payload) -> None:
        """Counts as of one reply: the prompt is the caller's, what was delivered was written."""
        if chunk.usage is not None:
            sent = self._sent(way, chunk.usage.prompt_tokens)
            usage = payload["usage"]
            usage["prompt_tokens"] = chunk.usage.prompt_tokens - sent
            usage["completion_tokens"] = chunk.usage.completion_tokens + sent
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached()}
        if chunk.timings is not None:
            self._add_timings(way, chunk.timings, payload["timings"])
        if self._kind.is_raw and chunk.tokens_evaluated:
            sent = self._sent(way, chunk.tokens_evaluated)
            payload["tokens_evaluated"] = chunk.tokens_evaluated - sent
            payload["tokens_predicted"] = chunk.tokens_predicted + sent
            if isinstance(payload.get("prompt"), str):
                payload["prompt"] = payload["prompt"].removesuffix(self._told.content)

    def _add_timings(self, way: Continue, timings: Timings, told: Payload) -> None:
        sent = self._sent(way, timings.prompt_n + timings.cache_n)
        told["prompt_n"] = timings.prompt_n + timings.cache_n - sent - self._cached()
        told["cache_n"] = self._cached()
        told["predicted_n"] = timings.predicted_n + sent
        if timings.predicted_n:  # at the rate of the part that was timed
            told["predicted_ms"] = timings.predicted_ms / timings.predicted_n * told["predicted_n"]
        if self._prompt is not None and self._prompt.time_ms > 0:
            told["prompt_ms"] = self._prompt.time_ms

    def _sent(self, way: Continue, prompt_tokens: int) -> int:
        """Tokens delivered: by how many the second prompt is longer than the first, if told."""
        return way.sent_tokens if self._prompt is None else prompt_tokens - self._prompt.total

    def _cached(self) -> int:
        return 0 if self._prompt is None else self._prompt.cache


def _cut(payload: Payload, channel: Channel, n: int, kind: Kind) -> None:
    """Takes the first `n` characters from one text of a payload, and the text if none are left."""
    index, name = channel
    if kind.is_raw:
        payload["content"] = payload["content"][n:]
        return
    for choice in payload["choices"]:
        if choice.get("index", 0) != index:
            continue
        delta = choice.get("delta", choice)
        if not name.startswith("tool "):
            key = _key(name, kind)
            delta[key] = delta[key][n:]
            if not delta[key] and kind is Kind.CHAT:
                del delta[key]
            continue
        _, at, member = name.split(" ")
        for call in delta["tool_calls"]:
            if call.get("index", 0) == int(at):
                _cut_call(call["function"], member or "arguments", n)
        delta["tool_calls"] = [c for c in delta["tool_calls"] if c["function"]]
        if not delta["tool_calls"]:
            del delta["tool_calls"]


def _cut_call(function: Payload, member: str, n: int) -> None:
    function[member] = function[member][n:]
    if not function[member]:
        del function[member]


def _key(name: str, kind: Kind) -> str:
    if kind is Kind.TEXT:
        return "text"
    return "reasoning_content" if name == "reasoning" else "content"


def _ended(chunk: Chunk, kind: Kind) -> list[int]:
    """Choices whose end a payload tells."""
    if kind.is_raw:
        return [chunk.index] if chunk.stop else []
    return [choice.index for choice in chunk.choices if choice.finish_reason is not None]


def _says(payload: Payload, chunk: Chunk, kind: Kind) -> bool:
    """Whether anything is left in a payload that the caller does not have."""
    if _ended(chunk, kind) or payload.get("usage") is not None:
        return True
    if kind.is_raw:
        return bool(payload.get("content")) or not chunk.content
    if kind is Kind.TEXT:
        return any(choice.get("text") for choice in payload.get("choices", ()))
    return any(choice.get("delta") for choice in payload.get("choices", ()))


def ending(way: Finish, told: Told, *, prompt: Progress | None, wants_usage: bool) -> list[bytes]:
    """The payloads that end a reply of which all was delivered but them."""
    n_prompt = prompt.total if prompt is not None else 0
    if told.is_done:
        return []
    if told.kind.is_raw:
        return [_raw_end(way, told, n_prompt)]
    events: list[bytes] = []
    frame: Payload = {
        "id": told.first.id,
        "created": told.first.created,
        "model": told.first.model,
        "system_fingerprint": told.first.system_fingerprint,
        "object": "chat.completion.chunk" if told.kind is Kind.CHAT else "text_completion",
    }
    usage = {
        "completion_tokens": way.sent_tokens,
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + way.sent_tokens,
    }
    empty: Payload = {"delta": {}} if told.kind is Kind.CHAT else {"text": "", "logprobs": None}
    choice = {"finish_reason": way.finish_reason, "index": 0, **empty}
    if not told.finishes:
        last = {"choices": [choice], **frame}
        events.append(
            msgspec.json.encode(last if told.kind is Kind.CHAT else {**last, "usage": usage})
        )
    if wants_usage and told.usage is None and told.kind is Kind.CHAT:
        events.append(msgspec.json.encode({"choices": [], **frame, "usage": usage}))
    return [*events, DONE]


def _raw_end(way: Finish, told: Told, n_prompt: int) -> bytes:
    stop_type = "limit" if way.finish_reason == "length" else "eos"
    return msgspec.json.encode(
        {
            "index": 0, "content": "", "tokens": [], "stop": True, "model": told.first.model,
            "tokens_predicted": way.sent_tokens, "tokens_evaluated": n_prompt,
            "stop_type": stop_type, "stopping_word": "", "truncated": False,
        }
    )  # fmt: skip
