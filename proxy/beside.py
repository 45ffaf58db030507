"""What is asked of a child beside its slots: it waits behind no long answer."""

from msgspec import Struct

from planners.model import ServedModel
from proxy.child.refusals import refusal
from proxy.door import Door
from proxy.engine_limits import check_body, check_text
from proxy.errors import UpstreamGone
from proxy.exchange import Exchange
from proxy.forward import REAPED_S, REPLY_BYTES

_HEADERS = ((b"Content-Type", b"application/json"),)


class _Question(Struct, frozen=True):
    """What is asked, of whichever child of the model there is."""

    model: ServedModel
    method: bytes
    target: bytes
    body: bytes
    keep_alive_s: float | None
    is_passed: bool = False
    """Whether the caller gets the answer as it is."""


async def answer_beside(
    door: Door,
    exchange: Exchange,
    model: ServedModel,
    *,
    method: bytes,
    target: bytes,
    body: bytes = b"",
    keep_alive_s: float | None = None,
) -> tuple[bytes, str]:
    """A child's answer, and its socket; another child's where one is lost meanwhile.

    Raises what a child would not bear (engine_limits), LeaseError, UpstreamError, what it refuses.
    """
    return await _answered(door, exchange, _Question(model, method, target, body, keep_alive_s))


async def pass_beside(
    door: Door, exchange: Exchange, model: ServedModel, *, target: bytes, body: bytes
) -> None:
    """Passes a child's answer on as it is. Raises as `answer_beside` does.

    Its caller has it before the lease is given back.
    """
    asked = _Question(model, b"POST", target, body, None, is_passed=True)
    reply, _ = await _answered(door, exchange, asked)
    if not exchange.finished:
        await exchange.reply(200, reply)


async def _answered(door: Door, exchange: Exchange, asked: _Question) -> tuple[bytes, str]:
    """Of one child, and of another where that is lost meanwhile."""
    if asked.body:
        check_body(asked.body)
    with exchange.attended():
        try:
            return await _answer(door, exchange, asked)
        except UpstreamGone:
            return await _answer(door, exchange, asked)


async def _answer(door: Door, exchange: Exchange, asked: _Question) -> tuple[bytes, str]:
    """Of one child; passed on already where it is to be, unless the caller is slow."""
    model_id = asked.model.model_id
    async with door.service.lease(
        model_id, caller=exchange.caller, keep_alive_s=asked.keep_alive_s, takes_slot=False
    ) as lease:
        exchange.lease = lease
        check_text(asked.body, model=model_id, n_ctx=lease.context)
        sent = door.pools.request(
            lease.socket_path, method=asked.method, target=asked.target,
            headers=(*_HEADERS, *exchange.passed_on),
            body=(asked.body,) if asked.body else (),
        )  # fmt: skip
        try:
            async with sent as response:
                if response.status != 200:
                    raise await refusal(response, lease)
                reply = response.at_once(limit_bytes=REPLY_BYTES)
                if reply is None:
                    reply = await response.read(limit_bytes=REPLY_BYTES)
                if asked.is_passed and not exchange.to_caller.is_slow:
                    exchange.answer(200, reply)
                return reply, lease.socket_path
        except UpstreamGone:
            await door.service.until_gone(lease, within_s=REAPED_S)
            raise
