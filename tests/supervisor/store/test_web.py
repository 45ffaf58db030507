"""Where the web client goes: never without TLS, unless it may, not even on the way elsewhere."""

import asyncio
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import pytest

from supervisor.store.pull_errors import InsecureProtocol, RegistryOdd, Stalled
from supervisor.store.web import MAX_REDIRECTS, Web
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


def leads_to(url: str) -> bytes:
    return (
        f"HTTP/1.1 302 Found\r\nlocation: {url}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    ).encode()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A port of the loopback at which `answer` has each connection; all are closed at its end."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError):
            try:
                await answer(reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)


def at_port(place: Place, tls: ssl.SSLContext | None = None) -> AbstractAsyncContextManager[int]:
    return answering(place.answer, tls)


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


BOMB = zlib.compressobj(9, zlib.DEFLATED, 31)
PACKED = b"".join(BOMB.compress(bytes(1 << 20)) for _ in range(64)) + BOMB.flush()


async def test_what_comes_along_with_a_redirect_is_not_unpacked() -> None:
    end, start = Place(OK), Place(b"")
    async with at_port(end) as end_port, at_port(start) as start_port:
        location = f"location: http://127.0.0.1:{end_port}/\r\n".encode()
        start.reply = b"HTTP/1.1 302 Found\r\ncontent-encoding: gzip\r\n" + location
        start.reply += b"content-length: %d\r\n\r\n" % len(PACKED) + PACKED
        web = Web(allows_plain=True, stall_s=5, head_s=10)
        tracemalloc.start()
        try:
            answer = await web.answer(
                f"http://127.0.0.1:{start_port}/", headers={}, most_bytes=100, limit_s=10
            )
            most_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await web.aclose()

    assert answer.body == b"ok"
    assert most_bytes < 16 << 20  # 64 MiB are packed


async def test_a_redirect_whose_body_never_ends_is_followed_all_the_same() -> None:
    end = Place(OK)

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        location = f"location: http://127.0.0.1:{end_port}/\r\n".encode()
        writer.write(b"HTTP/1.1 302 Found\r\n" + location + b"transfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            await writer.drain()

    async with at_port(end) as end_port, answering(endless) as port:
        url = f"http://127.0.0.1:{port}/"
        web = Web(allows_plain=True, stall_s=5, head_s=10)
        answer = await web.answer(url, headers={}, most_bytes=100, limit_s=10)
        await web.aclose()

    assert answer.body == b"ok"


async def test_one_redirect_after_another_is_given_up() -> None:
    place = Place(leads_to("/again"))
    async with at_port(place) as port:
        web = Web(allows_plain=True, stall_s=5, head_s=10)
        with pytest.raises(RegistryOdd, match="one redirect after another"):
            await web.answer(f"http://127.0.0.1:{port}/", headers={}, most_bytes=100, limit_s=10)
        await web.aclose()

    assert place.asked == MAX_REDIRECTS + 1


async def test_bytes_of_a_file_that_trickle_are_not_waited_for() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-9999/10000\r\n"
        writer.write(head + b"content-length: 10000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with answering(trickle) as port:
        url = f"http://127.0.0.1:{port}/"
        web = Web(allows_plain=True, stall_s=0.2, head_s=10)
        with pytest.raises(Stalled):
            async for _ in web.pieces(url, headers={}, first=0, last=9999, total_bytes=10000):
                pass
        await web.aclose()
