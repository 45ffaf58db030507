"""POST /embedding, the rerank routes and /v1/audio/transcriptions: what a model makes of inputs."""

from functools import partial

import msgspec

from planners.capabilities import Capability, capabilities
from planners.durations import wished_duration
from planners.model import ServedModel
from proxy import names
from proxy.bodies import decoded
from proxy.child.chunks import ABSENT
from proxy.door import Door
from proxy.engine_limits import check_pairs
from proxy.errors import NotCapable
from proxy.exchange import Exchange
from proxy.forward import Check, Order, converse
from proxy.native.form import field
from proxy.native.meant import meant
from proxy.prompt.count import MAX_INPUTS, check_count, n_prompts_in, prompts_in
from proxy.prompt.length import Prompt, bounding
from proxy.relay import relay_whole


class _Asked(msgspec.Struct):
    model: str | None = None
    keep_alive: float | str | None = None
    num_ctx: int | None = None


class _AskedToEmbed(_Asked):
    content: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    """What llama-server reads where there is no content."""

    @property
    def told(self) -> msgspec.Raw:
        """A text, token ids, or an array of either."""
        return self.input if self.content == ABSENT else self.content


class _AskedToRank(_Asked):
    query: str = ""
    documents: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """What Text Embeddings Inference calls them."""


_ASKED_TO_EMBED = msgspec.json.Decoder(_AskedToEmbed)
_ASKED_TO_RANK = msgspec.json.Decoder(_AskedToRank)


async def embedding(door: Door, exchange: Exchange) -> None:
    """POST /embedding, /embeddings: llama-server's own shape, an array of vectors by token."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = decoded(body, _ASKED_TO_EMBED)
    model = names.embedder(meant(door, exchange, asked.model))
    n_prompts_in(asked.told, most=MAX_INPUTS, param="input")
    check = None
    if asked.num_ctx is not None:  # else the child itself refuses what is too long
        told = prompts_in(asked.told, most=MAX_INPUTS, param="input")
        prompts = [Prompt.of({"prompt": one}) for one in told]
        check = bounding(door, model, asked.model or model.model_id, prompts, asked.num_ctx)
    await _passed(door, exchange, Order(b"/embedding", body), asked, model, check)


async def rerank(door: Door, exchange: Exchange) -> None:
    """POST /v1/rerank and its other names: Jina's shape, or that of Text Embeddings Inference."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = decoded(body, _ASKED_TO_RANK)
    model = meant(door, exchange, asked.model)
    if not model.info.is_reranker:
        because = "only a model with pooling type rank does"
        raise NotCapable(model.model_id, "reranking", because=because)
    documents = asked.documents or asked.texts
    check_count(len(documents), param="documents")
    check_pairs(asked.query, documents)
    check = None
    if asked.num_ctx is not None:  # the child puts a mark or two between both
        pairs = [Prompt(texts=(asked.query, text)) for text in documents]
        check = bounding(door, model, asked.model or model.model_id, pairs, asked.num_ctx)
    await _passed(door, exchange, Order(b"/v1/rerank", body), asked, model, check)


async def transcriptions(door: Door, exchange: Exchange) -> None:
    """POST /v1/audio/transcriptions: a form, of which the model is read here."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    content_type = exchange.header(b"content-type")
    model = meant(door, exchange, field(body, content_type, b"model"))
    is_unknown = model.settings.mmproj_path is not None and model.projector is None
    if Capability.AUDIO not in capabilities(model) and not is_unknown:
        because = "it has no projector that hears"
        raise NotCapable(model.model_id, "audio", because=because)
    order = Order(b"/v1/audio/transcriptions", body, form=content_type)
    await _passed(door, exchange, order, _Asked(), model)


async def _passed(
    door: Door,
    exchange: Exchange,
    order: Order,
    asked: _Asked,
    model: ServedModel,
    check: Check | None = None,
) -> None:
    keep_alive_s = wished_duration(asked.keep_alive)
    with exchange.attended():
        await converse(
            door, exchange, order, model=model, keep_alive_s=keep_alive_s,
            hear=partial(relay_whole, exchange), context=asked.num_ctx,
            check=check,
        )  # fmt: skip
