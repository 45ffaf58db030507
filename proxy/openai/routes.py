"""OpenAI's routes: the child's own dialect, so requests and streams pass; the model is chosen."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from planners.capabilities import capabilities
from planners.durations import wished_duration
from planners.lessons.usage import Usage
from planners.model import ServedModel
from proxy import names
from proxy.bodies import decoded
from proxy.chat.media import check_media
from proxy.child.chunks import ABSENT
from proxy.child.sse import KEEP_ALIVE, PROGRESS
from proxy.child.timings import usage_of
from proxy.child.upstream import UpstreamResponse
from proxy.door import Door
from proxy.engine_limits import EngineMembers
from proxy.errors import BadRequest, PromptTooLong
from proxy.exchange import Exchange
from proxy.forward import Check, Hear, Order, Several, converse
from proxy.openai.assemble import STREAMED, assembled
from proxy.openai.choices import MAX_CHOICES, RANDOM_SEED, Choices
from proxy.openai.fingerprint import with_ollamas_fingerprint
from proxy.prompt.count import MAX_INPUTS, n_prompts_in, prompts_in
from proxy.prompt.length import Prompt, bounding, located
from proxy.prompt.maker import OPENAIS_DEFAULTS, asked_body
from proxy.pulse import Pulse
from proxy.relay import relay_stream, relay_whole
from supervisor.leases.lease import Lease


class _Asked(EngineMembers):
    """What a completion request must tell us; the rest is between the caller and the child."""

    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    n_cmpl: int | None = None
    """llama-server's own name for n."""
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    verbose: bool | None = None
    return_progress: bool | None = None
    keep_alive: float | str | None = None
    """Ours: as in Ollama's dialect."""
    num_ctx: int | None = None
    """Ours too."""
    reasoning_format: str = ""
    """Read here because the child refuses another type without saying of which field."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _AskedOfSeveral(msgspec.Struct):
    """What a request for several choices must tell besides."""

    seed: int | None = None
    stream_options: _StreamOptions | None = None


_NOTHING = (b"", b"null", b"false", b"0")

_ASKED_OF_SEVERAL = msgspec.json.Decoder(_AskedOfSeveral)
_ASKED = msgspec.json.Decoder(_Asked)


async def list_models(door: Door, exchange: Exchange) -> None:
    """GET /v1/models."""
    data = [_entry(model, names.display(model.model_id)) for model in door.service.models()]
    await exchange.reply_json({"object": "list", "data": data})


async def one_model(door: Door, exchange: Exchange, name: str) -> None:
    """GET /v1/models/{id}; an id may hold slashes."""
    await exchange.reply_json(_entry(names.named(door, exchange, name), name))


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
    model = names.embedder(names.named(door, exchange, asked.model))
    n_prompts_in(asked.input, most=MAX_INPUTS, param="input")

    async def hear(lease: Lease, response: UpstreamResponse) -> None:
        try:
            await relay_whole(exchange, lease, response)
        except PromptTooLong as exc:
            told = _decoded(asked.input)
            raise await located(door, lease, told if isinstance(told, list) else (), exc) from exc

    with exchange.attended():
        await converse(
            door, exchange, Order(b"/v1/embeddings", body), model=model, hear=hear,
            keep_alive_s=wished_duration(asked.keep_alive), context=asked.num_ctx,
            check=_embedding_check(door, asked, model),
        )  # fmt: skip


def _embedding_check(door: Door, asked: _Asked, model: ServedModel) -> Check | None:
    """What holds each text, or array of token ids, to its request's num_ctx."""
    if asked.num_ctx is None:
        return None  # the child itself refuses what is too long
    name = asked.model or model.model_id
    told = prompts_in(asked.input, most=MAX_INPUTS, param="input")
    return bounding(door, model, name, _prompts(told), asked.num_ctx)


def _prompts(told: Iterable[object]) -> list[Prompt]:
    return [Prompt.of({"prompt": each}) for each in told]


async def _complete(door: Door, exchange: Exchange, *, chat: bool) -> None:
    if door.settings.ollama_strict:
        exchange.rewords = with_ollamas_fingerprint
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = decoded(body, _ASKED)
    model = names.named(door, exchange, asked.model)
    names.check_writes(model)
    n_choices = _n_choices(asked)
    asked.check()
    n_prompts = 1 if chat else n_prompts_in(asked.prompt)
    if n_prompts > 1 and n_choices > 1:
        raise BadRequest("n must be 1 where there are several prompts", param="n")
    if chat:
        names.check_chats(model)
        check_media(body)
    defaults = OPENAIS_DEFAULTS if door.settings.ollama_strict else None
    body = asked_body(body, model.recipe, chat=chat, defaults=defaults)
    hear: Hear | Several
    target = b"/v1/chat/completions" if chat else b"/v1/completions"
    if asked.stream:
        shows_progress = bool(asked.return_progress)
        hear = _stream(door, exchange, shows_progress=shows_progress, n_prompts=n_prompts)
        order = Order(target, body, extra=PROGRESS)
    elif _is_lost_in_a_stream(asked):
        hear, order = _pass(door, exchange), Order(target, body)
    else:
        hear = _assemble(door, exchange, chat=chat, n_prompts=n_prompts)
        order = Order(target, body, extra=STREAMED)
    if n_choices > 1:
        hear, order = _several(door, exchange, asked, order, n=n_choices, chat=chat)
    pulse = Pulse(KEEP_ALIVE, door.settings.keep_alive_comments_s) if asked.stream else None
    with exchange.attended(pulse):
        await converse(
            door, exchange, order, model=model, hear=hear,
            keep_alive_s=wished_duration(asked.keep_alive), context=asked.num_ctx,
            check=_check(door, asked, model, Prompt(chat=body) if chat else None, n_prompts),
            streams=bool(asked.stream),
        )  # fmt: skip


def _check(
    door: Door, asked: _Asked, model: ServedModel, chat: Prompt | None, n_prompts: int
) -> Check | None:
    """What holds a prompt, or each of several, to its request's num_ctx and to what is loaded."""
    if asked.num_ctx is None and n_prompts == 1:
        return None  # the child itself refuses what is too long
    name = asked.model or model.model_id
    prompts = [chat] if chat is not None else _prompts(prompts_in(asked.prompt))
    return bounding(door, model, name, prompts, asked.num_ctx)


def _n_choices(asked: _Asked) -> int:
    """How many choices are wanted. Raises BadRequest for too many, or none."""
    n = next((told for told in (asked.n_cmpl, asked.n) if told is not None), 1)
    if not 1 <= n <= MAX_CHOICES:
        raise BadRequest(f"n must be 1 to {MAX_CHOICES}, not {n}", param="n")
    return n


def _several(
    door: Door, exchange: Exchange, asked: _Asked, order: Order, *, n: int, chat: bool
) -> tuple[Hear | Several, Order]:
    """How n choices are heard, and what asks for the first of them."""
    more = decoded(order.body, _ASKED_OF_SEVERAL)
    seed, options = more.seed, more.stream_options
    if seed is not None and (seed < 0 or seed == RANDOM_SEED):
        seed = None
    if asked.stream:
        order = Order(order.target, order.body, extra=STREAMED)
    choices = Choices(door, exchange, order, n, seed)
    if asked.stream:
        hear = partial(
            choices.hear_stream,
            shows_progress=bool(asked.return_progress),
            shows_usage=options is not None and options.include_usage is True,
        )
        return Several(hear), choices.first
    assembles = bool(order.extra)
    return partial(choices.hear_whole, chat=chat, assembles=assembles), choices.first


def _stream(door: Door, exchange: Exchange, *, shows_progress: bool, n_prompts: int) -> Hear:
    async def hear(lease: Lease, response: UpstreamResponse) -> None:
        usage = await relay_stream(
            exchange, lease, response, shows_progress=shows_progress, n_prompts=n_prompts
        )
        _report(door, exchange, lease, usage)

    return hear


def _assemble(door: Door, exchange: Exchange, *, chat: bool, n_prompts: int) -> Hear:
    async def hear(lease: Lease, response: UpstreamResponse) -> None:
        whole = await assembled(lease, response, chat=chat, n_choices=n_prompts)
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
        body = await relay_whole(exchange, lease, response)
        _report(door, exchange, lease, usage_of(body))

    return hear


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


def _report(door: Door, exchange: Exchange, lease: Lease, usage: Usage | None) -> None:
    if usage is not None:
        exchange.usage = usage
        door.service.report(lease, usage)
