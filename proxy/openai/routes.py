"""OpenAI's routes: the child's own dialect, so requests and streams pass; the model is chosen."""

import re
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from planners.capabilities import capabilities
from planners.durations import wished_duration
from planners.lessons.usage import Usage
from planners.model import ServedModel
from proxy import names
from proxy.bodies import amended, decoded
from proxy.chat.media import check_media
from proxy.child.chunks import ABSENT
from proxy.child.refusals import refusal
from proxy.child.sse import KEEP_ALIVE, PROGRESS
from proxy.child.timings import usage_of
from proxy.child.upstream import UpstreamResponse
from proxy.door import Door
from proxy.engine_limits import EngineMembers
from proxy.errors import BadRequest, PromptTooLong
from proxy.exchange import Exchange
from proxy.forward import REPLY_BYTES, Check, Hear, Order, Several, converse
from proxy.openai.assemble import STREAMED, assembled
from proxy.openai.choices import MAX_CHOICES, RANDOM_SEED, Choices
from proxy.openai.dimensions import AS_NUMBERS, shortened
from proxy.openai.ollamas_names import in_ollamas_names
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
    messages: msgspec.Raw = ABSENT
    suffix: msgspec.Raw = ABSENT
    response_format: msgspec.Raw = ABSENT
    dimensions: int | None = None
    encoding_format: str | None = None
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


class _Format(msgspec.Struct):
    type: str = ""
    schema: msgspec.Raw = ABSENT


_NOTHING = (b"", b"null", b"false", b"0")
_UNTOLD = (b"", b"null")
_EMPTY_ARRAY = re.compile(rb"\[\s*\]")
_ANY_OBJECT = (
    b'"response_format":{"type":"json_schema",'
    b'"json_schema":{"name":"object","schema":{"type":"object"}}}'
)

_ASKED_OF_SEVERAL = msgspec.json.Decoder(_AskedOfSeveral)
_ASKED = msgspec.json.Decoder(_Asked)
_FORMAT = msgspec.json.Decoder(_Format)


async def list_models(door: Door, exchange: Exchange) -> None:
    """GET /v1/models."""
    await exchange.reply(200, door.listed.told(_entries, door.service.models()))


async def one_model(door: Door, exchange: Exchange, name: str) -> None:
    """GET /v1/models/{id}; an id may hold slashes."""
    await exchange.reply_json(_entry(names.named(door, exchange, name), name))


def chat_completions(door: Door, exchange: Exchange) -> Awaitable[None]:
    """POST /v1/chat/completions."""
    return _complete(door, exchange, chat=True)


def completions(door: Door, exchange: Exchange) -> Awaitable[None]:
    """POST /v1/completions."""
    return _complete(door, exchange, chat=False)


async def embeddings(door: Door, exchange: Exchange) -> None:
    """POST /v1/embeddings; never a stream."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = decoded(body, _ASKED)
    model = names.embedder(names.named(door, exchange, asked.model))
    if _says_nothing(asked.input):
        raise BadRequest("invalid input", param="input")
    n_prompts_in(asked.input, most=MAX_INPUTS, param="input")
    cut = asked.dimensions
    if cut is not None and cut < 1:
        raise BadRequest("dimensions must be at least 1", param="dimensions")

    async def hear(lease: Lease, response: UpstreamResponse) -> None:
        try:
            if cut is None:
                await relay_whole(exchange, lease, response)
            else:
                await _relay_cut(exchange, lease, response, cut, asked.encoding_format)
        except PromptTooLong as exc:
            told = _decoded(asked.input)
            raise await located(door, lease, told if isinstance(told, list) else (), exc) from exc

    order = Order(b"/v1/embeddings", body, extra=AS_NUMBERS if cut is not None else b"")
    with exchange.attended():
        await converse(
            door, exchange, order, model=model, hear=hear,
            keep_alive_s=wished_duration(asked.keep_alive), context=asked.num_ctx,
            check=_embedding_check(door, asked, model),
        )  # fmt: skip


async def _relay_cut(
    exchange: Exchange, lease: Lease, response: UpstreamResponse, n: int, encoding: str | None
) -> None:
    if response.status != 200:
        raise await refusal(response, lease)
    reply = await response.read(limit_bytes=REPLY_BYTES)
    is_packed = encoding == "base64"
    socket_path = response.socket_path
    await exchange.reply(200, shortened(reply, n, as_base64=is_packed, socket_path=socket_path))


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
        exchange.rewords = in_ollamas_names
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = decoded(body, _ASKED)
    model = names.named(door, exchange, asked.model)
    names.check_writes(model)
    n_choices = _n_choices(asked)
    asked.check()
    n_prompts = 1 if chat else n_prompts_in(asked.prompt)
    if n_prompts > 1 and n_choices > 1:
        raise BadRequest("n must be 1 where there are several prompts", param="n")
    body = _of_chat(asked, body, model) if chat else _of_text(asked, body)
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


def _of_chat(asked: _Asked, body: bytes, model: ServedModel) -> bytes:
    """What a chat's child is asked with. Raises what is refused."""
    names.check_chats(model)
    if _EMPTY_ARRAY.fullmatch(asked.messages):
        raise BadRequest("[] is too short - 'messages'", param="messages")
    check_media(body)
    return _with_object(asked, body)


def _of_text(asked: _Asked, body: bytes) -> bytes:
    """Likewise of a completion: a child would pass a suffix over in silence."""
    if bytes(asked.suffix) not in (*_UNTOLD, b'""'):
        reason = "suffix is not offered here: POST /infill, or Ollama's /api/generate, takes one"
        raise BadRequest(reason, param="suffix")
    return body


def _says_nothing(told: msgspec.Raw) -> bool:
    return bytes(told) in _UNTOLD or _EMPTY_ARRAY.fullmatch(told) is not None


def _with_object(asked: _Asked, body: bytes) -> bytes:
    """The body, with a schema for any object where it asks for one without a schema.

    llama-server's own json_object does not constrain the output (b10434).
    """
    if b"json_object" not in bytes(asked.response_format):
        return body
    told = decoded(bytes(asked.response_format), _FORMAT)
    if told.type != "json_object" or not _is_any(told.schema):
        return body
    return b"".join(amended(body, _ANY_OBJECT))


def _is_any(schema: msgspec.Raw) -> bool:
    return bytes(schema) in _UNTOLD or msgspec.json.decode(schema) == {}


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
    n = asked.n if asked.n_cmpl is None else asked.n_cmpl
    if n is None:
        return 1
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


def _entries(models: Sequence[ServedModel]) -> bytes:
    data = [_entry(model, names.display(model.model_id)) for model in models]
    return msgspec.json.encode({"object": "list", "data": data})


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
