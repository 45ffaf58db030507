"""One caller's request and the reply to it, and noticing that the caller left.

It knows framing, not meaning: dialects say what to write.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from enum import Enum
from time import monotonic
from types import TracebackType
from typing import Any

import msgspec

from planners.lessons.usage import Usage
from planners.waiting.line import Priority
from proxy import errors
from proxy.bodies import read_body
from proxy.edge.cycle import CYCLE, Cycle
from proxy.edge.known import HEAD, Head
from proxy.errors import Answer, BodyTooLarge, CallerLeft, Dialect
from proxy.pulse import Beats, Pulse
from proxy.request_id import HEADER as REQUEST_ID
from supervisor.leases.lease import Lease

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON = b"application/json; charset=utf-8"
TEXT = b"text/plain; charset=utf-8"
TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")  # W3C trace context
_PRIORITIES = {priority.value.encode(): priority for priority in Priority}


class Framing(Enum):
    """How a streamed reply is cut into messages."""

    SSE = b"text/event-stream"
    NDJSON = b"application/x-ndjson"


_STREAM_HEADERS = {
    framing: (
        (b"content-type", framing.value),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    )
    for framing in Framing
}


class Attended:
    """The block of Exchange.attended: cancelled from outside, as asyncio.timeout does it."""

    __slots__ = ("_exchange", "_has_left", "_n_cancelling", "_pulse", "_task")

    def __init__(self, exchange: "Exchange", pulse: Pulse | None) -> None:
        self._exchange, self._pulse = exchange, pulse
        self._has_left = False

    def __enter__(self) -> None:
        self._task = self._exchange.to_caller.task
        self._n_cancelling = self._task.cancelling()
        self._exchange.to_caller.listen(self._cut)
        if self._pulse is not None and self._pulse.every_s > 0:
            self._exchange.pulse = self._pulse
            self._exchange.keep_alive(self._pulse)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exchange.to_caller.listen(None)
        if self._pulse is not None:
            self._exchange.fall_silent()
        if not self._has_left:
            return
        is_ours_alone = self._task.uncancel() <= self._n_cancelling
        if is_ours_alone or not isinstance(exc, asyncio.CancelledError):
            # Whatever else failed in the same moment is of no interest any more.
            raise CallerLeft from None

    def _cut(self) -> None:
        if not (self._exchange.finished or self._has_left):
            self._has_left = True
            self._task.cancel()


class Exchange:
    """A request being answered. Exactly one of `reply`, or `begin` … `finish`, happens."""

    __slots__ = (
        "_beats", "_by_name", "_own_id", "address", "delivered", "dialect", "extra_headers",
        "finished",
        "first_byte_s", "framing", "given_model", "head", "headers", "is_known", "key_id",
        "last_word", "lease", "method", "model", "n_dropped", "path", "pulse", "request_id",
        "rewords", "scope", "sent_bytes", "started_s", "status", "to_caller", "traceparent",
        "usage",
    )  # fmt: skip

    def __init__(self, scope: Scope, *, request_id: str) -> None:
        self.scope = scope
        self.rewords: Callable[[bytes], bytes] | None = None
        """What is done to each part of the reply before it is sent; whole events of a stream."""
        self.to_caller: Cycle = scope[CYCLE]
        """What is written to it is on its way at once."""
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.head: Head = scope[HEAD]
        """What holds for every request with these headers."""
        self._by_name: dict[bytes, bytes] = self.head.by_name
        client = scope.get("client")
        self.address: str = client[0] if client else "local"
        """The peer's."""
        self.request_id = request_id
        self.started_s = monotonic()
        self.dialect = Dialect.OLLAMA
        self.key_id: str | None = None
        self.is_known = False
        self._own_id = (REQUEST_ID, request_id.encode())
        self.extra_headers: list[tuple[bytes, bytes]] = [self._own_id]
        self.framing: Framing | None = None
        self.status = 0
        self.sent_bytes = 0
        self.first_byte_s: float | None = None
        self.finished = False
        self.given_model: str | None = None
        """The model that the path names; it goes before what the body says."""
        self.model: str | None = None
        self.lease: Lease | None = None
        self.usage: Usage | None = None
        self.traceparent = b""
        """Of our own span, where requests are traced."""
        self.last_word: Callable[[Answer], bytes] | None = None
        """How a stream that has begun words an error, where the dialect's event is not enough."""
        self.delivered = False
        """True once a part of the reply was sent: nothing can be resent then."""
        self._beats: Beats | None = None
        self.pulse: Pulse | None = None
        """What keeps the caller's connection alive while nothing is said."""
        self.n_dropped: int | None = None
        """Tokens of the prompt that were left out; None where that was not asked for."""

    @property
    def begun(self) -> bool:
        """True once the caller was told a status: an error can only be the last event then."""
        return self.status != 0

    @property
    def caller(self) -> str:
        """Who asks, for a fair line: the key's id, else the peer's address."""
        return self.key_id or self.address

    @property
    def priority(self) -> Priority:
        """What the caller says of its request in `X-Priority`; where it says nothing, the most."""
        told = self._by_name.get(b"x-priority")
        if told is None:
            return Priority.HIGH
        return _PRIORITIES.get(told.strip().lower(), Priority.HIGH)

    def header(self, name: bytes) -> bytes:
        """The first value of a header, by its lower-case name; empty where there is none."""
        return self._by_name.get(name, b"")

    @property
    def passed_on(self) -> Headers:
        """What a child is told of the request: its id, and the trace that it belongs to."""
        own = self._own_id
        trace = self.traceparent or self._by_name.get(b"traceparent")
        if not trace or not TRACEPARENT.fullmatch(trace):
            return (own,)
        return (own, (b"traceparent", trace))

    async def body(self, *, limit_bytes: int) -> bytes:
        """The whole request body. Raises BodyTooLarge, CallerLeft."""
        whole = self.to_caller.whole_body()
        if whole is None:
            return await read_body(self.to_caller.receive, self.headers, limit_bytes=limit_bytes)
        if len(whole) > limit_bytes:
            raise BodyTooLarge(limit_bytes=limit_bytes)
        return whole

    def attended(self, pulse: Pulse | None = None) -> "Attended":
        """A block cut short with CallerLeft when the caller closes; the body was read before.

        Until the reply begins, `pulse` tells the caller of a stream of events that it is coming.
        """
        return Attended(self, pulse)

    def keep_alive(self, pulse: Pulse) -> None:
        """Begins to send `pulse`, for as long as the block of `attended` has said nothing."""

        def send() -> None:
            if self.to_caller.is_slow:
                return  # it has enough to read
            if not self.begun:
                self._begin(Framing.SSE)
            self.sent_bytes += len(pulse.data)
            self.to_caller.push(pulse.data, more=True)

        self._beats = Beats(send, every_s=pulse.every_s)

    def pause(self) -> None:
        """Begins that again, in the middle of a reply, until its next part."""
        if self.pulse is not None and self._beats is None:
            self.keep_alive(self.pulse)

    def fall_silent(self) -> None:
        """Ends the pulse."""
        if self._beats is not None:
            beats, self._beats = self._beats, None
            beats.stop()

    async def reply(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """The whole reply at once."""
        if self._beats is not None:
            self.fall_silent()  # it may not begin another while this one waits
        if self.to_caller.is_slow:
            await self.to_caller.drained()
        self.answer(status, body, content_type=content_type, headers=headers)

    def answer(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """The same, for who has asked before whether its caller is slow."""
        if self._beats is not None:
            self.fall_silent()
        if self.rewords is not None:
            body = self.rewords(body)
        told = [*headers, *self.extra_headers]
        if content_type:
            told.append((b"content-type", content_type))
        if self.n_dropped is not None:
            told.append(self._dropped(self.n_dropped))
        self.status = status
        self.finished = self.delivered = True
        self.first_byte_s = monotonic() - self.started_s
        self.sent_bytes += len(body)
        self.to_caller.answer(status, told, body)

    async def reply_json(self, value: object, *, status: int = 200) -> None:
        """The whole reply at once, encoded from a value."""
        await self.reply(status, msgspec.json.encode(value))

    def begin(self, framing: Framing) -> None:
        """The head of a streamed reply, unless a pulse was first."""
        self.fall_silent()
        if not self.begun:
            self._begin(framing)

    def _begin(self, framing: Framing) -> None:
        """No cache or proxy on the way may hold it back."""
        self.framing = framing
        self._start(200, [*_STREAM_HEADERS[framing]])

    def put(self, data: bytes) -> None:
        """A part of a streamed reply, at once: who may have much to say asks before who is slow."""
        self._push(data, more=True)

    async def write(self, data: bytes) -> None:
        """A part of a streamed reply; waits while the caller is slow."""
        if self.to_caller.is_slow:
            await self.to_caller.drained()
        self._push(data, more=True)

    async def finish(self, data: bytes = b"") -> None:
        """The last part of a streamed reply."""
        self.finished = True
        if self.to_caller.is_slow:
            await self.to_caller.drained()
        self._push(data, more=False)

    async def fail(self, said: Answer) -> None:
        """An error in the caller's dialect: the reply where none has begun, else its last event."""
        if self.finished:
            return
        if not self.begun:
            await self.reply(
                said.status,
                errors.body(said, self.dialect),
                content_type=JSON,
                headers=said.headers,
            )
            return
        if self.last_word is not None:
            await self.finish(self.last_word(said))
            return
        ndjson = self.framing is Framing.NDJSON
        await self.finish(errors.event(said, self.dialect, ndjson=ndjson))

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        headers += self.extra_headers
        if self.n_dropped is not None:
            headers.append(self._dropped(self.n_dropped))
        self.to_caller.stream(status, headers)

    def _dropped(self, n_tokens: int) -> tuple[bytes, bytes]:
        return (b"x-prompt-tokens-dropped", b"%d" % n_tokens)

    def _push(self, data: bytes, *, more: bool) -> None:
        if self._beats is not None:
            self.fall_silent()
        if self.rewords is not None:
            data = self.rewords(data)
        self.delivered = True
        if self.first_byte_s is None:
            self.first_byte_s = monotonic() - self.started_s
        self.sent_bytes += len(data)
        self.to_caller.push(data, more=more)
