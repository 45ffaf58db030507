"""A caller of the proxy who writes its own bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from socket import socket

from proxy.edge.crowd import Crowd
from proxy.edge.protocol import PATIENT, Patience
from tests.fakes.fleet_of_one import FleetOfOne
from tests.fakes.serving import Served, serving

SOON_S = 20.0


@dataclass(frozen=True, slots=True)
class Caller:
    """A connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Sends in small parts, as far as the server takes them."""
        try:
            for at in range(0, len(data), 16 << 10):
                self.writer.write(data[at : at + (16 << 10)])
                await self.writer.drain()
        except ConnectionError:
            pass  # it has closed; what it said is still to be read

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        got = b""
        async with asyncio.timeout(SOON_S):
            try:
                while data := await self.reader.read(1 << 16):
                    got += data
            except ConnectionError:
                pass  # closed with bytes of ours unread
        return got


@asynccontextmanager
async def connected(at: Served, sock: socket | None = None) -> AsyncIterator[Caller]:
    """One more connection, or that of `sock`."""
    if sock is None:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
    else:
        reader, writer = await asyncio.open_connection(sock=sock)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def calling(
    fleet: FleetOfOne, patience: Patience = PATIENT, crowd: Crowd | None = None
) -> AsyncIterator[Caller]:
    """A server of its own, and a connection to it."""
    async with serving(fleet, patience=patience, crowd=crowd) as at, connected(at) as caller:
        yield caller
