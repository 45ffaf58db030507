"""A request of another dialect, asked of the child as a chat, and the reply as the dialect says."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from planners.durations import wished_duration
from planners.model import ServedModel
from proxy import names
from proxy.beside import answer_beside
from proxy.bodies import bound_values, decoded
from proxy.chat.reply import ChatReply
from proxy.child.chunks import Delta
from proxy.child.refusals import refusal
from proxy.child.sse import KEEP_ALIVE
from proxy.child.upstream import UpstreamResponse
from proxy.door import Door
from proxy.exchange import Exchange, Framing
from proxy.forward import Check, Order, converse, understood
from proxy.prompt.length import Bound, Prompt
from proxy.prompt.truncation import shortened_chat
from proxy.pulse import Pulse
from supervisor.leases.lease import Lease

CHAT = b"/v1/chat/completions"
_COUNT = b"/v1/chat/completions/input_tokens"

STREAMED: dict[str, object] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_progress": True,
}
"""Members of every chat body: what is assembled here, and what makes a child notice who leaves."""


MAX_VALUES = 300_000
"""In one body, as in Ollama's dialect: fewer than elsewhere, since all of it becomes objects."""

T = TypeVar("T")


class Writer(Protocol):
    """How a dialect words one reply, as events of a stream or whole."""

    @property
    def is_over(self) -> bool:
        """True where what the child has still to say is of no interest."""

    def add(self, delta: Delta) -> bytes:
        """The events for what was just heard; empty where it says nothing."""

    def end(self) -> bytes:
        """The last events of the stream."""

    def whole(self) -> bytes:
        """All of it as one object."""


class _Counted(msgspec.Struct):
    input_tokens: int


_COUNTED = msgspec.json.Decoder(_Counted)


class _Over(Exception):
    """What a child has still to say is of no interest."""


class ChatTurn(msgspec.Struct, frozen=True):
    """One request to one model, as the child's chat body; sent by `answer` or `count`."""

    door: Door
    exchange: Exchange
    model: ServedModel
    name: str
    """The model as its caller calls it."""
    body: bytes
    keep_alive: float | str | None = None
    num_ctx: int | None = None
    truncates: bool = False
    """Whether the oldest messages are left out of a chat that is too long."""

    async def answer(
        self, writer: Callable[[ChatReply], Writer], *, streams: bool, sign: bytes = KEEP_ALIVE
    ) -> None:
        """Answers with what `writer` makes of the child's reply.

        `sign` is the dialect's event, or comment, for a stream that has nothing to say yet.
        Raises LeaseError, UpstreamError, what the child refuses.
        """

        async def hear(lease: Lease, response: UpstreamResponse) -> None:
            if response.status != 200:
                raise await refusal(response, lease)
            reply = ChatReply(response.socket_path)
            words = writer(reply)

            def take(chunk: bytes) -> None:
                events: list[bytes] = []
                try:
                    for delta in reply.feed(chunk):
                        events.append(words.add(delta))
                finally:  # what came before an error is told before it
                    if streams and any(events):
                        self._write(b"".join(events))
                if words.is_over:
                    raise _Over

            try:
                await response.pour(take, self.exchange.to_caller)
            except _Over:
                pass
            else:
                reply.check_end()
            self._report(lease, reply)
            await self._end(words, streams=streams)

        order = Order(CHAT, self.body)
        pulse = Pulse(sign, self.door.settings.keep_alive_comments_s) if streams else None
        with self.exchange.attended(pulse):
            await converse(
                self.door, self.exchange, order, model=self.model, hear=hear, check=self._check(),
                keep_alive_s=wished_duration(self.keep_alive), context=self.num_ctx,
                streams=streams,
            )  # fmt: skip

    async def count(self) -> int:
        """The tokens that the child would read; no slot is waited for."""
        reply, socket_path = await answer_beside(
            self.door, self.exchange, self.model, method=b"POST", target=_COUNT, body=self.body,
            keep_alive_s=wished_duration(self.keep_alive),
        )  # fmt: skip
        return understood(reply, _COUNTED, socket_path=socket_path).input_tokens

    def _write(self, events: bytes) -> None:
        if not self.exchange.begun:
            self.exchange.begin(Framing.SSE)
        self.exchange.put(events)

    async def _end(self, words: Writer, *, streams: bool) -> None:
        if not streams:
            await self.exchange.reply(200, words.whole())
            return
        if not self.exchange.begun:
            self.exchange.begin(Framing.SSE)
        await self.exchange.finish(words.end())

    def _report(self, lease: Lease, reply: ChatReply) -> None:
        if reply.timings is not None:
            self.exchange.usage = usage = reply.timings.usage()
            self.door.service.report(lease, usage)

    def _check(self) -> Check | None:
        if self.truncates:
            return self._shortened
        if self.num_ctx is None:
            return None
        prompt = Prompt(chat=self.body)
        return Bound(self.door, self.model, self.name, prompt, self.num_ctx).check

    async def _shortened(self, lease: Lease) -> Order | None:
        """What is sent instead of too long a chat, and says so. Raises as what cuts it does."""
        told = msgspec.json.decode(self.body)
        short = await shortened_chat(self.door, lease, told, n_ctx=self.num_ctx)
        self.exchange.n_dropped = short.n_dropped
        return Order(CHAT, msgspec.json.encode(short.told)) if short.n_dropped else None


def read_whole(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """A request of which all is read. Raises BadJson, TooManyValues."""
    bound_values(body, limit=MAX_VALUES)
    return decoded(body, decoder)


def chat_model(door: Door, exchange: Exchange, name: str | None) -> ServedModel:
    """The model that `name` means. Raises BadRequest for one that writes no text, UnknownModel."""
    model = names.named(door, exchange, name)
    names.check_writes(model)
    names.check_chats(model)
    return model
