"""`python -m bench.relay.floor SOCKET`: the least that a relay in Python costs; none to use.

What passes requests on is a protocol on either side and nothing else: no head is read but for a
reply's length, nobody is asked who they are, nothing is counted, logged, retried or bounded.
Prints the port of 127.0.0.1 on which it listens.
"""

import asyncio
import sys
from typing import cast

import uvloop

_LENGTH = b"Content-Length: "
_LAST_CHUNK = b"\r\n0\r\n\r\n"  # the child sends it with what is before it


class _Child(asyncio.Protocol):
    """A connection to the child, lent to one caller until its reply has ended."""

    caller: "_Caller | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.caller is not None:
            self.caller.hear(data)


class _Caller(asyncio.Protocol):
    """A caller that asks one thing after another, each in one piece."""

    child: _Child | None = None
    left_bytes = 0
    """Of a reply whose length was told; 0 before its head, and of one in chunks."""

    def __init__(self, idle: list[_Child], path: str) -> None:
        self._idle, self._path = idle, path

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._idle:
            self._send(self._idle.pop(), data)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(data))

    async def _connect(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._send((await loop.create_unix_connection(_Child, self._path))[1], data)

    def _send(self, child: _Child, data: bytes) -> None:
        self.child, child.caller = child, self
        child.transport.write(data)

    def hear(self, data: bytes) -> None:
        """Passes a part of the reply on; the child is free at its end."""
        self._transport.write(data)
        if not self.left_bytes and (at := data.find(_LENGTH)) >= 0:
            end = data.index(b"\r\n", at)
            self.left_bytes = data.index(b"\r\n\r\n", end) + 4 + int(data[at + len(_LENGTH) : end])
        if self.left_bytes:
            self.left_bytes -= len(data)
            is_over = self.left_bytes == 0
        else:
            is_over = data.endswith(_LAST_CHUNK)
        if is_over and self.child is not None:
            self.child.caller = None
            self._idle.append(self.child)
            self.child = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.child is not None:
            self.child.transport.abort()


async def main() -> None:
    """Serves until it is killed."""
    idle: list[_Child] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Caller(idle, sys.argv[1]), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
