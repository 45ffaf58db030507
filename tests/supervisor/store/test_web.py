"""Where the web client goes: never without TLS, unless it may, not even on the way elsewhere."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from supervisor.store.pull_errors import InsecureProtocol
from supervisor.store.web import Web
from tests.fakes.certificates import certificate

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"


class Place:
    """A server that gives one reply to all, and counts who asked."""

    def __init__(self, reply: bytes) -> None:
        self.reply, self.asked = reply, 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        writer.write(self.reply)
        await writer.drain()
        writer.close()


def leads_to(url: str) -> bytes:
    return (
        f"HTTP/1.1 302 Found\r\nlocation: {url}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    ).encode()


@asynccontextmanager
async def at_port(place: Place, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    server = await asyncio.start_server(place.answer, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("allows_plain", [False, True])
async def test_a_way_over_plain_http_is_not_taken_though_it_leads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allows_plain: bool
) -> None:
    cert, key = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    end, plain, start = Place(OK), Place(b""), Place(b"")
    async with (
        at_port(end, tls) as end_port,
        at_port(plain) as plain_port,
        at_port(start, tls) as start_port,
    ):
        plain.reply = leads_to(f"https://127.0.0.1:{end_port}/")
        start.reply = leads_to(f"http://127.0.0.1:{plain_port}/")
        web = Web(allows_plain=allows_plain, stall_s=10.0, head_s=10.0)
        asked = web.answer(
            f"https://127.0.0.1:{start_port}/", headers={}, most_bytes=100, limit_s=10.0
        )
        if allows_plain:
            assert (await asked).body == b"ok"
        else:
            with pytest.raises(InsecureProtocol):
                await asked
        await web.aclose()

    assert (start.asked, plain.asked, end.asked) == (1, allows_plain, allows_plain)
