"""Relays one exchange: a lease, a request to its child, the reply, and what if the child is lost.

    lease ─ send ─ hear → done
      └ lost, nothing delivered → another lease, once more; the caller sees nothing of it
      └ lost in mid-stream → raised, and told as an error event by app.py; never a silent end
Leaving, however it happens, closes the upstream connection, which frees the slot, and gives the
lease back.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from planners.model import ServedModel
from proxy.bodies import Buffers, amended
from proxy.door import Door
from proxy.engine_limits import check_grammars
from proxy.errors import (
    BadJson,
    ChildFailed,
    ChildRefused,
    PromptTooLong,
    UpstreamBroken,
    UpstreamGone,
)
from proxy.exchange import Exchange, Framing
from proxy.sse import DONE, WholeEvents
from proxy.upstream import UpstreamRequest, UpstreamResponse
from supervisor.lease import Lease, Usage

REPLY_BYTES = 256 << 20  # a whole reply is held in memory: embeddings of a large batch
ERROR_BYTES = 1 << 20
TRIES = 2  # a request that kills a second child would kill a third
CAUSE_S = 0.5  # a caller who waits for its error is not kept longer for the cause
REAPED_S = 2.0  # the fleet knows of a child's end within milliseconds; by now it certainly does

T = TypeVar("T")

_JSON_HEADERS = ((b"Content-Type", b"application/json"),)


@dataclass(frozen=True, slots=True)
class Order:
    """What to send to whichever child grants the lease."""

    target: bytes
    body: bytes
    """A JSON object; the lease's slot is added to it on the way."""
    extra: bytes = b""
    """Further members (`"key":value,…`) that override the body's."""
    form: bytes = b""
    """The Content-Type of a body that is no JSON: it goes as it is, to whichever slot is free."""


Hear = Callable[[Lease, UpstreamResponse], Awaitable[object]]
Check = Callable[[Lease], Awaitable[Order | None]]
"""Refuses, or gives what to send instead, where that depends on the lease."""


async def converse(
    door: Door,
    exchange: Exchange,
    order: Order,
    *,
    model: ServedModel,
    keep_alive_s: float | None,
    hear: Hear,
    context: int | None = None,
    check: Check | None = None,
) -> None:
    """Sends `order` under a lease and hands the reply to `hear`; again if a child is lost unheard.

    `hear` may be called twice, and starts anew. `check` sees the lease first, and may refuse, or
    give another order.
    Raises GrammarTooLarge, LeaseError, UpstreamError, what the two raise.
    """
    if not order.form:
        check_grammars(order.body)
    for times in range(1, TRIES + 1):
        async with door.service.lease(
            model.model_id,
            caller=exchange.caller,
            keep_alive_s=keep_alive_s,
            context=context,
            priority=exchange.priority,
        ) as lease:
            exchange.lease = lease
            try:
                changed = None if check is None else await check(lease)
                async with _sent(door, exchange, changed or order, lease) as response:
                    await hear(lease, response)
                door.service.answered(lease)
                return
            except UpstreamGone as exc:
                # Leased meanwhile, so that nobody else is granted the slot of a dead child.
                is_over = times == TRIES or exchange.delivered
                limit_s = CAUSE_S if is_over else REAPED_S
                cause = await door.service.until_gone(lease, within_s=limit_s)
                if is_over:
                    raise exc.explained(cause, times=times) from exc


def _sent(door: Door, exchange: Exchange, order: Order, lease: Lease) -> UpstreamRequest:
    return door.pools.request(
        lease.socket_path,
        method=b"POST",
        target=order.target,
        headers=(
            (b"Content-Type", order.form or b"application/json"),
            *exchange.passed_on,
        ),
        body=(order.body,) if order.form else pinned(order, lease),
    )


def pinned(order: Order, lease: Lease) -> Buffers:
    """The body with the lease's slot as its last member, which overrides a caller's own id_slot.

    A seed of ours would be added here too.
    """
    extra = order.extra + b"," if order.extra else b""
    return amended(order.body, extra + b'"id_slot":%d' % lease.slot)


async def ask(
    door: Door, lease: Lease, decoder: msgspec.json.Decoder[T], *, target: bytes, body: bytes
) -> T:
    """The child's reply to a question that takes no slot. Raises ChildRefused, UpstreamError."""
    async with door.pools.request(
        lease.socket_path, method=b"POST", target=target, headers=_JSON_HEADERS, body=(body,)
    ) as response:
        return await whole_reply(lease, response, decoder)


async def whole_reply(
    lease: Lease, response: UpstreamResponse, decoder: msgspec.json.Decoder[T]
) -> T:
    """The one object that a child replies with. Raises what it refuses, UpstreamError."""
    if response.status != 200:
        raise await refusal(response, lease)
    reply = await response.read(limit_bytes=REPLY_BYTES)
    return understood(reply, decoder, socket_path=response.socket_path)


def understood(reply: bytes, decoder: msgspec.json.Decoder[T], *, socket_path: str) -> T:
    """A child's whole reply as `decoder` knows it. Raises UpstreamBroken for any other."""
    try:
        return decoder.decode(reply)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UpstreamBroken(socket_path, f"it is of another shape ({exc})") from exc


class _ChildError(msgspec.Struct):
    message: str = ""
    type: str = "server_error"
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _ChildErrorReply(msgspec.Struct):
    error: _ChildError = msgspec.field(default_factory=_ChildError)


_TOO_LARGE = re.compile(r"input \((\d+) tokens\) is too large .*batch size: (\d+)\)")
"""llama-server's (b10434) 500 to a text over the ubatch, which for embeddings is the context."""
_CALLERS_FAULTS = (
    " input is not supported",  # an image or audio for a model without a projector
    "Failed to parse ",  # messages, tools
    "Cannot use both ",
    "Unknown reasoning format",
    '"prompt" elements must be ',  # texts to embed of another type
    "Multimodal data provided, but model does not support",
    "vector::_M_range_check",  # an id to detokenize that is no token's
)
"""What llama-server (b10434) answers with 500 although it is the request that is wrong."""
_ERROR_REPLY = msgspec.json.Decoder(_ChildErrorReply)
_ERROR_EVENT_HEAD = b'data: {"error":'


async def refusal(response: UpstreamResponse, lease: Lease) -> Exception:
    """The error that a child's reply with another status than 200 stands for."""
    told = await response.read(limit_bytes=ERROR_BYTES)
    try:
        error = _ERROR_REPLY.decode(told).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        error = _ChildError(message=told[:200].decode(errors="replace"))
    if error.n_prompt_tokens is not None and error.n_ctx is not None:
        return PromptTooLong(
            model=lease.model_id, n_prompt=error.n_prompt_tokens, n_ctx=error.n_ctx
        )
    if (told_of := _TOO_LARGE.match(error.message)) is not None:
        n_prompt, n_batch = int(told_of[1]), int(told_of[2])
        return PromptTooLong(model=lease.model_id, n_prompt=n_prompt, n_ctx=n_batch)
    if "json.exception." in error.message:  # a wrong body, which some builds answer with 500
        return BadJson(error.message)
    message = error.message or f"llama-server answered {response.status} without a message"
    if response.status == 500 and any(fault in message for fault in _CALLERS_FAULTS):
        return ChildRefused(status=400, kind="invalid_request_error", message=message)
    return ChildRefused(status=response.status, kind=error.type, message=message)


def event_error(event: bytes) -> str:
    """The message of an error event's payload, met in mid-stream."""
    try:
        return _ERROR_REPLY.decode(event).error.message or "it does not say why"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return event[:200].decode(errors="replace")


async def relay_whole(exchange: Exchange, lease: Lease, response: UpstreamResponse) -> Usage | None:
    """Passes one JSON object, unchanged; whole, so that a child lost meanwhile can be made good.

    Gives what it took, where it says so.
    """
    if response.status != 200:
        raise await refusal(response, lease)
    body = await response.read(limit_bytes=REPLY_BYTES)
    await exchange.reply(200, body, content_type=response.header(b"content-type"))
    return _usage(body)


async def relay_stream(
    exchange: Exchange,
    lease: Lease,
    response: UpstreamResponse,
    *,
    shows_progress: bool,
    n_prompts: int = 1,
) -> Usage | None:
    """Passes a stream of events, unchanged and as it comes; gives what its end says it took.

    Progress events are left out unless the caller asked for them. Raises ChildFailed for an error
    before any token, UpstreamBroken for a stream that ends with neither [DONE] nor an error.
    """
    if response.status != 200:
        raise await refusal(response, lease)
    whole = WholeEvents(response.socket_path)
    in_prelude = not shows_progress
    has_preludes = n_prompts > 1 and in_prelude
    before = last = b""
    usages: list[Usage] = []
    async for arrived in response.chunks():
        events = whole.take(arrived)
        if has_preludes:
            events = _without_any_progress(events)
        elif in_prelude:
            events = _without_progress(events)
        if not events:
            continue
        if not exchange.delivered:
            in_prelude = False
            if events.startswith(_ERROR_EVENT_HEAD):
                raise ChildFailed(event_error(events[6:].partition(b"\n")[0]))
            await exchange.begin(Framing.SSE)
        before, last = last, events
        if n_prompts > 1:
            usages += _usages_in(events)
        await exchange.write(events)
    tail = before[-4096:] + last[-8192:]
    if not tail.rstrip().endswith(DONE) and _ERROR_EVENT_HEAD not in tail:
        raise UpstreamBroken(response.socket_path, "its stream ended before its end")
    await exchange.finish()
    return usage_sum(usages) if usages else usage_in(tail)


def _without_progress(events: bytes) -> bytes:
    """What is left from the first event that is neither a ping nor the prompt's progress."""
    while events.startswith(b":") or b'"prompt_progress":' in events[: events.find(b"\n\n")]:
        events = events[events.find(b"\n\n") + 2 :]
    return events


def _without_any_progress(events: bytes) -> bytes:
    """Likewise, wherever it stands: each of several prompts has its own."""
    kept = [
        event
        for event in events.split(b"\n\n")
        if not event.startswith(b":") and b'"prompt_progress":' not in event
    ]
    return b"\n\n".join(kept)


class Timings(msgspec.Struct):
    """What a child says its work took."""

    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    cache_n: int = 0

    def usage(self) -> Usage:
        """The same, as the fleet keeps it."""
        return Usage(
            prompt_tokens=self.prompt_n,
            prompt_s=self.prompt_ms / 1000,
            decode_tokens=self.predicted_n,
            decode_s=self.predicted_ms / 1000,
        )


def sum_of(parts: Iterable[Timings]) -> Timings:
    """What several pieces of work took together."""
    total = Timings()
    for part in parts:
        total.prompt_n += part.prompt_n
        total.prompt_ms += part.prompt_ms
        total.predicted_n += part.predicted_n
        total.predicted_ms += part.predicted_ms
        total.cache_n += part.cache_n
    return total


class _Timed(msgspec.Struct):
    timings: Timings | None = None


_TIMED = msgspec.json.Decoder(_Timed)


def usage_in(tail: bytes) -> Usage | None:
    """What the last event with timings in the end of a stream says; None where none does."""
    for event in reversed(tail.split(b"\n\n")):
        if b'"timings":' in event and (start := event.find(b"data: ")) >= 0:
            return _usage(event[start + 6 :])
    return None


def _usage(told: bytes) -> Usage | None:
    try:
        timings = _TIMED.decode(told).timings
    except msgspec.DecodeError:
        return None
    return timings.usage() if timings is not None else None


def _usages_in(events: bytes) -> list[Usage]:
    """What each event with timings says."""
    told = (usage_in(event) for event in events.split(b"\n\n"))
    return [usage for usage in told if usage is not None]


def usage_sum(usages: list[Usage]) -> Usage:
    """What several prompts of one request took together."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        prompt_s=sum(usage.prompt_s for usage in usages),
        decode_tokens=sum(usage.decode_tokens for usage in usages),
        decode_s=sum(usage.decode_s for usage in usages),
    )
