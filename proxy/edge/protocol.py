"""HTTP/1 as callers speak it: uvicorn's parser, with bounds on what it takes and waits for.

    idle ─ first byte → head ─ complete → body ─ complete → idle
      head, body: more bytes without a meaning than HEAD_BYTES, or no head in time → refused, closed
      body, reply: bytes come, or are taken, more slowly than LEAST_BYTES_PER_S → cut
Knows nothing of routes and dialects: who sends no request is answered in plain text.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools
import structlog
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from proxy.edge.crowd import Crowd
from proxy.edge.leaving import LEAVING, Leaving
from proxy.edge.reply import at_once, until_close
from proxy.edge.timer import Timer
from proxy.edge.wishes import head_without_wish
from proxy.request_id import request_id

log = structlog.get_logger(__name__)

HEAD_BYTES = 64 << 10  # of names and values; a browser with all its cookies sends 10 KiB
HEADERS = 128
URL_BYTES = 8 << 10  # as nginx and Apache
LINGER_S = 1.0  # closed with bytes unread, a connection is reset, and its last reply may be lost
PIPELINED = 64  # requests that may wait behind one; browsers send none, benchmarks a few dozen
LEAST_BYTES_PER_S = 512  # of a body that is sent, or a reply that is read; Apache's reqtimeout: 500

_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_OLD_VERSIONS = ("0.9", "1.0")


class HeadTooLarge(Exception):
    """What came is more than any request's head."""


class Unacceptable(Exception):
    """A head that parses, and yet is no request that we answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a caller is waited for."""

    idle_s: float = 75.0  # as nginx; a client that pools must not find its connection closed
    """Before its first request, and between two."""
    head_s: float = 10.0
    """From a head's first byte to its last."""
    stall_s: float = 60.0  # as nginx's client_body_timeout and send_timeout
    """For a body, or a reply, to get on by LEAST_BYTES_PER_S x stall_s bytes."""


PATIENT = Patience()


class DoorProtocol(HttpToolsProtocol):
    """One caller's connection."""

    def __init__(self, *args: Any, patience: Patience, crowd: Crowd, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._patience, self._crowd = patience, crowd
        self._is_counted = False
        self.url = b""
        self._in_head = self._in_body = False
        self._bare_bytes = 0
        """Received since the last head or piece of a body was complete."""
        self._body_bytes = 0
        """Received of bodies since somebody looked last."""
        self._unread_bytes = 0
        """Of what was written, when somebody looked last."""
        self._head_timer = Timer(self.loop)
        self._body_timer = Timer(self.loop)
        self._reader_timer = Timer(self.loop)
        self._refused_with = HTTPStatus.BAD_REQUEST
        self._is_refused = False
        self._answering: RequestResponseCycle | None = None
        """The request that was begun last; others may wait behind it, in the pipeline."""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_counted = self._crowd.enter(self._address)
        if self._is_counted:
            self._wait_for_head()
        elif self._crowd.turn_away(self.loop.time()):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        # Counted before they are parsed: httptools joins the reads of one header quadratically.
        self._bare_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._is_refused or self.transport.is_closing():
            return
        if self._bare_bytes > HEAD_BYTES:
            self._refuse(self._excess())
        elif self._in_head:
            if not self._head_timer.runs:
                self._wait_for_the_rest()
        elif self._in_body:
            if not self._body_timer.runs:
                self._wait_for_the_body()
        elif not self._is_answering:
            self._wait_for_head()  # blank lines are no request, nor is what follows an early reply

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_the_reader()

    def resume_writing(self) -> None:
        self._reader_timer.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_counted:
            self._crowd.leave(self._address)
        self._stop_timers()
        self._abandon()  # uvicorn tells only the request that came last
        super().connection_lost(exc)

    # What the parser calls; raising here ends the parsing.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._head_timer.stop()
        if len(self.url) > URL_BYTES or len(self.headers) > HEADERS or self._is_head_too_long():
            self._refused_with = self._excess()
            raise HeadTooLarge
        if len(self.pipeline) >= PIPELINED or self._has_many_hosts():
            raise Unacceptable
        self._in_head, self._in_body = False, True
        self._bare_bytes = 0
        if self.parser.should_upgrade():
            self._note_wish()
            return  # it is parsed once more, without the wish
        super().on_headers_complete()
        self.headers = []  # for trailers, which nobody reads

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._bare_bytes = 0
        if self.parser.should_upgrade():
            return
        self._body_timer.stop()
        super().on_message_complete()

    # What uvicorn calls.

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no request."""
        self._refuse(self._refused_with)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a while; what is still unread by then is not going to be."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        cycle.scope[LEAVING] = Leaving()  # type: ignore[literal-required]
        is_old = cycle.scope["http_version"] in _OLD_VERSIONS
        super()._start_asgi_task(cycle, (until_close if is_old else at_once)(cycle, app))

    # What these are made of.

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _parse(self, data: bytes) -> None:
        """Feeds the parser. Wishes for another protocol, h2c above all, are not heard.

        httptools takes what follows such a head for the other protocol, a body included.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as exc:
                data = head_without_wish(self.scope, self.url) + data[exc.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn
            except httptools.HttpParserError:
                self.send_400_response("")
                return

    def _note_wish(self) -> None:
        """Keeps what only the parser knows of a head. Raises Unacceptable for a tunnel's."""
        method = self.parser.get_method().decode("ascii")
        if method == "CONNECT":
            raise Unacceptable
        self.scope["method"] = method
        self.scope["http_version"] = self.parser.get_http_version()

    def _has_many_hosts(self) -> bool:
        """More than one Host (RFC 9112, 3.2): which one is meant, others may see differently."""
        return [name for name, _ in self.headers].count(b"host") > 1

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _wait_for_head(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self._patience.idle_s, self.timeout_keep_alive_handler
        )

    def _wait_for_the_rest(self) -> None:
        self._head_timer.start(self._patience.head_s, self._head_is_late)

    def _wait_for_the_body(self) -> None:
        self._body_bytes = 0
        self._body_timer.start(self._patience.stall_s, self._body_is_late)

    def _wait_for_the_reader(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reader_timer.start(self._patience.stall_s, self._reader_is_late)

    @property
    def _least_bytes(self) -> float:
        """What must come, or be taken, within stall_s."""
        return self._patience.stall_s * LEAST_BYTES_PER_S

    def _body_is_late(self) -> None:
        """Cuts a body that does not get on, except where it is we who do not read it."""
        if self.cycle.response_complete:
            self._close()  # it was answered before its end, and had time to notice
        elif self._body_bytes >= self._least_bytes or self.flow.read_paused or self.pipeline:
            self._wait_for_the_body()
        elif not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _reader_is_late(self) -> None:
        """Cuts a caller who does not take its reply: until then it has a slot of the model."""
        unread_bytes = self.transport.get_write_buffer_size()
        taken_bytes = self._unread_bytes - unread_bytes
        if unread_bytes and taken_bytes < self._least_bytes:
            log.warning("door.reader_cut", address=self._address, unread_bytes=unread_bytes)
            self.transport.abort()
        elif unread_bytes:
            self._wait_for_the_reader()

    def _is_head_too_long(self) -> bool:
        if self._bare_bytes <= HEAD_BYTES:  # nearly always: head and body together
            return False
        return sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES

    def _excess(self) -> HTTPStatus:
        return HTTPStatus.REQUEST_URI_TOO_LONG if len(self.url) > URL_BYTES else _TOO_LARGE

    def _head_is_late(self) -> None:
        if self._is_answering:  # the next request of a pipeline; nothing is lost by waiting
            self._wait_for_the_rest()
        elif not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _stop_timers(self) -> None:
        self._head_timer.stop()
        self._body_timer.stop()
        self._reader_timer.stop()

    def _refuse(self, status: HTTPStatus) -> None:
        """Closes; says why where that cannot be taken for a part of another answer."""
        self._is_refused = True
        self._stop_timers()
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
            if self.transport.can_write_eof():  # not over TLS
                self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.abort)
        else:
            self._close()
        self._abandon()

    def _close(self) -> None:
        """Closes once all is read, and where it never is, in the end all the same."""
        self.transport.close()
        if not self._reader_timer.runs:
            self._wait_for_the_reader()

    def _abandon(self) -> None:
        """Tells the request under way that its caller left."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
            self._answering.scope[LEAVING].tell()  # type: ignore[literal-required]
