"""uvicorn for embedding: no signals, no ticking, sockets of the daemon's, an end that is bounded.

uvicorn's own serve() takes SIGTERM and wakes ten times a second; its parts are driven here instead.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from socket import AF_INET, AF_INET6, AF_UNIX, IPPROTO_TCP, TCP_NODELAY, socket
from ssl import SSLContext
from time import monotonic
from typing import Any, cast

import structlog
import uvicorn

from proxy.app import PARTING_S, ASGIApp
from proxy.edge.acceptor import Acceptor
from proxy.edge.crowd import UNLIMITED, Crowd
from proxy.edge.protocol import PATIENT, DoorProtocol, Patience

log = structlog.get_logger(__name__)

HANDSHAKE_S = 10.0  # as long as for a head; asyncio's own limit is a minute
ABORT_S = 1.0  # for tasks that were cancelled to be gone


class DoorServer(uvicorn.Server):
    """One set of listening sockets, served inside somebody else's event loop."""

    def __init__(
        self, app: ASGIApp, patience: Patience, crowd: Crowd, tls: SSLContext | None
    ) -> None:
        self._acceptors: list[Acceptor] = []
        self._tls = tls
        self._greeted = Crowd(crowd.limits)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast(Any, partial(DoorProtocol, patience=patience, crowd=crowd)),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=cast(int, patience.idle_s),
            )
        )

    def open(self, sockets: Sequence[socket]) -> None:
        """Begins to accept."""
        for sock in sockets:
            if sock.family in (AF_INET, AF_INET6):
                # Accepted sockets inherit it. asyncio sets it itself only where the listener was
                # made with proto=IPPROTO_TCP; without it each reply takes 40 ms (delayed ACK).
                sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self.config.load()
        protocol = partial(
            cast(Any, self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state={},
        )
        for sock in sockets:
            # Who may open a Unix socket is on this machine: nobody listens in between.
            tls = None if sock.family == AF_UNIX else self._tls
            if tls is None:
                acceptor = Acceptor(protocol, sock)
            else:
                acceptor = Acceptor(
                    protocol, sock, tls=tls, handshake_s=HANDSHAKE_S, greeted=self._greeted
                )
            self._acceptors.append(acceptor)
        self.started = True

    async def drain(self, *, drain_s: float) -> None:
        """Accepts nothing new, and lets running requests end for drain_s."""
        self._close_acceptors()
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
        await self._idle(within_s=drain_s)

    async def abort(self) -> None:
        """Ends what still runs, and closes every connection."""
        self._close_acceptors()
        tasks = self._running()
        for task in tasks:
            task.cancel()
        if tasks:
            log.warning("door.requests_cut", requests=len(tasks))
            await self._idle(within_s=PARTING_S + ABORT_S)
        for connection in tuple(self.server_state.connections):
            transport = connection.transport
            if transport is not None:
                transport.close()

    def _close_acceptors(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()

    async def _idle(self, *, within_s: float) -> None:
        """Until no request runs, or the time is over."""
        until_s = monotonic() + within_s
        while (tasks := self._running()) and (left_s := until_s - monotonic()) > 0:
            await asyncio.wait(tasks, timeout=left_s)

    def _running(self) -> list[asyncio.Task[None]]:
        """Requests being answered; cancelled before they began, they do not take themselves out."""
        return [task for task in self.server_state.tasks if not task.done()]


async def serve(
    app: ASGIApp,
    sockets: Sequence[socket],
    *,
    stop: asyncio.Event,
    started: asyncio.Event,
    drain_s: Callable[[], float],
    patience: Patience = PATIENT,
    crowd: Crowd | None = None,
    tls: SSLContext | None = None,
) -> None:
    """Serves from `started` until `stop` is set, then drains; cancelled, it ends without draining.

    `drain_s` is asked then: requests that still run after it end with an error in their dialect.
    No `crowd` is one without limits, no `tls` plain HTTP.
    """
    server = DoorServer(app, patience, Crowd(UNLIMITED) if crowd is None else crowd, tls)
    server.open(sockets)
    started.set()
    try:
        await stop.wait()
        await server.drain(drain_s=drain_s())
    finally:
        await server.abort()
