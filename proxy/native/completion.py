"""POST /completion and /infill: llama-server's own dialect of text, streamed or assembled."""

import msgspec

from planners.durations import wished_duration
from planners.lessons.usage import Usage
from planners.model import ServedModel
from proxy import names
from proxy.bodies import decoded
from proxy.child.chunks import ABSENT
from proxy.child.refusals import refusal
from proxy.child.sse import (
    IS_PROGRESS,
    KEEP_ALIVE,
    PROGRESS,
    EventReader,
    WholeEvents,
    without_progress,
)
from proxy.child.timings import usage_in, usage_sum
from proxy.child.upstream import UpstreamResponse
from proxy.door import Door
from proxy.engine_limits import EngineMembers
from proxy.errors import BadRequest, StreamCut
from proxy.exchange import Exchange, Framing
from proxy.forward import Check, Hear, Order, ask, converse
from proxy.native.meant import meant
from proxy.native.whole import Whole
from proxy.prompt.count import n_prompts_in, prompts_in
from proxy.prompt.length import TOKENS, Infill, Prompt, bounding
from proxy.pulse import Pulse
from proxy.relay import put_until_error, relay_whole
from supervisor.leases.lease import Lease


class _Extra(msgspec.Struct):
    text: str = ""


class _Asked(EngineMembers):
    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    n_cmpl: int | None = None
    prompt: msgspec.Raw = ABSENT
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: tuple[_Extra, ...] = ()
    return_progress: bool | None = None
    return_tokens: bool | None = None
    keep_alive: float | str | None = None
    num_ctx: int | None = None
    truncate: bool | None = None
    """Ours, of /infill: whether what is not next to the gap may be left out."""


_ASKED = msgspec.json.Decoder(_Asked)
INFILL = b"/infill"
_STREAMED = b'"stream":true,' + PROGRESS
_IS_LAST = b'"stop":true'
"""Unmistakable too."""


async def completion(door: Door, exchange: Exchange) -> None:
    """POST /completion."""
    await _complete(door, exchange, b"/completion")


async def infill(door: Door, exchange: Exchange) -> None:
    """POST /infill; a model that cannot is told apart by the child, by its vocabulary."""
    await _complete(door, exchange, INFILL)


async def _complete(door: Door, exchange: Exchange, target: bytes) -> None:
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = decoded(body, _ASKED)
    model = meant(door, exchange, asked.model)
    names.check_writes(model)
    if asked.n not in (None, 1) or asked.n_cmpl not in (None, 1):
        raise BadRequest("n_cmpl must be 1: each request has one slot of the model", param="n_cmpl")
    asked.check()
    is_infill = target == INFILL
    n_prompts = 1 if is_infill else n_prompts_in(asked.prompt)
    hear, extra = _hearing(door, exchange, asked, n_prompts=n_prompts)
    check = (
        _infill_check(door, exchange, asked, model)
        if is_infill
        else _check(door, asked, model, n_prompts)
    )
    keep_alive_s = wished_duration(asked.keep_alive)
    pulse = Pulse(KEEP_ALIVE, door.settings.keep_alive_comments_s) if asked.stream else None
    with exchange.attended(pulse):
        await converse(
            door, exchange, Order(target, body, extra), model=model, keep_alive_s=keep_alive_s,
            hear=hear, context=asked.num_ctx, check=check,
            streams=bool(asked.stream),
        )  # fmt: skip


def _hearing(
    door: Door, exchange: Exchange, asked: _Asked, *, n_prompts: int
) -> tuple[Hear, bytes]:
    """How the reply is heard, and the members that ask for it in that form."""

    async def stream(lease: Lease, response: UpstreamResponse) -> None:
        shows_progress = bool(asked.return_progress)
        usages = await _relayed(exchange, lease, response, shows_progress, n_prompts)
        _report(door, exchange, lease, usages)

    async def assemble(lease: Lease, response: UpstreamResponse) -> None:
        if response.status != 200:
            raise await refusal(response, lease)
        events = EventReader(response.socket_path)
        whole = Whole(response.socket_path, n_prompts=n_prompts)

        def take(chunk: bytes) -> None:
            for event in events.feed(chunk):
                whole.add(event)

        await response.pour(take, exchange.to_caller)
        await _drop_stop_words(door, lease, whole)
        await exchange.reply(200, whole.reply())
        _report(door, exchange, lease, whole.usages())

    async def pass_whole(lease: Lease, response: UpstreamResponse) -> None:
        await relay_whole(exchange, lease, response)

    if asked.stream:
        return stream, PROGRESS
    # A stream has not all the ids, so that a caller who wants them is noticed to leave later.
    return (pass_whole, b"") if asked.return_tokens else (assemble, _STREAMED)


def _check(door: Door, asked: _Asked, model: ServedModel, n_prompts: int) -> Check | None:
    """What holds each prompt to its request's num_ctx, each of several to what is loaded."""
    if asked.num_ctx is None and n_prompts == 1:
        return None  # the child itself refuses what is too long
    prompts = [_prompt(one, _around(asked)) for one in prompts_in(asked.prompt)]
    name = asked.model or model.model_id
    return bounding(door, model, name, prompts, asked.num_ctx)


def _infill_check(door: Door, exchange: Exchange, asked: _Asked, model: ServedModel) -> Check:
    """What refuses a prefix or a suffix that would be read in part, unless that is asked for."""
    told = msgspec.json.decode(asked.prompt) if asked.prompt != ABSENT else ""
    infill = Infill(asked.input_prefix, asked.input_suffix, _prompt(told, ()))
    bound = _check(door, asked, model, 1)

    async def check(lease: Lease) -> Order | None:
        if asked.truncate:
            exchange.n_dropped = await infill.n_dropped(door, lease)
            return None
        await infill.check(door, lease)
        return None if bound is None else await bound(lease)

    return check


def _around(asked: _Asked) -> tuple[str, ...]:
    """What of an infill is not its prompt; empty texts elsewhere."""
    return asked.input_prefix, asked.input_suffix, *(extra.text for extra in asked.input_extra)


def _prompt(told: object, around: tuple[str, ...]) -> Prompt:
    """A text, token ids, both mixed, or an object with a text in it and media beside."""
    if isinstance(told, dict):
        told = told.get("prompt_string", "")
    parts = told if isinstance(told, list) else [told]
    if len(parts) == 1 and isinstance(parts[0], list):
        parts = parts[0]
    texts = tuple(part for part in parts if isinstance(part, str))
    return Prompt(texts=(*texts, *around), n_ids=len(parts) - len(texts))


async def _relayed(
    exchange: Exchange,
    lease: Lease,
    response: UpstreamResponse,
    shows_progress: bool,
    n_prompts: int,
) -> list[Usage]:
    """Passes the stream as it comes, without progress unless asked for; it has no [DONE]."""
    if response.status != 200:
        raise await refusal(response, lease)
    relayed = _Relayed(exchange, response.socket_path, shows_progress=shows_progress)
    await response.pour(relayed.take, exchange.to_caller)
    if relayed.n_ended < n_prompts:
        raise StreamCut(response.socket_path)
    await exchange.finish()
    return relayed.usages


class _Relayed:
    """What has been passed on of a stream of events."""

    def __init__(self, exchange: Exchange, socket_path: str, *, shows_progress: bool) -> None:
        self._exchange, self._shows_progress = exchange, shows_progress
        self._whole = WholeEvents(socket_path)
        self.n_ended = 0
        """Prompts whose reply is over."""
        self.usages: list[Usage] = []

    def take(self, arrived: bytes) -> None:
        """Passes on what a piece of the stream completes. Raises ChildFailed, UpstreamBroken."""
        exchange, events = self._exchange, self._whole.take(arrived)
        if not self._shows_progress and (IS_PROGRESS in events or not exchange.delivered):
            events = without_progress(events)
        put_until_error(events, self._put)

    def _put(self, events: bytes) -> None:
        exchange = self._exchange
        if not exchange.delivered:
            exchange.begin(Framing.SSE)
        if _IS_LAST in events:
            ends = [event for event in events.split(b"\n\n") if _IS_LAST in event]
            self.usages += [usage for usage in map(usage_in, ends) if usage is not None]
            self.n_ended += len(ends)
        exchange.put(events)


async def _drop_stop_words(door: Door, lease: Lease, whole: Whole) -> None:
    """Leaves out the probabilities of a stop word's tokens, as many as it has by itself."""
    for part in whole.parts:
        if part.probabilities and part.stopping_word:
            told = {"content": part.stopping_word, "add_special": False, "parse_special": False}
            body = msgspec.json.encode(told)
            counted = await ask(door, lease, TOKENS, target=b"/tokenize", body=body)
            part.drop_probabilities(len(counted.tokens))


def _report(door: Door, exchange: Exchange, lease: Lease, usages: list[Usage]) -> None:
    if usages:
        exchange.usage = usage_sum(usages)
        door.service.report(lease, exchange.usage)
