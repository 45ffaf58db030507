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
    asked = _Question(model, method, target, body, keep_alive_s)
    with exchange.attended():
        try:
            return await _answer(door, exchange, asked)
        except UpstreamGone:
            return await _answer(door, exchange, asked)


async def _answer(door: Door, exchange: Exchange, asked: _Question) -> tuple[bytes, str]:
    """Of one child."""
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
                return await response.read(limit_bytes=REPLY_BYTES), lease.socket_path
        except UpstreamGone:
            await door.service.until_gone(lease, within_s=REAPED_S)
            raise
