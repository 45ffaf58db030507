"""HTTP/1 as callers speak it: uvicorn's parser, with bounds on what it takes and waits for.

    idle ─ first byte → head ─ complete → body ─ complete → idle
      head, body: more bytes without a meaning than HEAD_BYTES, or no head in time → refused, closed
      body, reply: bytes come, or are taken, more slowly than LEAST_BYTES_PER_S → cut
Knows nothing of routes and dialects: who sends no request is answered in plain text.
"""

import asyncio
import urllib.parse
from http import HTTPStatus
from typing import Any

import httptools
import structlog
from msgspec import Struct
from uvicorn._types import ASGI3Application, ASGIVersions, HTTPScope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from proxy.edge.crowd import Crowd
from proxy.edge.cycle import CYCLE, Cycle
from proxy.edge.heads import OLD_VERSIONS, is_ambiguous
from proxy.edge.known import HEAD, Head, Known
from proxy.edge.timer import Timer
from proxy.edge.wishes import head_without_wish
from proxy.request_id import request_id

log = structlog.get_logger(__name__)

HEAD_BYTES = 64 << 10  # of names and values; a browser with all its cookies sends 10 KiB
HEADERS = 128
URL_BYTES = 8 << 10  # as nginx and Apache
LINGER_S = 1.0  # closed with bytes unread, a connection is reset, and its last reply may be lost
PIPELINED = 64  # requests that may wait behind one; browsers send none, benchmarks a few dozen
READ_AHEAD = 8  # of these are read on the way: only who reads hears that the caller leaves
LEAST_BYTES_PER_S = 512  # of a body that is sent, or a reply that is read; Apache's reqtimeout: 500

_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_ASGI: ASGIVersions = {"version": "3.0", "spec_version": "2.3"}


class HeadTooLarge(Exception):
    """What came is more than any request's head."""


class Unacceptable(Exception):
    """A head that parses, and yet is no request that we answer."""


class Patience(Struct, frozen=True):
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
        self._idle_timer = Timer(self.loop)
        self._idle_since_s: float | None = None
        """Loop time; None while it is not idle. Its timer is not set anew for each request."""
        self._refused_with = HTTPStatus.BAD_REQUEST
        self._is_refused = False
        self._answering: Cycle | None = None
        """The request that was begun last; others may wait behind it, in the pipeline."""
        self._newest: Cycle | None = None
        """The one that came last."""
        self._known: Known | None = None
        """The head of the one that came last whole."""
        self._whole = b""
        """What came with a first byte of a head, until it is known where its request ends."""

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
        is_between = self._is_between
        if is_between and self._known is not None:
            again = self._known.again(data)
            if again is not None:
                self._known, body = again
                self._idle_since_s = None
                self._begin_again(self._known.scope, body)
                return
        # From the second request on: those who ask once pay nothing to be known again.
        self._whole = data if is_between and self._newest is not None else b""
        # Counted before they are parsed: httptools joins the reads of one header quadratically.
        self._bare_bytes += len(data)
        self._idle_since_s = None
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
        self._abandon()
        self.connections.discard(self)
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self.parser = None  # type: ignore[assignment]  # it holds us

    # What the parser calls; raising here ends the parsing.

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._head_timer.stop()
        if len(self.url) > URL_BYTES or len(self.headers) > HEADERS or self._is_head_too_long():
            self._refused_with = self._excess()
            raise HeadTooLarge
        version = self.parser.get_http_version()
        if len(self.pipeline) >= PIPELINED or is_ambiguous(version, self.url, self.headers):
            raise Unacceptable
        self._in_head, self._in_body = False, True
        self._bare_bytes = 0
        if self.parser.should_upgrade():
            self._note_wish()
            return  # it is parsed once more, without the wish
        self._begin_request()
        self.headers = []  # for trailers, which nobody reads

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        self._body_bytes += len(body)
        cycle = self._newest
        if cycle is None or cycle.response_complete:
            return
        cycle.take(body)
        if cycle.waiting_bytes > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._in_body = False
        self._bare_bytes = 0
        if self.parser.should_upgrade():
            return
        self._body_timer.stop()
        if self._newest is not None:
            if self._whole:
                self._known = Known.of(self._whole, self._newest.scope)
                self._whole = b""
            if not self._newest.response_complete:
                self._newest.end_body()
        if len(self.pipeline) <= READ_AHEAD:
            self.flow.resume_reading()  # else a caller who leaves after a long body goes unnoticed

    def _begin_request(self) -> None:
        """Makes a request of a head, and begins to answer it unless another is answered still."""
        version = self.parser.get_http_version()
        cycle = Cycle(
            self._scope(version),
            self.transport,
            self.flow,
            logger=self.logger,
            is_old=version in OLD_VERSIONS,
            expects_100=self.expect_100_continue,
            keep_alive=version not in OLD_VERSIONS and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._begin_cycle(cycle)

    def _begin_again(self, scope: HTTPScope, body: bytes) -> None:
        """Likewise for a head that is known, and its whole body: HTTP/1.1, and nothing unusual."""
        cycle = Cycle(
            scope.copy(),
            self.transport,
            self.flow,
            logger=self.logger,
            is_old=False,
            expects_100=False,
            keep_alive=True,
            on_response=self.on_response_complete,
            body=body,
        )
        self._begin_cycle(cycle)

    def _begin_cycle(self, cycle: Cycle) -> None:
        cycle.scope[CYCLE] = cycle  # type: ignore[literal-required]
        before, self._newest = self._newest, cycle
        self.cycle = cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            if len(self.pipeline) >= READ_AHEAD:
                self.flow.pause_reading()  # from here on a caller who leaves goes unnoticed
            self.pipeline.appendleft((cycle, self.app))

    def _scope(self, version: str) -> HTTPScope:
        raw_path, query = self.url, b""
        if not raw_path.startswith(b"/") or b"?" in raw_path or b"#" in raw_path:
            parsed = httptools.parse_url(self.url)
            raw_path, query = parsed.path, parsed.query or b""
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": self.parser.get_method().decode("ascii"),
            "root_path": "",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
            "state": {},
            HEAD: Head(self.headers),  # type: ignore[misc]
        }

    # What uvicorn calls.

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no request."""
        self._refuse(self._refused_with)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._close()
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self._wait_for_head()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a while; what is still unread by then is not going to be."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        assert isinstance(cycle, Cycle)
        self._answering = cycle
        cycle.task = self.loop.create_task(cycle.answered_by(app, self.tasks))
        self.tasks.add(cycle.task)

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
        if self.parser.get_method() == b"CONNECT":
            raise Unacceptable
        self.scope = self._scope(self.parser.get_http_version())

    @property
    def _is_between(self) -> bool:
        """Whether what comes next is the beginning of a head, and nothing is answered."""
        if self._in_head or self._in_body or self._bare_bytes:
            return False
        return self._newest is None or self._newest.response_complete

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _wait_for_head(self) -> None:
        self._idle_since_s = self.loop.time()
        if not self._idle_timer.runs:
            self._idle_timer.start(self._patience.idle_s, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        if self._idle_since_s is None:
            return
        left_s = self._idle_since_s + self._patience.idle_s - self.loop.time()
        if left_s > 0:
            self._idle_timer.start(left_s, self._look_whether_idle)
        else:
            self.timeout_keep_alive_handler()

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
        if self._newest is None or self._newest.response_complete:
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
        self._idle_timer.stop()

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
            self._answering.leave()
