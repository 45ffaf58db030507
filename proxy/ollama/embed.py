"""POST /api/embed and its old form POST /api/embeddings."""

from collections.abc import Sequence
from time import monotonic

import msgspec

from planners.model import ServedModel
from proxy import names
from proxy.child.upstream import UpstreamResponse
from proxy.door import Door
from proxy.errors import BadRequest, PromptTooLong
from proxy.exchange import Exchange
from proxy.forward import Order, converse, whole_reply
from proxy.ollama.fields import read_object
from proxy.prompt.count import check_count
from proxy.prompt.length import Bound, Prompt, bounds_of, located
from proxy.prompt.options import read_options
from proxy.prompt.truncation import shortened_inputs
from proxy.vectors import unit_vector
from supervisor.leases.lease import Lease


class _Row(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0


class _Reply(msgspec.Struct):
    data: list[_Row]
    usage: _Usage = msgspec.field(default_factory=_Usage)


_UNKNOWN = 'model "{}" not found, try pulling it first'
_REPLY = msgspec.json.Decoder(_Reply)


class _Embedded(msgspec.Struct, frozen=True):
    vectors: tuple[list[float], ...]
    prompt_tokens: int
    load_s: float


class _Wish(msgspec.Struct, frozen=True):
    """What is to be embedded, and how."""

    model: ServedModel
    name: str
    texts: list[str]
    keep_alive_s: float | None
    n_ctx: int | None
    truncates: bool

    def bounds(self, door: Door) -> list[Bound]:
        """What holds the texts to the request's num_ctx."""
        prompts = [Prompt(texts=(text,)) for text in self.texts]
        return bounds_of(door, self.model, self.name, prompts, self.n_ctx)


async def embed(door: Door, exchange: Exchange) -> None:
    """POST /api/embed."""
    fields = read_object(await _body(door, exchange), "EmbedRequest")
    texts = _texts(fields.value("input"))
    name, keep_alive_s = fields.text("model"), fields.keep_alive_s()
    dimensions = fields.whole("dimensions")
    n_ctx = read_options(fields.mapping("options")).n_ctx
    model = names.served(door, exchange, name, unknown=_UNKNOWN.format(name) if name else None)
    with exchange.attended():
        if not texts:
            wanted = names.embedder(model).model_id
            await door.service.load(wanted, keep_alive_s=keep_alive_s, context=n_ctx)
            return await exchange.reply_json({"model": name, "embeddings": []})
        truncates = fields.flag("truncate", default=door.settings.ollama_strict)
        wish = _Wish(model, name, texts, keep_alive_s, n_ctx, truncates)
        embedded = await _embedded(door, exchange, wish)
        told: dict[str, object] = {
            "model": name,
            "embeddings": [unit_vector(vector, dimensions) for vector in embedded.vectors],
            "total_duration": round((monotonic() - exchange.started_s) * 1e9),
            "load_duration": max(1, round(embedded.load_s * 1e9)),
            "prompt_eval_count": embedded.prompt_tokens,
        }
        if exchange.n_dropped is not None:
            told["prompt_tokens_dropped"] = exchange.n_dropped
        return await exchange.reply_json(told)


async def embeddings(door: Door, exchange: Exchange) -> None:
    """POST /api/embeddings."""
    fields = read_object(await _body(door, exchange), "EmbeddingRequest")
    name, prompt, keep_alive_s = fields.text("model"), fields.text("prompt"), fields.keep_alive_s()
    truncates = fields.flag("truncate", default=door.settings.ollama_strict)
    n_ctx = read_options(fields.mapping("options")).n_ctx
    if not name:
        raise BadRequest("model is required")
    model = names.served(door, exchange, name, unknown=_UNKNOWN.format(name))
    with exchange.attended():
        if not prompt:
            wanted = names.embedder(model).model_id
            await door.service.load(wanted, keep_alive_s=keep_alive_s, context=n_ctx)
            return await exchange.reply_json({"embedding": []})
        wish = _Wish(model, name, [prompt], keep_alive_s, n_ctx, truncates)
        embedded = await _embedded(door, exchange, wish)
        return await exchange.reply_json({"embedding": embedded.vectors[0]})


async def _body(door: Door, exchange: Exchange) -> bytes:
    return await exchange.body(limit_bytes=door.settings.max_body_bytes)


def _texts(told: object) -> list[str]:
    """The inputs; an empty text or array is none. Raises BadRequest."""
    if told is None or told == "":
        return []
    texts = [told] if isinstance(told, str) else told
    if not isinstance(texts, list) or any(not isinstance(text, str) for text in texts):
        raise BadRequest("invalid input type")
    check_count(len(texts))
    return texts


async def _embedded(door: Door, exchange: Exchange, wish: _Wish) -> _Embedded:
    got: list[_Embedded] = []

    async def check(lease: Lease) -> Order | None:
        if wish.truncates:
            inputs, exchange.n_dropped = await shortened_inputs(
                door, lease, wish.texts, n_ctx=wish.n_ctx
            )
            return _order(inputs)
        if wish.n_ctx is not None and wish.n_ctx < lease.context:
            for bound in wish.bounds(door):
                await bound.check(lease)
        return None

    async def hear(lease: Lease, response: UpstreamResponse) -> None:
        try:
            reply = await whole_reply(lease, response, _REPLY)
        except PromptTooLong as exc:
            raise await located(door, lease, wish.texts, exc) from exc
        rows = sorted(reply.data, key=lambda row: row.index)
        load_s = lease.granted_at_s - exchange.started_s
        got.append(
            _Embedded(tuple(row.embedding for row in rows), reply.usage.prompt_tokens, load_s)
        )

    await converse(
        door, exchange, _order(wish.texts),
        model=names.embedder(wish.model), keep_alive_s=wish.keep_alive_s, hear=hear,
        context=wish.n_ctx, check=check,
    )  # fmt: skip
    return got[-1]


def _order(inputs: Sequence[object]) -> Order:
    body = msgspec.json.encode({"input": inputs, "encoding_format": "float"})
    return Order(b"/v1/embeddings", body)
