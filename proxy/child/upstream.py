"""The data path's HTTP/1.1 client: llama-server children over their Unix sockets, pooled.

It knows connections and bytes, nothing of models or dialects.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

from proxy.bodies import Buffers
from proxy.child.connection import Connection, Reader, Take
from proxy.errors import UpstreamBroken, UpstreamGone, UpstreamStalled

JOIN_BYTES = 16 << 10  # below this, head and body go out in one write
IDLE_S = 4.0  # llama-server closes idle connections after 5 s (Keep-Alive: timeout=5)
CONNECT_S = 5.0  # a Unix socket connects at once unless the backlog of a hung child is full


class _Pool:
    """The connections to one child."""

    __slots__ = (
        "_closed", "_expiry", "_heard_bytes", "_idle", "_limit", "_loop", "_open",
        "_under_way", "_waiting", "path",
    )  # fmt: skip

    def __init__(self, path: str, *, limit: int) -> None:
        self.path = path
        self._limit, self._under_way = limit, 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        """For room: their exchange begins when another one ends."""
        self._heard_bytes = 0
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def is_unused(self) -> bool:
        """True when nothing would be lost with it."""
        return not (self._open or self._under_way or self._waiting)

    @property
    def heard_bytes(self) -> int:
        """Of all replies so far."""
        return self._heard_bytes + sum(connection.heard_bytes for connection in self._open)

    def enter_at_once(self) -> bool:
        """Takes room for one more exchange where there is some, and nobody waits for it."""
        if self._under_way >= self._limit or self._waiting:
            return False
        self._under_way += 1
        return True

    async def enter(self) -> None:
        """Waits for room for one more exchange, in turn. Raises UpstreamStalled."""
        room: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(room)
        entered = False
        try:
            async with asyncio.timeout(CONNECT_S):
                await room
            entered = True
        except TimeoutError as exc:
            raise UpstreamStalled(self.path, doing="free a connection", limit_s=CONNECT_S) from exc
        finally:
            if not entered:
                self._withdraw(room)

    def _withdraw(self, room: asyncio.Future[None]) -> None:
        if room.cancelled():
            self._waiting.remove(room)
        else:
            self.leave()  # it was granted in the moment of giving up

    def leave(self) -> None:
        """Gives the room back, to whoever has waited longest."""
        for room in self._waiting:
            if not room.done():
                room.set_result(None)
                self._waiting.remove(room)
                return
        self._under_way -= 1

    def reused(self) -> Connection | None:
        """The warmest idle connection that the child has surely not given up yet."""
        while self._idle:
            connection = self._idle.pop()
            if self._loop.time() - connection.idle_since_s < IDLE_S:
                return connection
            connection.abort()
        return None

    async def fresh(self) -> Connection:
        """A new connection. Raises UpstreamGone, UpstreamStalled."""
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await self._loop.create_unix_connection(self._unmade, self.path)
        except TimeoutError as exc:
            raise UpstreamStalled(self.path, doing="take a connection", limit_s=CONNECT_S) from exc
        except OSError as exc:
            raise UpstreamGone(self.path, before_any_byte=True) from exc
        return connection

    def _unmade(self) -> Connection:
        # Not open yet: uvloop makes the protocol before it connects.
        return Connection(self.path, on_made=self._open.add, on_lost=self._lost)

    def _lost(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._heard_bytes += connection.heard_bytes
        if connection in self._idle:
            self._idle.remove(connection)

    def put_back(self, connection: Connection) -> None:
        """Keeps a connection whose exchange has ended well, or closes it; gives the room back."""
        if self._closed or not (connection.done and connection.keeps):
            connection.abort()
        elif not connection.closed:
            connection.idle_since_s = self._loop.time()
            self._idle.append(connection)
            if self._expiry is None:
                self._expiry = self._loop.call_later(IDLE_S, self._expire)
        if self._waiting:
            self.leave()
        else:
            self._under_way -= 1

    def _expire(self) -> None:
        """Closes what has been idle too long; armed only while something is idle."""
        self._expiry = None
        limit_s = self._loop.time() - IDLE_S
        while self._idle and self._idle[0].idle_since_s <= limit_s:
            self._idle.pop(0).abort()
        if self._idle:
            self._expiry = self._loop.call_at(self._idle[0].idle_since_s + IDLE_S, self._expire)

    def close(self) -> None:
        """Aborts every connection, exchanges under way included."""
        self._closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        self._idle.clear()
        for connection in tuple(self._open):
            connection.abort()


class UpstreamResponse:
    """A child's reply whose head has arrived."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status = connection.status
        self.headers: Sequence[tuple[bytes, bytes]] = connection.headers

    @property
    def socket_path(self) -> str:
        """Whose reply it is."""
        return self._connection.socket_path

    @property
    def has_ended(self) -> bool:
        """Whether the child has said all of it, taken or not."""
        return self._connection.done

    def header(self, name: bytes) -> bytes:
        """The first value of a header, by its lower-case name; empty where there is none."""
        for key, value in self.headers:
            if key == name:
                return value
        return b""

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, what has arrived joined. Raises UpstreamGone, UpstreamBroken."""
        while data := await self._connection.chunk():
            yield data

    async def pour(self, take: Take, reader: Reader) -> None:
        """Has `take` called with the body as it comes, what has arrived joined, until its end.

        In the very call that brings it, unless `reader` is slow. Raises UpstreamGone,
        UpstreamBroken, and what `take` raises.
        """
        await self._connection.pour(take, reader)

    def at_once(self, *, limit_bytes: int) -> bytes | None:
        """The whole body where all of it is there, as that of a short reply is; else None."""
        return self._connection.whole(limit_bytes)

    async def read(self, *, limit_bytes: int) -> bytes:
        """The whole body. Raises UpstreamBroken over the limit, UpstreamGone where it is cut."""
        if (rest := self.at_once(limit_bytes=limit_bytes)) is not None:
            return rest
        parts: list[bytes] = []
        size = 0
        while data := await self._connection.chunk():
            size += len(data)
            if size > limit_bytes:
                raise UpstreamBroken(self.socket_path, f"it is over {limit_bytes} bytes")
            parts.append(data)
        return b"".join(parts)


class UpstreamRequest:
    """A request as an async context manager: its reply inside the block, nothing of it after."""

    __slots__ = ("_connection", "_pieces", "_pool")

    def __init__(self, pool: _Pool, pieces: Buffers) -> None:
        self._pool, self._pieces = pool, pieces
        self._connection: Connection | None = None

    def __aenter__(self) -> Coroutine[Any, Any, UpstreamResponse]:
        return self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def open(self) -> UpstreamResponse:
        """The reply; who opens closes. Raises UpstreamError."""
        pool = self._pool
        if not pool.enter_at_once():
            await pool.enter()
        try:
            connection = pool.reused()
            if connection is not None:
                try:
                    await connection.send(self._pieces)
                except UpstreamGone as gone:
                    # A child may close an idle connection in the very moment that we use it.
                    # Nothing came back, so sending once more, on a new one, is safe.
                    if not gone.before_any_byte:
                        raise
                    connection = None
            if connection is None:
                connection = await pool.fresh()
                await connection.send(self._pieces)
        except BaseException:
            pool.leave()
            raise
        self._connection = connection
        return UpstreamResponse(connection)

    def close(self) -> None:
        """Nothing more of the reply is wanted."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.put_back(connection)


class UpstreamPools:
    """Connections to all children, by socket path; all of it on one event loop."""

    def __init__(self, *, connections_per_child: int) -> None:
        self._limit = connections_per_child  # each holds a thread of the child
        self._pools: dict[str, _Pool] = {}

    def request(
        self,
        socket_path: str,
        *,
        method: bytes,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: Buffers = (),
    ) -> UpstreamRequest:
        """`async with pools.request(…) as response`: over, or aborted, when the block is left.

        Entering waits for the reply's head, without a limit: reading a prompt may take long.
        Host and Content-Length are added. Raises UpstreamGone, UpstreamBroken, UpstreamStalled.
        """
        pool = self._pools.get(socket_path)
        if pool is None:
            self._sweep()
            pool = self._pools[socket_path] = _Pool(socket_path, limit=self._limit)
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        n_bytes = sum(map(len, body))
        head = b"%b %b HTTP/1.1\r\nHost: child\r\n%bContent-Length: %d\r\n\r\n" % (
            method, target, lines, n_bytes
        )  # fmt: skip
        pieces = (head, *body)
        return UpstreamRequest(pool, (b"".join(pieces),) if n_bytes <= JOIN_BYTES else pieces)

    def heard_bytes(self, socket_path: str) -> int:
        """What a child has said in its replies so far, in bytes; keep-alive comments excluded."""
        pool = self._pools.get(socket_path)
        return pool.heard_bytes if pool is not None else 0

    def forget(self, socket_path: str) -> None:
        """Closes every connection to a child, exchanges under way included."""
        pool = self._pools.pop(socket_path, None)
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Closes every connection to every child."""
        for socket_path in tuple(self._pools):
            self.forget(socket_path)

    def _sweep(self) -> None:
        """Drops the pools of children that are gone; each launch has a path of its own."""
        for path in [path for path, pool in self._pools.items() if pool.is_unused]:
            del self._pools[path]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
