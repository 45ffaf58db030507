"""What an application sends, on its way to the wire: a whole reply in one write and little else.

uvicorn checks and copies each header, and writes the head by itself; streams still go that way.
"""

from asyncio import Transport
from typing import cast

from uvicorn._types import ASGISendEvent, HTTPResponseStartEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle


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
