"""What answers at the public port, from the moment it is open."""

import asyncio
from collections.abc import Awaitable

from proxy.app import ASGIApp
from proxy.exchange import Receive, Scope, Send

ITSELF = frozenset({"/", "/health", "/api/version", "/metrics"})
"""Paths of what can be told without a look at the models."""


class Front:
    """The public port's application, replaced whole when settings of the door change.

    Until the models were looked at, which takes a slow disk seconds, callers wait; not those who
    ask whether there is a daemon.
    """

    def __init__(self, app: ASGIApp, *, parting: ASGIApp) -> None:
        """`parting` tells whoever asks that the daemon stops."""
        self.app, self._parting = app, parting
        self.has_looked = asyncio.Event()

    def part(self) -> None:
        """The daemon stops before the models were looked at: none may be said to be missing."""
        self.app = self._parting
        self.has_looked.set()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if self.has_looked.is_set() or scope.get("path") in ITSELF:
            return self.app(scope, receive, send)
        return self._later(scope, receive, send)

    async def _later(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.has_looked.wait()
        await self.app(scope, receive, send)
