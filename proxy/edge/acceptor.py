"""Takes callers in from one listening socket, and waits while there is no descriptor for one more.

Not create_server: libuv takes a caller and hangs up where descriptors are short, and once it lost
the one it keeps for that, it tries again without a pause, on a whole core.
"""

import asyncio
import errno
from collections.abc import Callable
from contextlib import ExitStack, suppress
from socket import MSG_PEEK, SHUT_WR, socket
from ssl import SSLContext

import structlog

from proxy.edge.crowd import Crowd

log = structlog.get_logger(__name__)

BACKLOG = 2048  # uvicorn's; those wait in the kernel while there are no descriptors
AT_ONCE = 64  # taken in before others have their turn
READ_BYTES = 64 << 10  # of a plain request to a port of HTTPS; a longer one may be reset
FULL_S = 0.25  # cadence of trying again

_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_HTTP_TO_TLS = b"plain HTTP was sent to a port of HTTPS: write https:// in the address\n"


class Acceptor:
    """Accepts until closed, which closes the socket too."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        sock: socket,
        *,
        tls: SSLContext | None = None,
        handshake_s: float | None = None,
        greeted: Crowd | None = None,
    ) -> None:
        """`handshake_s`: for the first byte, and once more for the rest.

        `greeted` bounds handshakes under way; who is past them is the protocol's to count.
        """
        self._protocol, self._sock, self._greeted = protocol, sock, greeted
        self._tls, self._handshake_s = tls, handshake_s
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._is_full = False
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._loop.add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        """Accepts nobody any more; connections go on."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock.fileno())
        if self._again is not None:
            self._again.cancel()
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                caller, address = self._sock.accept()
            except BlockingIOError:
                self._is_full = False  # nobody waits any more: the next lack is another one
                return
            except (InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in _LACKING:
                    raise
                self._pause(exc)
                return
            caller.setblocking(False)
            host = address[0] if isinstance(address, tuple) else ""
            arrival = self._loop.create_task(self._let_in(caller, host), name="arrival")
            self._arriving.add(arrival)  # the loop itself keeps but a weak reference
            arrival.add_done_callback(self._arriving.discard)

    async def _let_in(self, caller: socket, host: str) -> None:
        if self._greeted is None:
            await self._connected(caller)
        elif self._greeted.enter(host):
            try:
                await self._connected(caller)
            finally:
                self._greeted.leave(host)
        else:
            self._greeted.turn_away(self._loop.time())
            caller.close()

    async def _connected(self, caller: socket) -> None:
        # OSError: it left again, was silent, or its handshake failed.
        with ExitStack() as unwanted, suppress(OSError):
            unwanted.enter_context(caller)
            if self._tls is not None and await self._speaks_http(caller):
                _tell_of_tls(caller)
                return
            await self._loop.connect_accepted_socket(
                self._protocol, caller, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )
            unwanted.pop_all()

    async def _speaks_http(self, caller: socket) -> bool:
        """Whether the first byte is a method's. Raises OSError where none comes."""
        came = asyncio.Event()
        self._loop.add_reader(caller.fileno(), came.set)
        try:
            async with asyncio.timeout(self._handshake_s):
                await came.wait()
        finally:
            self._loop.remove_reader(caller.fileno())
        return caller.recv(1, MSG_PEEK).isalpha()

    def _pause(self, exc: OSError) -> None:
        if not self._is_full:
            self._is_full = True
            log.warning("door.full", reason=f"no more callers can be taken in: {exc.strerror}")
        self._loop.remove_reader(self._sock.fileno())
        self._again = self._loop.call_later(FULL_S, self._resume)

    def _resume(self) -> None:
        self._again = None
        self._loop.add_reader(self._sock.fileno(), self._accept)
        self._accept()


def _tell_of_tls(caller: socket) -> None:
    """Answers in the clear. What of the request has come is read, or closing would reset it."""
    caller.recv(READ_BYTES)
    caller.send(
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
        b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_HTTP_TO_TLS), _HTTP_TO_TLS)
    )
    caller.shutdown(SHUT_WR)
