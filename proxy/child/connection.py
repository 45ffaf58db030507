"""One HTTP/1.1 connection to a llama-server child, one exchange at a time; bytes, not meaning.

idle ─ send → waiting ─ head → reading ─ last byte → idle, where the child keeps it open
  any ─ bad bytes, closed by the child, aborted by us → closed
A body is pulled (`chunk`), or poured: then what comes goes on in the very call that brings it, and
who waits is woken only at its end, or where the reader it goes to is slow.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from proxy.bodies import Buffers
from proxy.child.wakening import Wakening
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamGone, UpstreamStalled
from proxy.outline import Outline

WRITE_STALL_S = 30.0  # llama-server reads a request before it thinks about it
HEAD_BYTES = 64 << 10
HEAD_FIELDS = 100
HIGH_WATER_BYTES = 256 << 10  # unread, beyond which the child is made to wait
FEW_CHUNKS = 8  # which are measured one by one

_OK = b"HTTP/1.1 200 "
_HEAD_END = b"\r\n\r\n"
_CONTENT_LENGTH = b"content-length"

Headers = list[tuple[bytes, bytes]]
Take = Callable[[bytes], None]


class Reader(Protocol):
    """Whoever what is taken goes to in the end."""

    @property
    def is_slow(self) -> bool:
        """Whether it has enough to read for now."""

    async def drained(self) -> None:
        """Until it has not."""


class _Ready:
    is_slow = False

    async def drained(self) -> None: ...


ALWAYS_READY: Reader = _Ready()
"""Takes what comes as it comes: what is put together here."""


class Connection(asyncio.Protocol):
    """What has arrived of a body waits, joined, unless it is poured."""

    __slots__ = (
        "_chunks",
        "_got_bytes",
        "_head_bytes",
        "_head_done",
        "_is_chunked",
        "_is_head_known",
        "_is_sized",
        "_known_head",
        "_known_headers",
        "_loop",
        "_news",
        "_on_lost",
        "_on_made",
        "_outline",
        "_outlined",
        "_outlined_length",
        "_parser",
        "_paused",
        "_reader",
        "_size",
        "_spilt",
        "_take",
        "_transport",
        "_writable",
        "closed",
        "done",
        "error",
        "headers",
        "heard_bytes",
        "idle_since_s",
        "keeps",
        "on_body",
        "socket_path",
        "status",
    )

    def __init__(
        self,
        socket_path: str,
        *,
        on_made: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        self.socket_path = socket_path
        self.closed = False
        self.idle_since_s = 0.0
        """Loop time; set by the pool."""
        self.heard_bytes = 0
        """Of all replies so far, without the comments that a stuck child still sends."""
        self._on_made, self._on_lost = on_made, on_lost
        self._loop = asyncio.get_running_loop()
        self._news = Wakening(self._loop)
        """Awaited by whoever has nothing to do until more has come."""
        self._writable: asyncio.Future[None] | None = None
        self._paused = False
        self._chunks: list[bytes] = []
        """What has come and is not taken; always the same list."""
        self.on_body = self._chunks.append  # the parser's: a call of ours would cost more than it
        self._parser = httptools.HttpResponseParser(self)
        self._outline: Outline | None = None
        """Of the last reply that came in one piece, which had these headers:"""
        self._outlined: Headers = []
        self._outlined_length = b""
        self._known_head = b""
        """Of the last reply in chunks, to its blank line; empty before there was one."""
        self._known_headers: Headers = []
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.done = False
        """The reply has arrived whole."""
        self.keeps = False
        """The child will take another request on this connection."""
        self.error: UpstreamError | None = None
        self._got_bytes = self._head_done = self._is_sized = self._is_chunked = False
        self._is_head_known = False
        """The parser reads it all the same; what its fields say needs not be gathered again."""
        self._chunks.clear()
        self._size = self._head_bytes = 0
        self._take: Take | None = None
        self._reader: Reader | None = None
        self._spilt: Exception | None = None
        """What was raised by who takes what is poured."""

    # What the exchange calls.

    async def send(self, pieces: Buffers) -> None:
        """Sends a request and waits for the reply's head. Raises UpstreamError, and is closed then.

        So it is where the wait is cancelled.
        """
        self._reset()
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        try:
            if self._writable is not None:
                await self._written(self._writable)
            while not self._head_done:
                if self.error is not None:
                    raise self.error
                await self._news
        except BaseException:
            self.abort()
            raise

    async def chunk(self) -> bytes:
        """All that has come since the last call, a byte at least; empty at the reply's end.

        Raises UpstreamGone, UpstreamBroken, after all that came before was handed out.
        """
        while not self._chunks:
            if self.done:
                return b""
            if self.error is not None:
                raise self.error
            await self._news
        return self._arrived()

    def whole(self, limit_bytes: int) -> bytes | None:
        """All of the body where it has come, is no longer than that, and none of it was taken."""
        return self._arrived() if self.done and self._size <= limit_bytes else None

    async def pour(self, take: Take, reader: Reader) -> None:
        """Has `take` called with all that comes of the body, joined, until its end.

        While `reader` is slow nothing is taken, and soon nothing is read of the child. Raises
        UpstreamGone, UpstreamBroken, after all that came before was taken, and what `take` raises.
        """
        while True:
            while self._chunks:
                if reader.is_slow:
                    await reader.drained()
                take(self._arrived())
            if self.done:
                return
            if self.error is not None:
                raise self.error
            self._take, self._reader = take, reader
            try:
                await self._news
            finally:
                self._take = self._reader = None
            if self._spilt is not None:
                raise self._spilt

    def _pour(self, take: Take) -> None:
        """What has arrived; whoever waits is woken only where it has something to do."""
        if self._chunks and not (self._reader is not None and self._reader.is_slow):
            try:
                take(self._arrived())
            except Exception as exc:  # not handled here: carried to whoever waits
                self._spilt = exc
        if self._chunks or self.done or self.error is not None or self._spilt is not None:
            self._take = None
            self._news.wake()

    def _arrived(self) -> bytes:
        chunks = self._chunks
        arrived = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._size = 0
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return arrived

    def abort(self) -> None:
        """Closes at once; what was not sent is dropped."""
        if not self.closed:
            self._transport.abort()

    async def _written(self, writable: asyncio.Future[None]) -> None:
        """Until the child has taken the request, has begun to answer, or is gone."""
        try:
            async with asyncio.timeout(WRITE_STALL_S):
                await writable
        except TimeoutError as exc:
            raise UpstreamStalled(
                self.socket_path, doing="read the request", limit_s=WRITE_STALL_S
            ) from exc

    def _fail(self, error: UpstreamError) -> None:
        if not self.done:
            self.error = error
        self.keeps = False
        self.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._on_made(self)

    def data_received(self, data: bytes) -> None:
        if self.done or self.error is not None:
            self.abort()  # bytes that nobody asked for
            return
        is_first = not self._got_bytes
        if is_first:
            if self._outline is not None and self._is_as_before(data, self._outline):
                return
            self._got_bytes = True
            self._is_head_known = bool(self._known_head) and data.startswith(self._known_head)
            self.resume_writing()  # an answer before the request was taken whole: it will not be
        if not self._head_done:
            self._head_bytes += len(data)
        n_before, was_in_body = len(self._chunks), self._head_done
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            ours = exc.__context__
            told = UpstreamBroken(self.socket_path, f"it is no HTTP ({exc})")
            self._fail(ours if isinstance(ours, UpstreamBroken) else told)
        if len(self._chunks) - n_before > FEW_CHUNKS and (is_first or was_in_body):
            self._note_many(n_before, data, data.find(_HEAD_END) + 4 if is_first else 0)
        else:
            self._note_heard(n_before)
        if is_first and self._is_chunked and self.status == 200 and not self._is_head_known:
            self._known_head = data[: data.find(_HEAD_END) + 4]
            self._known_headers = self.headers
        if is_first and self.keeps and self._is_sized:
            self._outline = Outline.of(data, self.headers, start=_OK)
            self._outlined, self._outlined_length = self.headers, b""
        if not self._head_done and self._head_bytes > HEAD_BYTES:
            self._fail(UpstreamBroken(self.socket_path, f"its head is over {HEAD_BYTES} bytes"))
        if self._take is not None:
            self._pour(self._take)
        else:
            self._news.wake()
        if self._size > HIGH_WATER_BYTES and not (self._paused or self.done or self.error):
            self._paused = True
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def _is_as_before(self, data: bytes, outline: Outline) -> bool:
        """Takes a reply that is whole, and headed as the last one was: unparsed."""
        found = outline.again(data)
        if found is None:
            return False
        length, body = found
        self._got_bytes = self._head_done = self.keeps = self.done = True
        if self._writable is not None:
            self.resume_writing()
        self.status = 200
        if length != self._outlined_length:
            self._outlined_length = length
            self._outlined = [
                (name, length if name == _CONTENT_LENGTH else value)
                for name, value in self._outlined
            ]
        self.headers = self._outlined
        if body:
            self._chunks.append(body)
            self._size = len(body)
            self.heard_bytes += len(body)
        if self._take is not None:
            self._pour(self._take)
        else:
            self._news.wake()
        return True

    def _note_heard(self, n_before: int) -> None:
        """Counts what came behind the first so many chunks."""
        heard = self._chunks[n_before:] if n_before else self._chunks
        n_bytes = sum(map(len, heard))
        self._size += n_bytes
        if heard and heard[0].startswith(b":"):
            n_bytes = sum(len(chunk) for chunk in heard if not chunk.startswith(b":"))
        self.heard_bytes += n_bytes

    def _note_many(self, n_before: int, data: bytes, body_at: int) -> None:
        """Likewise of many, in `data` from there on: with their frames, a few bytes of each."""
        if self._chunks[n_before].startswith(b":"):
            self._note_heard(n_before)
            return
        self._size += len(data) - body_at
        self.heard_bytes += len(data) - body_at

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.done and self.error is None:
            self.error = UpstreamGone(self.socket_path, before_any_byte=not self._got_bytes)
        self.resume_writing()
        self._on_lost(self)
        self._news.wake()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # What the parser calls; raising here ends the parsing.

    def on_message_begin(self) -> None:
        if self.done:
            raise UpstreamBroken(self.socket_path, "there are bytes after its end")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_head_known or self._head_done:
            return  # the latter: a trailer
        if len(self.headers) >= HEAD_FIELDS or len(name) + len(value) > HEAD_BYTES:
            limits = f"{HEAD_FIELDS} fields or {HEAD_BYTES} bytes"
            raise UpstreamBroken(self.socket_path, f"its head is over {limits}")
        lower = name.lower()
        if lower == _CONTENT_LENGTH:
            self._is_sized = True
        elif lower == b"transfer-encoding":
            self._is_chunked = True
        self.headers.append((lower, value))

    def on_headers_complete(self) -> None:
        if self._is_head_known:
            self.status, self.headers = 200, self._known_headers
            self._is_chunked = self._head_done = True
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:
            raise UpstreamBroken(self.socket_path, f"it is an interim reply, {self.status}")
        if not (self._is_sized or self._is_chunked) and self.status not in (204, 304):
            # Then only the connection's end would be its end, and a lost child would look the same.
            raise UpstreamBroken(self.socket_path, "it does not say how long it is")
        self._head_done = True

    def on_message_complete(self) -> None:
        self.keeps = self._parser.should_keep_alive()
        self.done = True
