"""Relays one exchange: a lease, a request to its child, the reply, and what if the child is lost.

    lease ─ send ─ hear → done
      └ lost, nothing delivered → another lease, once more; the caller sees nothing of it
      └ lost in mid-stream → another lease, and the stream goes on (proxy/continuity/), once
      └ made way for another (a migration) → likewise, as often as that happens
          └ it cannot → raised, and told as an error event by app.py; never a silent end
Leaving, however it happens, closes the upstream connection, which frees the slot, and gives the
lease back.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from random import getrandbits
from time import monotonic
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec
from msgspec.structs import replace

from planners.model import ServedModel
from planners.moving.migration import keeps_math
from planners.view import InstanceState
from proxy import names
from proxy.bodies import Buffers, amended
from proxy.child.refusals import refusal
from proxy.child.upstream import UpstreamRequest, UpstreamResponse
from proxy.continuity.continuation import Asked, asked_by, goes_on_anywhere, seed_member
from proxy.continuity.delivered import KINDS
from proxy.continuity.lasting import Lasting, Resumption
from proxy.continuity.tokens import (
    DETOKENIZED,
    TOKENIZED,
    Piece,
    detokenize_body,
    tokenize_body,
)
from proxy.door import Door
from proxy.engine_limits import check_body, check_text
from proxy.errors import UpstreamBroken, UpstreamGone
from proxy.exchange import Exchange
from supervisor.leases.lease import Lease

REPLY_BYTES = 256 << 20  # a whole reply is held in memory: embeddings of a large batch
TRIES = 2  # a request that kills a second child would kill a third
CAUSE_S = 0.5  # a caller who waits for its error is not kept longer for the cause
REAPED_S = 2.0  # the fleet knows of a child's end within milliseconds; by now it certainly does

T = TypeVar("T")

_LEAVING = (InstanceState.DRAINING, InstanceState.STOPPING)
_JSON = (b"Content-Type", b"application/json")


class Order(msgspec.Struct, frozen=True):
    """What to send to whichever child grants the lease."""

    target: bytes
    body: bytes
    """A JSON object; the lease's slot is added to it on the way."""
    extra: bytes = b""
    """Further members (`"key":value,…`) that override the body's."""
    form: bytes = b""
    """The Content-Type of a body that is no JSON: it goes as it is, to whichever slot is free."""


_NO_ORDER = Order(b"", b"")


Hear = Callable[[Lease, UpstreamResponse], Awaitable[object]]


class Turn(Protocol):
    """A lease and what is asked under it; where its child is lost, the next one's."""

    @property
    def lease(self) -> Lease:
        """Of the child that answers now."""

    async def further(self, order: Order) -> UpstreamResponse:
        """The stream of one more request; what of it is lost, the next child writes.

        Raises UpstreamError, LeaseError.
        """


class Several(msgspec.Struct, frozen=True):
    """Hears a reply that is made of those to several requests, one after the other."""

    hear: Callable[[Turn, UpstreamResponse], Awaitable[object]]


Check = Callable[[Lease], Awaitable[Order | None]]
"""Refuses, or gives what to send instead, where that depends on the lease."""


async def converse(
    door: Door,
    exchange: Exchange,
    order: Order,
    *,
    model: ServedModel,
    keep_alive_s: float | None,
    hear: Hear | Several,
    context: int | None = None,
    check: Check | None = None,
    streams: bool = False,
) -> None:
    """Sends `order` under a lease and hands the reply to `hear`; again if a child is lost unheard.

    `hear` may be called twice, and starts anew. `check` sees the lease first, and may refuse, or
    give another order. What is delivered as it comes (`streams`) is read as one stream, though its
    child is lost meanwhile and another writes on. One that may not be written on by a child which
    computes otherwise ends before its own makes way for such a one.
    Raises what a child would not bear (engine_limits), LeaseError, UpstreamError, what the two
    raise.
    """
    if not order.form:
        check_body(order.body)
    asked = asked_by(order.body) if streams else None
    can_pause = not streams or goes_on_anywhere(asked, KINDS[order.target])
    # No function within: its annotations would be made anew for each request.
    wanted = partial(
        door.service.lease, model.model_id, caller=exchange.caller, keep_alive_s=keep_alive_s,
        context=context, priority=exchange.priority, can_pause=can_pause,
    )  # fmt: skip
    rewords = exchange.rewords
    times = 1
    after: Lease | None = None
    while True:
        async with _Turn(door, exchange, wanted, order, asked, times=times, after=after) as turn:
            try:
                lease = await turn.begin()
                if lease.model_id != model.model_id:  # names share a process, which knows of one
                    exchange.rewords = names.calling(model.model_id, lease.model_id, rewords)
                if not order.form:
                    check_text(order.body, model=model.model_id, n_ctx=lease.context)
                door.crashers.check(lease, order.target, order.body, now_s=monotonic())
                changed = None if check is None else await check(lease)
                response = await turn.reply(changed or order, streams=streams)
                if isinstance(hear, Several):
                    await hear.hear(turn, response)
                else:
                    await hear(lease, response)
                door.service.answered(turn.lease)
                return
            except UpstreamGone as exc:
                if exc.cause is not None:
                    raise
                # Leased meanwhile, so that nobody else is granted the slot of a dead child.
                is_excused = turn.is_excused
                is_over = exchange.delivered or (turn.times == TRIES and not is_excused)
                cause = await turn.why_gone(within_s=CAUSE_S if is_over else REAPED_S)
                if is_over:
                    raise exc.explained(cause, times=turn.times) from exc
                times = turn.times + (not is_excused)
                after = turn.lease


class _Turn:
    """A lease and the request that is sent under it, given up together.

    To a stream that lost its child it is the next one: proxy.continuity.lasting.Successor.
    """

    __slots__ = (
        "_after", "_asked", "_cause", "_door", "_exchange", "_leased", "_order", "_read",
        "_request", "_wanted", "lease", "times",
    )  # fmt: skip

    lease: Lease

    def __init__(
        self,
        door: Door,
        exchange: Exchange,
        wanted: Callable[..., AbstractAsyncContextManager[Lease]],
        asked: Order,
        read: Asked | None,
        *,
        times: int,
        after: Lease | None,
    ) -> None:
        """`read`: what the body of `asked` says, where its reply is read as one stream."""
        self._door, self._exchange, self._wanted, self._asked = door, exchange, wanted, asked
        self._read = read
        self._after = after
        self._leased: AbstractAsyncContextManager[Lease] | None = None
        self._request: UpstreamRequest | None = None
        self._order = _NO_ORDER
        self._cause = ""
        self.times = times
        """How many children this request has been sent to."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives up the request first: who is granted the slot next must find it free.

        `exc`: what ended it early, after which the child may be at work on it still.
        """
        request, self._request = self._request, None
        leased, self._leased = self._leased, None
        try:
            if request is not None:
                request.close()
        finally:
            if leased is not None:
                await leased.__aexit__(kind, exc, None)

    async def why_gone(self, *, within_s: float) -> str | None:
        """Why the child ended; a crash with nothing else under way is held against the request."""
        service, lease, asked = self._door.service, self.lease, self._asked
        cause = await service.until_gone(lease, within_s=within_s)
        if cause is not None and service.crashed_alone(lease):
            crashers, now_s = self._door.crashers, monotonic()
            crashers.note(lease, asked.target, asked.body, cause=cause, now_s=now_s)
        return cause

    @property
    def is_excused(self) -> bool:
        """Whether this child's end counts for nothing: it made way, or its engine is to blame."""
        service, lease = self._door.service, self.lease
        return service.moved(lease) is not None or service.blames_engine(lease)

    async def begin(self) -> Lease:
        """Waits for a lease. Raises LeaseError."""
        leased = self._wanted(after=self._after)
        self.lease = self._exchange.lease = await leased.__aenter__()
        self._leased = leased
        return self.lease

    async def reply(self, order: Order, *, streams: bool) -> UpstreamResponse:
        """The child's reply. Raises UpstreamError."""
        if not streams:
            self._order = order
            return await self._sent(order).open()
        read = self._read if order.body is self._asked.body else asked_by(order.body)
        self._order = order = _seeded(order, read)
        return Lasting(await self._sent(order).open(), KINDS[order.target], self)

    async def further(self, order: Order) -> UpstreamResponse:
        """The stream of one more request, of the next child where this one is gone by now."""
        while True:
            try:
                return await self.reply(order, streams=True)
            except UpstreamGone as exc:
                if not self.is_due:
                    raise
                loss = exc
            try:
                await self.take()
            except UpstreamGone as exc:
                raise self.lost(loss, str(exc)) from exc

    def _sent(self, order: Order) -> UpstreamRequest:
        """The request that the child is to be asked now, in place of any before it."""
        if self._request is not None:
            self._request.close()
        lease = self.lease
        self._request = self._door.pools.request(
            lease.socket_path,
            method=b"POST",
            target=order.target,
            headers=(
                (b"Content-Type", order.form) if order.form else _JSON,
                *self._exchange.passed_on,
            ),
            body=(order.body,) if order.form else pinned(order, lease),
        )
        return self._request

    # what a stream asks for that has lost its child

    @property
    def body(self) -> bytes:
        """The request as it was sent."""
        return b"".join(pinned(self._order, self.lease))

    @property
    def is_due(self) -> bool:
        """Not where the child was to go anyway, nor before the caller has anything."""
        if not self._exchange.delivered:
            return False
        if self._door.service.moved(self.lease) is not None:
            return True
        if self.times == TRIES and not self.is_excused:
            return False
        stays = (seen for seen in self._door.service.running() if seen.state not in _LEAVING)
        return any(seen.instance_id == self.lease.instance_id for seen in stays)

    async def take(self) -> bool:
        """Waits for the next lease; the caller gets signs of life, where its dialect has any."""
        lost = self.lease
        moved, is_excused = self._door.service.moved(lost), self.is_excused
        cause = await self.why_gone(within_s=REAPED_S)
        self._cause = moved or cause or "its process is gone"
        self._exchange.pause()
        await self.__aexit__(None, None, None)
        self.times += not is_excused
        self._after = lost
        lease = await self.begin()
        if lost.plan is None or lease.plan is None:
            return False
        return keeps_math(lost.plan, lease.plan)

    @property
    def is_restored(self) -> bool:
        """Whether the next child has the slot's cache."""
        return self.lease.restored_tokens > 0

    @property
    def restored_ids(self) -> tuple[int, ...]:
        """The tokens in it, where they are known."""
        return self.lease.restored_ids

    async def pieces(self, text: str) -> list[Piece]:
        """By the next child's tokenizer."""
        body = tokenize_body(text)
        told = await ask(self._door, self.lease, TOKENIZED, target=b"/tokenize", body=body)
        return told.tokens

    async def text(self, ids: Sequence[int]) -> str:
        """By the next child's vocabulary."""
        body = detokenize_body(ids)
        told = await ask(self._door, self.lease, DETOKENIZED, target=b"/detokenize", body=body)
        return told.content

    async def send(self, extra: bytes) -> UpstreamResponse:
        """The next child's reply to the same request. Raises UpstreamError, what it refuses."""
        order = self._order
        if extra:
            order = replace(order, extra=order.extra + b"," + extra)
        response = await self._sent(order).open()
        if response.status != 200:
            raise await refusal(response, self.lease)
        return response

    def resumed(self, resumption: Resumption) -> None:
        """Has the fleet note it."""
        self._door.service.resumed(
            self.lease,
            cause=self._cause,
            way=resumption.way,
            pause_s=resumption.pause_s,
            n_computed=resumption.n_computed,
        )

    def lost(self, loss: UpstreamGone, why: str) -> UpstreamGone:
        """With the cause, and why that could not be made good."""
        told = f"{self._cause}; {why}" if self._cause else why
        return loss.explained(told, times=1)


def _seeded(order: Order, asked: Asked | None) -> Order:
    """The order with a seed, without which nobody could write the same again."""
    member = seed_member(asked, chance=getrandbits(32)) if asked is not None else b""
    if not member:
        return order
    return replace(order, extra=order.extra + b"," + member if order.extra else member)


def pinned(order: Order, lease: Lease) -> Buffers:
    """The body with the lease's slot as its last member, which overrides a caller's own id_slot."""
    extra = order.extra + b"," if order.extra else b""
    return amended(order.body, extra + b'"id_slot":%d' % lease.slot)


async def ask(
    door: Door, lease: Lease, decoder: msgspec.json.Decoder[T], *, target: bytes, body: bytes
) -> T:
    """The child's reply to a question that takes no slot. Raises ChildRefused, UpstreamError."""
    async with door.pools.request(
        lease.socket_path, method=b"POST", target=target, headers=(_JSON,), body=(body,)
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
