"""HTTP/1 as callers speak it: uvicorn's parser, with bounds on heads and on waiting for them.

    idle ─ first byte → head ─ complete → body ─ complete → idle
      head, body: more bytes without a meaning than HEAD_BYTES, or no head in time → refused, closed
Knows nothing of routes and dialects: who sends no request is answered in plain text.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from proxy.request_id import request_id

HEAD_BYTES = 64 << 10  # of names and values; a browser with all its cookies sends 10 KiB
HEADERS = 128
URL_BYTES = 8 << 10  # as nginx and Apache
LINGER_S = 1.0  # closed with bytes unread, a connection is reset, and its last reply may be lost

_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_OLD_VERSIONS = ("0.9", "1.0")
_INTERIM = b"HTTP/1.1 100"
LEAVING = "inferenceosd.leaving"
"""The key of a request's Leaving in its scope."""


class HeadTooLarge(Exception):
    """What came is more than any request's head."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a caller is waited for."""

    idle_s: float = 75.0  # as nginx; a client that pools must not find its connection closed
    """Before its first request, and between two."""
    head_s: float = 10.0
    """From a head's first byte to its last."""


PATIENT = Patience()


class DoorProtocol(HttpToolsProtocol):
    """One caller's connection."""

    def __init__(self, *args: Any, patience: Patience, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience = patience
        self.url = b""
        self._in_head = self._in_body = False
        self._bare_bytes = 0
        """Received since the last head or piece of a body was complete."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused_with = HTTPStatus.BAD_REQUEST
        self._is_refused = False
        self._answering: RequestResponseCycle | None = None
        """The request that was begun last; others may wait behind it, in the pipeline."""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        # Counted before they are parsed: httptools joins the reads of one header quadratically.
        self._bare_bytes += len(data)
        super().data_received(data)
        if self._is_refused or self.transport.is_closing():
            return
        if self._bare_bytes > HEAD_BYTES:
            self._refuse(self._excess())
        elif self._in_head:
            if self._head_timer is None:
                self._wait_for_the_rest()
        elif not self._is_answering:
            self._wait_for_head()  # blank lines are no request, nor is what follows an early reply

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._abandon()  # uvicorn tells only the request that came last
        super().connection_lost(exc)

    # What the parser calls; raising here ends the parsing.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        if len(self.url) > URL_BYTES or len(self.headers) > HEADERS or self._is_head_too_long():
            self._refused_with = self._excess()
            raise HeadTooLarge
        self._in_head, self._in_body = False, True
        self._bare_bytes = 0
        super().on_headers_complete()
        self.headers = []  # for trailers, which nobody reads

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._bare_bytes = 0
        super().on_message_complete()

    # What uvicorn calls.

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no request."""
        self._refuse(self._refused_with)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        cycle.scope[LEAVING] = Leaving()  # type: ignore[literal-required]
        if cycle.scope["method"] != "HEAD":  # whose head nothing follows
            cycle.transport = cast(asyncio.Transport, _JoinedHead(cycle.transport))
        is_old = cycle.scope["http_version"] in _OLD_VERSIONS
        super()._start_asgi_task(cycle, _until_close(cycle, app) if is_old else app)

    # What these are made of.

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _wait_for_head(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self._patience.idle_s, self.timeout_keep_alive_handler
        )

    def _wait_for_the_rest(self) -> None:
        self._head_timer = self.loop.call_later(self._patience.head_s, self._head_is_late)

    def _is_head_too_long(self) -> bool:
        if self._bare_bytes <= HEAD_BYTES:  # nearly always: head and body together
            return False
        return sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES

    def _excess(self) -> HTTPStatus:
        return HTTPStatus.REQUEST_URI_TOO_LONG if len(self.url) > URL_BYTES else _TOO_LARGE

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_answering:  # the next request of a pipeline; nothing is lost by waiting
            self._wait_for_the_rest()
        elif not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: HTTPStatus) -> None:
        """Closes; says why where that cannot be taken for a part of another answer."""
        self._is_refused = True
        self._stop_head_timer()
        cycle = self._answering
        is_its_own = self._in_body and not self.pipeline
        if not self._is_answering or (is_its_own and cycle and not cycle.response_started):
            told = f"{status.value} {status.phrase}".encode()
            headers = cycle.scope["headers"] if is_its_own and cycle else self.headers or ()
            self.transport.write(
                b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"x-request-id: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (told, request_id(headers).encode(), len(told), told)
            )
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()
        self._abandon()

    def _abandon(self) -> None:
        """Tells the request under way that its caller left."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
            self._answering.scope[LEAVING].tell()  # type: ignore[literal-required]


class Leaving:
    """Whether the caller of a request has left, and whom to tell: no task has to wait for it."""

    __slots__ = ("_has_left", "_on_left")

    def __init__(self) -> None:
        self._has_left = False
        self._on_left: Callable[[], None] | None = None

    def listen(self, on_left: Callable[[], None] | None) -> None:
        """Have `on_left` called once the caller leaves, at once where it has; None: nobody."""
        self._on_left = on_left
        if on_left is not None and self._has_left:
            on_left()

    def tell(self) -> None:
        """The caller has left."""
        self._has_left = True
        if self._on_left is not None:
            self._on_left()


class _JoinedHead:
    """A transport for one reply that sends its head with the first of its body: one segment less.

    Whoever sends a head sends a body next, without waiting for anything else in between.
    """

    __slots__ = ("_held", "_is_done", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
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
        elif data.startswith(_INTERIM):
            self._transport.write(data)
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


def _until_close(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
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
