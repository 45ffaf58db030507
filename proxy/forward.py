"""Relays one exchange: a lease, a request to its child, the reply, and what if the child is lost.

    lease ─ send ─ hear → done
      └ lost, nothing delivered → another lease, once more; the caller sees nothing of it
      └ lost in mid-stream → raised, and told as an error event by app.py; never a silent end
Leaving, however it happens, closes the upstream connection, which frees the slot, and gives the
lease back.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from planners.model import ServedModel
from planners.usage import Usage
from proxy.bodies import Buffers, amended
from proxy.child.refusals import event_error, refusal
from proxy.child.sse import DONE, ERROR_HEAD, IS_PROGRESS, WholeEvents, without_progress
from proxy.child.timings import usage_in, usage_of, usage_sum, usages_in
from proxy.child.upstream import UpstreamRequest, UpstreamResponse
from proxy.door import Door
from proxy.engine_limits import check_grammars
from proxy.errors import (
    ChildFailed,
    StreamCut,
    UpstreamBroken,
    UpstreamGone,
)
from proxy.exchange import Exchange, Framing
from supervisor.lease import Lease

REPLY_BYTES = 256 << 20  # a whole reply is held in memory: embeddings of a large batch
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


async def relay_whole(exchange: Exchange, lease: Lease, response: UpstreamResponse) -> Usage | None:
    """Passes one JSON object, unchanged; whole, so that a child lost meanwhile can be made good.

    Gives what it took, where it says so.
    """
    if response.status != 200:
        raise await refusal(response, lease)
    body = await response.read(limit_bytes=REPLY_BYTES)
    await exchange.reply(200, body, content_type=response.header(b"content-type"))
    return usage_of(body)


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
    before any token, StreamCut for a stream that ends with neither [DONE] nor an error.
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
            events = without_progress(events)
        elif in_prelude:
            events = _without_prelude(events)
        if not events:
            continue
        if not exchange.delivered:
            in_prelude = False
            if events.startswith(ERROR_HEAD):
                raise ChildFailed(event_error(events[6:].partition(b"\n")[0]))
            await exchange.begin(Framing.SSE)
        before, last = last, events
        if n_prompts > 1:
            usages += usages_in(events)
        await exchange.write(events)
    tail = before[-4096:] + last[-8192:]
    if not tail.rstrip().endswith(DONE) and ERROR_HEAD not in tail:
        raise StreamCut(response.socket_path)
    await exchange.finish()
    return usage_sum(usages) if usages else usage_in(tail)


def _without_prelude(events: bytes) -> bytes:
    """What is left from the first event that is neither a ping nor the prompt's progress."""
    while events.startswith(b":") or IS_PROGRESS in events[: events.find(b"\n\n")]:
        events = events[events.find(b"\n\n") + 2 :]
    return events
