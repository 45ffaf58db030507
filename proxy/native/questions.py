"""What is asked of a child beside its slots: tokens, templates, and how it stands.

What a child tells of the machine's paths and of other callers' requests is left out.
"""

from collections.abc import Awaitable
from os.path import basename

import msgspec

from proxy import names
from proxy.beside import answer_beside, pass_beside
from proxy.bodies import decoded
from proxy.chat.media import check_media
from proxy.door import Door
from proxy.exchange import Exchange
from proxy.forward import understood
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


_ASKED = msgspec.json.Decoder(_Asked)
_SLOTS = msgspec.json.Decoder(tuple[_Slot, ...])
_ADAPTERS = msgspec.json.Decoder(tuple[_Adapter, ...])
_PROPS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def tokenize(door: Door, exchange: Exchange) -> Awaitable[None]:
    """POST /tokenize."""
    return _passed(door, exchange, b"/tokenize")


def detokenize(door: Door, exchange: Exchange) -> Awaitable[None]:
    """POST /detokenize."""
    return _passed(door, exchange, b"/detokenize")


def apply_template(door: Door, exchange: Exchange) -> Awaitable[None]:
    """POST /apply-template."""
    return _passed(door, exchange, b"/apply-template")


async def props(door: Door, exchange: Exchange) -> None:
    """GET /props; the model's path is its name here."""
    model = meant(door, exchange, None)
    reply, socket_path = await answer_beside(door, exchange, model, method=b"GET", target=b"/props")
    told = understood(reply, _PROPS, socket_path=socket_path)
    await exchange.reply_json({**told, "model_path": model.model_id})


async def slots(door: Door, exchange: Exchange) -> None:
    """GET /slots: counters alone."""
    model = meant(door, exchange, None)
    reply, socket_path = await answer_beside(door, exchange, model, method=b"GET", target=b"/slots")
    await exchange.reply_json(understood(reply, _SLOTS, socket_path=socket_path))


async def lora_adapters(door: Door, exchange: Exchange) -> None:
    """GET /lora-adapters; by the names of their files."""
    model = meant(door, exchange, None)
    reply, socket_path = await answer_beside(
        door, exchange, model, method=b"GET", target=b"/lora-adapters"
    )
    adapters = understood(reply, _ADAPTERS, socket_path=socket_path)
    told = [_Adapter(one.id, basename(one.path), one.scale) for one in adapters]
    await exchange.reply_json(told)


async def _passed(door: Door, exchange: Exchange, target: bytes) -> None:
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    model = meant(door, exchange, decoded(body, _ASKED).model)
    if target == b"/apply-template":  # which looks at media as a chat does
        names.check_chats(model)
        check_media(body)
    await pass_beside(door, exchange, model, target=target, body=body)
