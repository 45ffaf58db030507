"""POST /api/chat and POST /api/generate: loaded, unloaded, refused, or asked of the child."""

from functools import partial
from typing import TypeVar

import msgspec

from planners.capabilities import Capability, capabilities
from planners.model import ServedModel
from proxy import names
from proxy.child.upstream import UpstreamResponse
from proxy.door import Door
from proxy.errors import BadRequest
from proxy.exchange import Exchange
from proxy.forward import Check, Hear, Order, converse, whole_reply
from proxy.ollama.answering import Answering, ContextOf
from proxy.ollama.replies import EMPTY, Writer, json_string
from proxy.ollama.requests import (
    Common,
    GenerateRequest,
    chat_body,
    completion_body,
    read_chat,
    read_generate,
)
from proxy.prompt.length import RENDERED, Bound, Infill, Prompt, rendered, token_ids
from proxy.prompt.options import Options
from proxy.prompt.truncation import shortened_chat, shortened_text
from supervisor.leases.lease import Lease

CHAT = b"/v1/chat/completions"
COMPLETION = b"/completion"
INFILL = b"/infill"

T = TypeVar("T")


class Incapable(BadRequest):
    """The model cannot do what was asked."""

    def __init__(self, name: str, what: str) -> None:
        self.what = what
        super().__init__(f"{name} does not support {what}")


async def chat(door: Door, exchange: Exchange) -> None:
    """POST /api/chat."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    request = read_chat(body, truncates=door.settings.ollama_strict)
    if not request.common.model:
        raise BadRequest("model is required")
    turn = _Turn.of(door, exchange, request.common, is_chat=True)
    with exchange.attended():
        if not request.messages and request.common.keep_alive_s == 0:
            return await turn.unload()
        options = request.common.options(turn.model.recipe)
        turn.check("chat", needs_tools=bool(request.tools))
        if not request.messages:
            return await turn.load(options)
        names.check_chats(turn.model)
        told = chat_body(request.told(turn.model.recipe), request.common, options, request.tools)
        return await turn.ask(CHAT, told, options)


async def generate(door: Door, exchange: Exchange) -> None:
    """POST /api/generate."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    request = read_generate(body, truncates=door.settings.ollama_strict)
    turn = _Turn.of(door, exchange, request.common, is_chat=False)
    with exchange.attended():
        if request.is_empty and request.common.keep_alive_s == 0:
            return await turn.unload()
        options = request.common.options(turn.model.recipe)
        turn.check("generate", needs_insert=bool(request.suffix) and request.template is None)
        if request.is_empty:
            return await turn.load(options)
        return await _generate(turn, request, options)


async def _generate(turn: "_Turn", request: GenerateRequest, options: Options) -> None:
    plain = completion_body(request.common, options)
    if request.template is not None:
        text = request.rendered(request.template, turn.model.recipe)
        told = plain | {"prompt": [*request.context, text] if request.context else text}
        context_of = partial(_context_of_text, turn.door, text, request.context)
        return await turn.ask(COMPLETION, told, options, context_of)
    if request.suffix:
        told = plain | {"input_prefix": request.prompt, "input_suffix": request.suffix}
        return await turn.ask(INFILL, told, options)
    if request.raw:
        return await turn.ask(COMPLETION, plain | {"prompt": request.prompt}, options)
    names.check_chats(turn.model)
    as_chat = chat_body(request.messages(turn.model.recipe), request.common, options)
    context_of = partial(_context, turn.door, msgspec.json.encode(as_chat), request.context)
    if not request.context:
        return await turn.ask(CHAT, as_chat, options, context_of)
    # What goes on from token ids has no messages: it is rendered here and sent as ids and text.
    text = await turn.rendered(as_chat)
    told = plain | {"prompt": [*request.context, text]}
    return await turn.ask(COMPLETION, told, options, context_of)


class _Turn(msgspec.Struct, frozen=True):
    """One request to one model, and what can be done with it."""

    door: Door
    exchange: Exchange
    model: ServedModel
    common: Common
    writer: Writer

    @classmethod
    def of(cls, door: Door, exchange: Exchange, common: Common, *, is_chat: bool) -> "_Turn":
        """The turn that a request begins. Raises BadName, CloudModel, UnknownModel."""
        model = names.served(door, exchange, common.model)
        return cls(door, exchange, model, common, Writer(model=common.model, chat=is_chat))

    async def unload(self) -> None:
        """Lets the model go."""
        self.door.service.unload(self.model.model_id)
        await self.exchange.reply(200, self.writer.bare("unload"))

    async def load(self, options: Options) -> None:
        """Waits until the model is there."""
        keep_alive_s = self.common.keep_alive_s
        await self.door.service.load(
            self.model.model_id, keep_alive_s=keep_alive_s, context=options.n_ctx
        )
        await self.exchange.reply(200, self.writer.bare("load"))

    def check(self, what: str, *, needs_tools: bool = False, needs_insert: bool = False) -> None:
        """Raises Incapable in Ollama's words, with the short or the full name as it has them."""
        can = capabilities(self.model)
        short_name = f'"{self.common.model}"'
        full_name = f"registry.ollama.ai/library/{names.display(self.model.model_id)}"
        if Capability.COMPLETION not in can:
            raise Incapable(short_name, what)
        if needs_tools and Capability.TOOLS not in can:
            raise Incapable(full_name, "tools")
        if needs_insert and Capability.INSERT not in can:
            raise Incapable(full_name, "insert")
        if self.common.think and Capability.THINKING not in can:
            raise Incapable(short_name, "thinking")

    async def ask(
        self,
        target: bytes,
        told: dict[str, object],
        options: Options,
        context_of: ContextOf | None = None,
    ) -> None:
        """Asks the child and answers with its stream; renders only, where that is wanted."""
        if self.common.render_only:
            return await self._show_prompt(told)
        answering = Answering(
            door=self.door,
            exchange=self.exchange,
            common=self.common,
            writer=self.writer,
            is_chat_route=target == CHAT,
            context_of=context_of,
        )
        n_ctx = options.n_ctx
        check: Check | None = None
        if target == INFILL:
            check = partial(self._check_infill, told, n_ctx)
        elif self.common.truncate:
            check = partial(self._shortened, target, told, options)
        elif n_ctx is not None:
            bound = Bound(self.door, self.model, self.common.model, Prompt.of(told), n_ctx)
            check = bound.check
        return await self._converse(
            target, told, answering.hear, context=n_ctx, check=check, streams=self.common.stream
        )

    async def _check_infill(self, told: dict[str, object], n_ctx: int | None, lease: Lease) -> None:
        """Raises InfillTooLong, unless its prompt may be cut; NumCtxExceeded."""
        infill = Infill(prefix=str(told["input_prefix"]), suffix=str(told["input_suffix"]))
        if self.common.truncate:
            self.exchange.n_dropped = await infill.n_dropped(self.door, lease)
            return
        await infill.check(self.door, lease)
        await Bound(self.door, self.model, self.common.model, Prompt.of(told), n_ctx).check(lease)

    async def _shortened(
        self, target: bytes, told: dict[str, object], options: Options, lease: Lease
    ) -> Order:
        """What is sent of a prompt that may be cut. Raises as what cuts it does."""
        if target == CHAT:
            short = await shortened_chat(self.door, lease, told, n_ctx=options.n_ctx)
        else:
            n_keep = options.n_keep
            short = await shortened_text(self.door, lease, told, n_keep=n_keep, n_ctx=options.n_ctx)
        self.exchange.n_dropped = short.n_dropped
        return Order(target, msgspec.json.encode(short.told))

    async def rendered(self, told: dict[str, object]) -> str:
        """The prompt as the model reads it: a chat in its template, or the text as it is."""
        if "messages" not in told:
            return str(told.get("prompt", ""))
        return (await self._read(b"/apply-template", told, RENDERED)).prompt

    async def _show_prompt(self, told: dict[str, object]) -> None:
        info = b',"_debug_info":{"rendered_template":%b}}' % json_string(await self.rendered(told))
        await self.exchange.reply(200, self.writer.piece(EMPTY).removesuffix(b"}") + info)

    async def _read(
        self, target: bytes, told: dict[str, object], decoder: msgspec.json.Decoder[T]
    ) -> T:
        """The child's whole reply to a small question."""
        replies: list[T] = []

        async def hear(lease: Lease, response: UpstreamResponse) -> None:
            replies.append(await whole_reply(lease, response, decoder))

        await self._converse(target, told, hear)
        return replies[-1]

    async def _converse(
        self,
        target: bytes,
        told: dict[str, object],
        hear: Hear,
        *,
        context: int | None = None,
        check: Check | None = None,
        streams: bool = False,
    ) -> None:
        order = Order(target, msgspec.json.encode(told))
        await converse(
            self.door, self.exchange, order,
            model=self.model, keep_alive_s=self.common.keep_alive_s, hear=hear,
            context=context, check=check, streams=streams,
        )  # fmt: skip


async def _context(
    door: Door, as_chat: bytes, before: tuple[int, ...], lease: Lease, text: bytes
) -> tuple[int, ...]:
    """The ids of all so far: what came before, the prompt as rendered, and the reply."""
    prompt = await rendered(door, lease, as_chat)
    return await _context_of_text(door, prompt, before, lease, text)


async def _context_of_text(
    door: Door, prompt: str, before: tuple[int, ...], lease: Lease, text: bytes
) -> tuple[int, ...]:
    text_so_far = prompt + msgspec.json.decode(text, type=str)
    return before + await token_ids(door, lease, text_so_far, add_special=not before)
