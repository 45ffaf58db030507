"""One request on a caller's connection, and the reply to it: head and body joined, in one write.

    begin ─ push, push … ─ push, the last → complete
      any ─ the caller leaves → disconnected: whoever listens is told, what is sent is dropped
Written at once by who knows a Cycle (the daemon's own routes); `send` and `receive` are the same as
ASGI has it, for any other application.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent, HTTPScope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

CYCLE = "inferenceosd.cycle"
"""The key of a request's Cycle in its scope."""

Header = tuple[bytes, bytes]

PARTS = 64  # of a body that waits: in chunks of a byte each takes forty
COPIED_BYTES = 8 << 10  # what is longer is cheaper to write in pieces

_BODILESS = (204, 304)
_CHUNK_END = b"\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CLOSE = b"connection: close\r\n\r\n"
_LINE_BREAK = "a header of the reply has a line break in it"


def _nothing() -> None: ...


class Cycle(RequestResponseCycle):
    """A request being answered; uvicorn's as far as its types go."""

    task: asyncio.Task[None]
    """In which it is answered."""

    def __init__(
        self,
        scope: HTTPScope,
        transport: asyncio.Transport,
        flow: FlowControl,
        *,
        logger: Any,
        is_old: bool,
        expects_100: bool,
        keep_alive: bool,
        on_response: Callable[[], None],
        body: bytes | None = None,
    ) -> None:
        """`body`: all of it, where it came with the head."""
        # Not uvicorn's own: an Event, and what it logs by, are made for every request there.
        self.scope, self.transport, self.flow, self.logger = scope, transport, flow, logger
        self.on_response = on_response
        self.is_old = is_old
        """The caller knows no chunks: what has no length ends with the connection."""
        self.waiting_for_100_continue = expects_100
        self.keep_alive = keep_alive
        self.disconnected = self.response_started = self.response_complete = False
        self.more_body = body is None
        self._has_news = body is not None
        self._parts: list[bytes] = [] if body is None else [body]
        self.waiting_bytes = 0 if body is None else len(body)
        """Of the body, not asked for yet."""
        self._waiter: asyncio.Future[None] | None = None
        self._on_left: Callable[[], None] | None = None
        self._head = b""
        self._left_bytes: int | None = None
        """Of a body whose length was told; None is in chunks, or until the connection closes."""

    async def answered_by(self, app: ASGI3Application, running: set[asyncio.Task[None]]) -> None:
        """Has `app` answer; then this is none of `running` any more.

        An application that raises, or does not answer, is a bug, and logged as such.
        """
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException:  # as uvicorn does: a request's task has nobody to raise to
            self.logger.exception("request.raised")
            await self._give_up()
        else:
            if not (self.response_complete or self.disconnected):
                self.logger.error("request.unanswered")
                await self._give_up()
        finally:
            running.discard(self.task)
            # What holds it in turn is let go of: no collector has to find out.
            self.on_response = _nothing
            del self.task
            del self.scope[CYCLE]  # type: ignore[misc]

    async def _give_up(self) -> None:
        if self.response_started:
            self.transport.close()
        else:
            await self.send_500_response()

    # The request's body.

    def take(self, part: bytes) -> None:
        """A piece of the body came."""
        self._parts.append(part)
        if len(self._parts) > PARTS:
            self._parts = [b"".join(self._parts)]
        self.waiting_bytes += len(part)
        self.wake()

    def end_body(self) -> None:
        """All of it has come."""
        self.more_body = False
        self.wake()

    def whole_body(self) -> bytes | None:
        """All of it where it is there, as that of a short request is; else None."""
        if self.more_body or self.disconnected or self.response_complete:
            return None
        self._has_news = False
        parts = self._parts
        if len(parts) != 1:
            return self._taken()
        self.waiting_bytes = 0
        return parts.pop()

    def _taken(self) -> bytes:
        parts, self._parts = self._parts, []
        self.waiting_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def wake(self) -> None:
        """There is news for who waits in `receive`, now or next."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> ASGIReceiveEvent:
        """ASGI's: what came of the body, or that it is over with this request."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not (self.disconnected or self.response_complete):
            self.flow.resume_reading()
            await self._news()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._taken(), "more_body": self.more_body}

    async def _news(self) -> None:
        while not self._has_news:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._has_news = False

    # That the caller leaves.

    def listen(self, on_left: Callable[[], None] | None) -> None:
        """Have `on_left` called once the caller leaves, at once where it has; None: nobody."""
        self._on_left = on_left
        if on_left is not None and self.disconnected:
            on_left()

    def leave(self) -> None:
        """The caller has left."""
        self.disconnected = True
        self.wake()
        if self._on_left is not None:
            self._on_left()

    # The reply.

    @property
    def is_slow(self) -> bool:
        """Whether the caller has more to read than is kept for it: `drained` waits for that."""
        return self.flow.write_paused and not self.disconnected

    async def drained(self) -> None:
        """Until it has read enough, or has left."""
        while self.is_slow:
            await self.flow.drain()

    def begin(self, status: int, headers: Iterable[Header]) -> None:
        """The head, names in lower case; it goes out with what is pushed first."""
        lines, n_lines, is_framed = [STATUS_LINE[status]], 2, False
        for name, value in headers:
            if name == b"connection":  # which is only ever to be closed
                self.keep_alive = False
                continue
            lines += (name, b": ", value, b"\r\n")
            n_lines += 1
            if name == b"content-length":
                self._left_bytes, is_framed = int(value), True
        is_bodiless = status in _BODILESS or self.scope["method"] == "HEAD"
        if is_bodiless:
            self._left_bytes = 0
        elif not (is_framed or self.is_old):
            lines.append(_CHUNKED)
            n_lines += 1
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
            n_lines += 1
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != n_lines or head.count(b"\r") != n_lines:
            raise ValueError(_LINE_BREAK)
        self._head = head
        self.response_started = True
        self.waiting_for_100_continue = False

    def answer(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Head and body in one; none of `headers` says how long it is, or closes the connection."""
        if status in _BODILESS or self.scope["method"] == "HEAD":
            sized = () if status == 204 else ((b"content-length", b"%d" % len(body)),)
            self.begin(status, (*sized, *headers))
            self.push(body, more=False)
            return
        head = self._head_of(status, b"content-length: %d\r\n" % len(body), headers)
        self.response_started = True
        self.waiting_for_100_continue = False
        if self.disconnected:
            return
        if len(body) > COPIED_BYTES:
            self.transport.writelines((head, body))
        else:
            self.transport.write(head + body)
        self._complete()

    def stream(self, status: int, headers: Iterable[Header]) -> None:
        """The head of a body in parts, which goes out with the first; `headers` likewise."""
        if self.is_old or self.scope["method"] == "HEAD":
            self.begin(status, headers)
            return
        self._head = self._head_of(status, _CHUNKED, headers)
        self.response_started = True
        self.waiting_for_100_continue = False

    def _head_of(self, status: int, framing: bytes, headers: Iterable[Header]) -> bytes:
        lines = [b"%b: %b\r\n" % header for header in headers]
        told = b"".join(lines)
        if told.count(b"\n") != len(lines) or told.count(b"\r") != len(lines):
            raise ValueError(_LINE_BREAK)
        end = b"\r\n" if self.keep_alive else _CLOSE
        return b"%b%b%b%b" % (STATUS_LINE[status], framing, told, end)

    def push(self, data: bytes, *, more: bool) -> None:
        """A part of the body, or the last of it; never waits, so ask `is_slow` before."""
        if self.disconnected:
            return
        if self.response_complete or not self.response_started:
            raise RuntimeError("a part of a reply before its head, or after its end")
        if self._left_bytes is not None:
            data = self._measured(data, more=more)
        elif not self.is_old:
            if len(data) > COPIED_BYTES:
                self._push_large(data, _CHUNK_END if more else _CHUNK_END + _LAST_CHUNK)
                data = b""
            else:
                if data:
                    data = b"%x\r\n%b\r\n" % (len(data), data)
                if not more:
                    data += _LAST_CHUNK
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self.transport.write(data)
        if not more:
            self._complete()

    def _push_large(self, data: bytes, end: bytes) -> None:
        """A chunk that is not copied to be framed."""
        head, self._head = self._head, b""
        self.transport.writelines((b"%b%x\r\n" % (head, len(data)), data, end))

    def _measured(self, data: bytes, *, more: bool) -> bytes:
        """`data`, held against the length that was told."""
        assert self._left_bytes is not None
        if self.scope["method"] == "HEAD":
            return b""
        self._left_bytes -= len(data)
        if self._left_bytes < 0 or (self._left_bytes and not more):
            raise RuntimeError("a reply's body is not as long as its head says")
        return data

    def _complete(self) -> None:
        self.response_complete = self._has_news = True
        if self._waiter is not None:
            self.wake()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    async def send(self, message: ASGISendEvent) -> None:
        """ASGI's: a head, or a part of the body; waits while the caller is slow."""
        if self.is_slow:
            await self.drained()
        if message["type"] == "http.response.start" and not self.response_started:
            self.begin(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self.push(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"{message['type']} is out of turn")
