"""OpenAI's routes: the child's own dialect, so requests and streams pass; the model is chosen."""

import re
from typing import Any

import msgspec

from planners.capabilities import capabilities
from planners.durations import parse_duration
from planners.model import ServedModel
from proxy import names
from proxy.assemble import STREAMED, Assembly
from proxy.bodies import decoded
from proxy.chunks import ABSENT
from proxy.door import Door
from proxy.engine_limits import EngineMembers
from proxy.errors import BadRequest, PromptTooLong
from proxy.exchange import Exchange
from proxy.forward import Check, Hear, Order, converse, refusal, relay_stream, relay_whole
from proxy.media import check_media
from proxy.prompt_length import Bound, Prompt, located
from proxy.pulse import Pulse
from proxy.sse import KEEP_ALIVE, EventReader
from proxy.upstream import UpstreamResponse
from supervisor.lease import Lease, Usage


class _Asked(EngineMembers):
    """What a completion request must tell us; the rest is between the caller and the child."""

    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    n_cmpl: int | None = None
    """llama-server's own name for n."""
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    logprobs: msgspec.Raw = ABSENT
    """A flag in a chat, a number in a completion."""
    n_probs: msgspec.Raw = ABSENT
    """llama-server's own name for them."""
    verbose: bool | None = None
    return_progress: bool | None = None
    keep_alive: float | str | None = None
    """Ours: as in Ollama's dialect."""
    num_ctx: int | None = None
    """Ours too."""
    reasoning_format: str = ""
    """Read here because the child refuses another type without saying of which field."""


MAX_PROMPTS = 256
"""In one request: they take the one slot of its lease one after another."""
_NOTHING = (b"", b"null", b"false", b"0")
_TOKEN_IDS = re.compile(rb"\[\s*[-0-9]")

_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_ASKED = msgspec.json.Decoder(_Asked)
_PROGRESS = b'"return_progress":true'
"""Asked of every child: one that writes while it reads a prompt notices that the caller left."""


async def list_models(door: Door, exchange: Exchange) -> None:
    """GET /v1/models."""
    data = [_entry(model, names.display(model.model_id)) for model in door.service.models()]
    await exchange.reply_json({"object": "list", "data": data})


async def one_model(door: Door, exchange: Exchange, name: str) -> None:
    """GET /v1/models/{id}; an id may hold slashes."""
    await exchange.reply_json(_entry(_served(door, exchange, name), name))


async def chat_completions(door: Door, exchange: Exchange) -> None:
    """POST /v1/chat/completions."""
    await _complete(door, exchange, chat=True)


async def completions(door: Door, exchange: Exchange) -> None:
    """POST /v1/completions."""
    await _complete(door, exchange, chat=False)


async def embeddings(door: Door, exchange: Exchange) -> None:
    """POST /v1/embeddings; never a stream."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = decoded(body, _ASKED)
    model = names.embedder(_served(door, exchange, asked.model))

    async def hear(lease: Lease, response: UpstreamResponse) -> None:
        try:
            await relay_whole(exchange, lease, response)
        except PromptTooLong as exc:
            told = _decoded(asked.input)
            raise await located(door, lease, told if isinstance(told, list) else (), exc) from exc

    async with exchange.attended():
        await converse(
            door, exchange, Order(b"/v1/embeddings", body),
            model=model, keep_alive_s=_keep_alive_s(asked), hear=hear, context=asked.num_ctx,
        )  # fmt: skip


async def _complete(door: Door, exchange: Exchange, *, chat: bool) -> None:
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = decoded(body, _ASKED)
    model = _served(door, exchange, asked.model)
    if model.info.is_embedding:
        raise BadRequest(f'"{model.model_id}" does not support completions', param="model")
    if asked.n not in (None, 1) or asked.n_cmpl not in (None, 1):
        raise BadRequest("n must be 1: each request has one slot of the model", param="n")
    asked.check()
    n_prompts = 1 if chat else n_prompts_in(asked.prompt)
    if n_prompts > MAX_PROMPTS:
        reason = f"prompt must hold at most {MAX_PROMPTS} prompts, not {n_prompts}"
        raise BadRequest(reason, param="prompt")
    if chat:
        check_media(body)
    target = b"/v1/chat/completions" if chat else b"/v1/completions"
    if asked.stream:
        shows_progress = bool(asked.return_progress)
        hear = _stream(door, exchange, shows_progress=shows_progress, n_prompts=n_prompts)
        order = Order(target, body, extra=_PROGRESS)
    elif _is_lost_in_a_stream(asked):
        hear, order = _pass(door, exchange), Order(target, body)
    else:
        hear = _assemble(door, exchange, chat=chat, n_prompts=n_prompts)
        order = Order(target, body, extra=STREAMED)
    pulse = Pulse(KEEP_ALIVE, door.settings.keep_alive_comments_s) if asked.stream else None
    async with exchange.attended(pulse):
        await converse(
            door, exchange, order, model=model, keep_alive_s=_keep_alive_s(asked), hear=hear,
            context=asked.num_ctx, check=_check(door, asked, model, body, chat=chat),
        )  # fmt: skip


def _check(
    door: Door, asked: _Asked, model: ServedModel, body: bytes, *, chat: bool
) -> Check | None:
    """What holds a prompt, or each of several, to its request's num_ctx and to what is loaded."""
    n_prompts = 1 if chat else n_prompts_in(asked.prompt)
    if asked.num_ctx is None and n_prompts == 1:
        return None  # the child itself refuses what is too long
    name = asked.model or model.model_id
    if n_prompts == 1:
        told = Prompt(chat=body) if chat else Prompt.of({"prompt": _decoded(asked.prompt)})
        return Bound(door, model, name, told, asked.num_ctx).check
    bounds = [
        Bound(door, model, name, Prompt.of({"prompt": one}), asked.num_ctx, place=(at, n_prompts))
        for at, one in enumerate(_decoded(asked.prompt), 1)
    ]

    async def check(lease: Lease) -> None:
        for bound in bounds:
            await bound.check(lease)

    return check


def n_prompts_in(told: msgspec.Raw) -> int:
    """How many prompts the child reads in `told`: in an array with a token id in it, one."""
    if _TOKEN_IDS.match(told) or bytes(memoryview(told)[:1]) != b"[":
        return 1
    items = _ITEMS.decode(told)
    is_mixed = any(memoryview(item)[0] in b"-0123456789" for item in items)
    return 1 if is_mixed else max(1, len(items))


def _stream(door: Door, exchange: Exchange, *, shows_progress: bool, n_prompts: int) -> Hear:
    async def hear(lease: Lease, response: UpstreamResponse) -> None:
        usage = await relay_stream(
            exchange, lease, response, shows_progress=shows_progress, n_prompts=n_prompts
        )
        _report(door, exchange, lease, usage)

    return hear


def _assemble(door: Door, exchange: Exchange, *, chat: bool, n_prompts: int) -> Hear:
    async def hear(lease: Lease, response: UpstreamResponse) -> None:
        if response.status != 200:
            raise await refusal(response, lease)
        events = EventReader(response.socket_path)
        whole = Assembly(response.socket_path, chat=chat, n_choices=n_prompts)
        async for chunk in response.chunks():
            for event in events.feed(chunk):
                whole.add(event)
        await exchange.reply(200, whole.reply())
        timings = whole.timings
        _report(door, exchange, lease, timings.usage() if timings is not None else None)

    return hear


def _is_lost_in_a_stream(asked: _Asked) -> bool:
    """Whether llama-server (b10434) tells whole what no assembly could know from its stream.

    It streams no logprobs of a token that ends no text: a part of a character, of a stop string,
    of a tag; and none at all beside tools.
    """
    wants_logprobs = any(bytes(told) not in _NOTHING for told in (asked.logprobs, asked.n_probs))
    return wants_logprobs or bool(asked.verbose)


def _pass(door: Door, exchange: Exchange) -> Hear:
    """What is asked unstreamed: a caller who left is noticed within a second, as a rule."""

    async def hear(lease: Lease, response: UpstreamResponse) -> None:
        _report(door, exchange, lease, await relay_whole(exchange, lease, response))

    return hear


def _served(door: Door, exchange: Exchange, name: str | None) -> ServedModel:
    if not (name or exchange.given_model):
        raise BadRequest("model is required", param="model")
    return names.served(door, exchange, name or "")


def _entry(model: ServedModel, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": int(model.modified_at),
        "owned_by": "library",
        "capabilities": [capability.value for capability in capabilities(model)],
        "meta": {
            "n_ctx_train": model.info.n_ctx_train,
            "n_params": model.info.n_params,
            "size": model.size_bytes,
        },
    }


def _decoded(told: msgspec.Raw) -> Any:
    return msgspec.json.decode(told) if told != ABSENT else None


def _keep_alive_s(asked: _Asked) -> float | None:
    return None if asked.keep_alive is None else parse_duration(asked.keep_alive)


def _report(door: Door, exchange: Exchange, lease: Lease, usage: Usage | None) -> None:
    if usage is not None:
        exchange.usage = usage
        door.service.report(lease, usage)
