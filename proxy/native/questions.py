"""What is asked of a child beside its slots: tokens, templates, and how it stands.

These do not wait behind a long answer. What a child tells of the machine's paths and of other
callers' requests is left out.
"""

from os.path import basename

import msgspec

from planners.model import ServedModel
from proxy.bodies import decoded
from proxy.door import Door
from proxy.engine_limits import check_grammars
from proxy.errors import UpstreamGone
from proxy.exchange import Exchange
from proxy.forward import REAPED_S, REPLY_BYTES, refusal, understood
from proxy.media import check_media
from proxy.native.meant import meant


class _Asked(msgspec.Struct):
    model: str | None = None


class _Next(msgspec.Struct):
    has_next_token: bool = False
    has_new_line: bool = False
    n_remain: int = 0
    n_decoded: int = 0


class _Slot(msgspec.Struct, omit_defaults=True):
    """What may be told of a slot: not its parameters, which hold grammars and stop words."""

    id: int
    n_ctx: int
    is_processing: bool
    speculative: bool | None = None
    id_task: int | None = None
    n_prompt_tokens: int | None = None
    n_prompt_tokens_processed: int | None = None
    n_prompt_tokens_cache: int | None = None
    next_token: tuple[_Next, ...] = ()


class _Adapter(msgspec.Struct):
    id: int
    path: str
    scale: float


_HEADERS = ((b"Content-Type", b"application/json"),)
_ASKED = msgspec.json.Decoder(_Asked)
_SLOTS = msgspec.json.Decoder(tuple[_Slot, ...])
_ADAPTERS = msgspec.json.Decoder(tuple[_Adapter, ...])
_PROPS = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def tokenize(door: Door, exchange: Exchange) -> None:
    """POST /tokenize."""
    await _passed(door, exchange, b"/tokenize")


async def detokenize(door: Door, exchange: Exchange) -> None:
    """POST /detokenize."""
    await _passed(door, exchange, b"/detokenize")


async def apply_template(door: Door, exchange: Exchange) -> None:
    """POST /apply-template."""
    await _passed(door, exchange, b"/apply-template")


async def props(door: Door, exchange: Exchange) -> None:
    """GET /props; the model's path is its name here."""
    model = meant(door, exchange, None)
    reply, socket_path = await _reply(door, exchange, model, b"GET", b"/props")
    told = understood(reply, _PROPS, socket_path=socket_path)
    await exchange.reply_json({**told, "model_path": model.model_id})


async def slots(door: Door, exchange: Exchange) -> None:
    """GET /slots: counters alone."""
    model = meant(door, exchange, None)
    reply, socket_path = await _reply(door, exchange, model, b"GET", b"/slots")
    await exchange.reply_json(understood(reply, _SLOTS, socket_path=socket_path))


async def lora_adapters(door: Door, exchange: Exchange) -> None:
    """GET /lora-adapters; by the names of their files."""
    model = meant(door, exchange, None)
    reply, socket_path = await _reply(door, exchange, model, b"GET", b"/lora-adapters")
    adapters = understood(reply, _ADAPTERS, socket_path=socket_path)
    told = [_Adapter(one.id, basename(one.path), one.scale) for one in adapters]
    await exchange.reply_json(told)


async def _passed(door: Door, exchange: Exchange, target: bytes) -> None:
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    model = meant(door, exchange, decoded(body, _ASKED).model)
    if target == b"/apply-template":  # which looks at media and schemas as a chat does
        check_media(body)
        check_grammars(body)
    reply, _ = await _reply(door, exchange, model, b"POST", target, body)
    await exchange.reply(200, reply)


async def _reply(
    door: Door,
    exchange: Exchange,
    model: ServedModel,
    method: bytes,
    target: bytes,
    body: bytes = b"",
) -> tuple[bytes, str]:
    """A child's answer, and its socket; another child's where one is lost meanwhile.

    Raises LeaseError, UpstreamError, what the child refuses.
    """
    async with exchange.attended():
        try:
            return await _reply_of_one(door, exchange, model, method, target, body)
        except UpstreamGone:
            return await _reply_of_one(door, exchange, model, method, target, body)


async def _reply_of_one(
    door: Door, exchange: Exchange, model: ServedModel, method: bytes, target: bytes, body: bytes
) -> tuple[bytes, str]:
    async with door.service.lease(
        model.model_id, caller=exchange.caller, takes_slot=False
    ) as lease:
        exchange.lease = lease
        sent = door.pools.request(
            lease.socket_path, method=method, target=target,
            headers=(*_HEADERS, *exchange.passed_on),
            body=(body,) if body else (),
        )  # fmt: skip
        try:
            async with sent as response:
                if response.status != 200:
                    raise await refusal(response, lease)
                return await response.read(limit_bytes=REPLY_BYTES), lease.socket_path
        except UpstreamGone:
            await door.service.until_gone(lease, within_s=REAPED_S)
            raise
