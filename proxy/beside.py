"""What is asked of a child beside its slots: it waits behind no long answer."""

from planners.model import ServedModel
from proxy.child.refusals import refusal
from proxy.door import Door
from proxy.engine_limits import check_body, check_text
from proxy.errors import UpstreamGone
from proxy.exchange import Exchange
from proxy.forward import REAPED_S, REPLY_BYTES

_HEADERS = ((b"Content-Type", b"application/json"),)


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
    if body:
        check_body(body)
    with exchange.attended():
        try:
            return await _answer(door, exchange, model, method, target, body, keep_alive_s)
        except UpstreamGone:
            return await _answer(door, exchange, model, method, target, body, keep_alive_s)


async def pass_beside(
    door: Door, exchange: Exchange, model: ServedModel, *, target: bytes, body: bytes
) -> None:
    """Passes a child's answer on as it is. Raises as `answer_beside` does.

    Its caller has it before the lease is given back.
    """
    check_body(body)
    told = (door, exchange, model, b"POST", target, body, None)
    with exchange.attended():
        try:
            reply, _ = await _answer(*told, is_passed=True)
        except UpstreamGone:
            reply, _ = await _answer(*told, is_passed=True)
    if not exchange.finished:
        await exchange.reply(200, reply)


async def _answer(
    door: Door,
    exchange: Exchange,
    model: ServedModel,
    method: bytes,
    target: bytes,
    body: bytes,
    keep_alive_s: float | None,
    *,
    is_passed: bool = False,
) -> tuple[bytes, str]:
    """Of one child; passed on already where it is to be, unless the caller is slow."""
    async with door.service.lease(
        model.model_id, caller=exchange.caller, keep_alive_s=keep_alive_s, takes_slot=False
    ) as lease:
        exchange.lease = lease
        check_text(body, model=model.model_id, n_ctx=lease.context)
        sent = door.pools.request(
            lease.socket_path, method=method, target=target,
            headers=(*_HEADERS, *exchange.passed_on),
            body=(body,) if body else (),
        )  # fmt: skip
        try:
            async with sent as response:
                if response.status != 200:
                    raise await refusal(response, lease)
                reply = response.at_once(limit_bytes=REPLY_BYTES)
                if reply is None:
                    reply = await response.read(limit_bytes=REPLY_BYTES)
                if is_passed and not exchange.to_caller.is_slow:
                    exchange.answer(200, reply)
                return reply, lease.socket_path
        except UpstreamGone:
            await door.service.until_gone(lease, within_s=REAPED_S)
            raise
