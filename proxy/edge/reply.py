"""What an application sends, on its way to the wire: a whole reply in one write and little else.

uvicorn checks and copies each header, and writes the head by itself; streams still go that way.
"""

from asyncio import Transport
from collections.abc import Awaitable
from typing import cast

from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseStartEvent,
    Scope,
)
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


def at_once(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """`app`, whose whole replies go out in one write."""

    def run(scope: Scope, receive: ASGIReceiveCallable, _: ASGISendCallable) -> Awaitable[None]:
        return app(scope, receive, Reply(cycle).send)

    return run


def until_close(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """`app` for a caller who knows no chunks: what has no length ends with the connection."""
    is_endless = False

    async def send(message: ASGISendEvent) -> None:
        nonlocal is_endless
        if message["type"] == "http.response.start":
            is_endless = all(name != b"content-length" for name, _ in message.get("headers", ()))
            if is_endless:
                cycle.chunked_encoding = False
        elif is_endless and message["type"] == "http.response.body":
            if cycle.flow.write_paused and not cycle.disconnected:
                await cycle.flow.drain()
            if not cycle.disconnected and cycle.scope["method"] != "HEAD":
                cycle.transport.write(message.get("body", b""))
            if message.get("more_body", False):
                return
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await cycle.send(message)

    def run(scope: Scope, receive: ASGIReceiveCallable, _: ASGISendCallable) -> Awaitable[None]:
        return app(scope, receive, send)

    return run


class Reply:
    """The reply to one request."""

    __slots__ = ("_cycle", "_start")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._start: HTTPResponseStartEvent | None = None

    async def send(self, message: ASGISendEvent) -> None:
        """ASGI's; a head waits for what follows it, which an application sends at once."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        start, self._start = self._start, None
        if start is None:
            await self._cycle.send(message)
        elif message.get("more_body") or self._cycle.flow.write_paused or self._is_special(start):
            if not self._has_no_body:
                self._cycle.transport = cast(Transport, _JoinedHead(self._cycle.transport))
            await self._cycle.send(start)
            await self._cycle.send(message)
        elif not self._cycle.disconnected:
            self._send_whole(start, cast(bytes, message.get("body", b"")))

    def _is_special(self, start: HTTPResponseStartEvent) -> bool:
        """One without a body, or that does not tell its length."""
        if self._has_no_body:
            return True
        return all(name != b"content-length" for name, _ in start.get("headers", ()))

    @property
    def _has_no_body(self) -> bool:
        return self._cycle.scope["method"] == "HEAD"

    def _send_whole(self, start: HTTPResponseStartEvent, body: bytes) -> None:
        """A reply whose head tells its length, as uvicorn would send it."""
        cycle, lines = self._cycle, [STATUS_LINE[start["status"]]]
        headers = list(start.get("headers", ()))
        if not cycle.keep_alive:
            headers.append((b"connection", b"close"))
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(headers) + 2 or head.count(b"\r") != len(headers) + 2:
            raise ValueError("a header of the reply has a line break in it")
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(head + body)
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class _JoinedHead:
    """A transport for one reply that sends its head with the first of its body: one segment less.

    Whoever sends a head sends a body next, without waiting for anything else in between.
    """

    __slots__ = ("_held", "_is_done", "_transport")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._held = b""
        self._is_done = False

    def write(self, data: bytes) -> None:
        """Hold a head, send anything else."""
        if self._is_done:
            self._transport.write(data)
        elif self._held:
            self._is_done = True
            self._transport.write(self._held + data)
        else:
            self._held = data

    def close(self) -> None:
        """Send what is held, then close."""
        if self._held and not self._is_done:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        """As the transport says."""
        return self._transport.is_closing()
