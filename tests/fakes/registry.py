"""A registry of models that speaks as Ollama's does, on the loopback, with faults by name.

Two servers, so that a redirect can lead to another host: "127.0.0.1" and "localhost".
"""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.fakes.gguf_writer import gguf

TOKEN = "a-token"
IMAGE = "application/vnd.ollama.image."


@dataclass
class Asked:
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    method: str = "GET"
    body: bytes = b""

    @property
    def range(self) -> tuple[int, int] | None:
        """The bytes that it asks for, the last included."""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        return (int(match[1]), int(match[2])) if match else None


@dataclass
class Faults:
    """What goes wrong; nothing, unless a test says so."""

    cut_after: int | None = None
    """Bytes of a blob's reply after which the connection is cut, `cuts` times."""
    cuts: int = 1
    drip: bool = False
    """Replies of blobs stop coming after their first bytes, `cuts` times."""
    silent: bool = False
    """Replies of blobs have a head and no byte, `cuts` times."""
    piece_bytes: int = 16 << 10
    """Of a blob, sent at once."""
    needs_token: bool = False
    token: str = TOKEN
    """What is given where one is asked for; no other than the usual one is taken."""
    realm: str = ""
    """Where to ask for it instead."""
    moves: bool = False
    """Blobs are at another host."""
    ignores_ranges: bool = False
    refuses_ranges: int = 0
    """So many ranges are answered with 416."""
    wrong_bytes: bool = False
    wrong_total: bool = False
    status: int = 0
    """What blobs are answered with, `cuts` times."""
    pace_s: float = 0.0
    """Between pieces of a blob."""
    trickles: bool = False
    """The heads of blobs' replies come a byte at a time, `cuts` times."""


@dataclass
class FakeRegistry:
    """Its models, its faults, and what it was asked."""

    faults: Faults = field(default_factory=Faults)
    manifests: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    served_bytes: Counter[str] = field(default_factory=Counter)
    """Of each blob."""
    uploads: dict[str, bytes] = field(default_factory=dict)
    """What came of blobs that are pushed, by where they are."""
    port: int = 0
    open_connections: int = 0
    most_connections: int = 0

    def name(self, model: str = "tiny:latest") -> str:
        """What to pull."""
        return f"127.0.0.1:{self.port}/library/{model}"

    def add(
        self, model: str = "tiny:latest", *, weights: bytes | None = None, system: str = "Be brief."
    ) -> bytes:
        """A model; its manifest."""
        layers = [
            self._layer("model", gguf() if weights is None else weights),
            self._layer("system", system.encode()),
        ]
        config = json.dumps({"model_format": "gguf", "model_family": "llama"}).encode()
        told = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "digest": self._blob(config), "size": len(config),
            },
            "layers": layers,
        }  # fmt: skip
        path = "/v2/library/{}/manifests/{}".format(*model.split(":"))
        self.manifests[path] = json.dumps(told, indent=1).encode()
        return self.manifests[path]

    def _layer(self, kind: str, data: bytes) -> dict[str, object]:
        return {"mediaType": IMAGE + kind, "digest": self._blob(data), "size": len(data)}

    def _blob(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest

    def asked_for(self, part: str) -> list[Asked]:
        """Requests whose path has `part` in it."""
        return [one for one in self.asked if part in one.path]

    # What it does.

    async def answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        """One request."""
        self.asked.append(asked)
        path = asked.path.partition("?")[0]
        if path == "/token":
            return await replied(writer, 200, json.dumps({"token": self.faults.token}).encode())
        if path.startswith("/elsewhere/"):
            return await self.send_blob(asked, path.rpartition("/")[2], writer)
        if self.faults.needs_token and asked.headers.get("authorization") != f"Bearer {TOKEN}":
            at = self.faults.realm or f"http://127.0.0.1:{self.port}/token"
            challenge = f'Bearer realm="{at}",service="s",scope="a b"'
            told = b"" if asked.method == "HEAD" else b"{}"
            return await replied(writer, 401, told, {"WWW-Authenticate": challenge})
        if asked.method != "GET":
            return await self._take(asked, path, writer)
        if path in self.manifests:
            return await replied(writer, 200, self.manifests[path])
        if "/blobs/" in path:
            return await self._answer_blob(asked, path.rpartition("/")[2], writer)
        return await replied(writer, 404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')

    async def _take(self, asked: Asked, path: str, writer: asyncio.StreamWriter) -> None:
        """What is pushed here, as the Docker registry takes it."""
        uploads = f"{path.partition('/blobs/')[0]}/blobs/uploads/"
        if asked.method == "HEAD":
            return await replied(writer, 200 if path.rpartition("/")[2] in self.blobs else 404, b"")
        if asked.method == "PUT" and "/manifests/" in path:
            self.manifests[path] = asked.body
            return await replied(writer, 201, b"")
        if asked.method == "POST":
            self.uploads[at := f"{uploads}{len(self.uploads)}"] = b""
        elif asked.method == "PATCH":
            first = int(asked.headers["content-range"].partition("-")[0])
            if self.faults.status or first != len(self.uploads[path]):
                return await replied(writer, self.faults.status or 416, b"no")
            self.uploads[at := path] += asked.body
        else:
            digest = unquote(asked.path.partition("?digest=")[2])
            if digest != f"sha256:{hashlib.sha256(self.uploads[path]).hexdigest()}":
                return await replied(writer, 400, b"DIGEST_INVALID")
            self.blobs[digest] = self.uploads[path]
            return await replied(writer, 201, b"")
        where = f"http://localhost:{self.port}{at}" if self.faults.moves else at
        return await replied(writer, 202, b"", {"Location": where})

    async def _answer_blob(self, asked: Asked, digest: str, writer: asyncio.StreamWriter) -> None:
        if self.faults.moves:
            url = f"http://localhost:{self.port}/elsewhere/{digest}"
            return await replied(writer, 307, b"", {"Location": url})
        return await self.send_blob(asked, digest, writer)

    async def send_blob(self, asked: Asked, digest: str, writer: asyncio.StreamWriter) -> None:
        faults, data = self.faults, self.blobs[digest]
        if faults.trickles and faults.cuts > 0:
            faults.cuts -= 1
            return await trickled(writer)
        if faults.status and faults.cuts > 0:
            faults.cuts -= 1
            return await replied(writer, faults.status, b"not now")
        wanted = None if faults.ignores_ranges else asked.range
        if wanted is not None and faults.refuses_ranges > 0:
            faults.refuses_ranges -= 1
            return await replied(writer, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
        first, last = wanted or (0, len(data) - 1)
        told = {"Content-Length": str(last + 1 - first)}
        if wanted is not None:
            total = len(data) + faults.wrong_total
            told["Content-Range"] = f"bytes {first}-{last}/{total}"
        head = "".join(f"{key}: {value}\r\n" for key, value in told.items())
        status = 206 if wanted is not None else 200
        writer.write(f"HTTP/1.1 {status} OK\r\n{head}\r\n".encode())
        return await self._send_bytes(digest, data[first : last + 1], writer)

    async def _send_bytes(self, digest: str, data: bytes, writer: asyncio.StreamWriter) -> None:
        faults = self.faults
        if faults.wrong_bytes and len(data) > 1000:
            data = bytes(len(data))
        if faults.silent and faults.cuts > 0:
            faults.cuts -= 1
            await asyncio.sleep(3600)
        for at in range(0, len(data), faults.piece_bytes):
            piece = data[at : at + faults.piece_bytes]
            if faults.cuts > 0 and faults.cut_after is not None and at >= faults.cut_after:
                faults.cuts -= 1
                writer.close()
                return
            writer.write(piece)
            await writer.drain()
            self.served_bytes[digest] += len(piece)
            if faults.drip and faults.cuts > 0:
                faults.cuts -= 1
                await asyncio.sleep(3600)
            if faults.pace_s:
                await asyncio.sleep(faults.pace_s)


async def replied(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    told = {"Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{key}: {value}\r\n" for key, value in told.items())
    writer.write(f"HTTP/1.1 {status} OK\r\n{head}\r\n".encode() + body)
    await writer.drain()


async def trickled(writer: asyncio.StreamWriter) -> None:
    """The head of a reply, a byte now and then, for as long as somebody reads."""
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


@asynccontextmanager
async def registry(faults: Faults | None = None) -> AsyncIterator[FakeRegistry]:
    """A registry for as long as the block lasts."""
    fake = FakeRegistry(faults or Faults())
    async with served(fake) as port:
        fake.port = port
        yield fake


@asynccontextmanager
async def served(fake: FakeRegistry) -> AsyncIterator[int]:
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        fake.open_connections += 1
        fake.most_connections = max(fake.most_connections, fake.open_connections)
        try:
            await _converse(reader, writer, fake.answer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # whoever pulls may leave whenever it likes, and so may the test
        finally:
            fake.open_connections -= 1
            running.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        server.close()
        for task in tuple(running):
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()


async def _converse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Callable[[Asked, asyncio.StreamWriter], Awaitable[None]],
) -> None:
    while not writer.is_closing():
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        request, *lines = head.split("\r\n")
        headers = {
            key.strip().lower(): value.strip()
            for key, _, value in (line.partition(":") for line in lines if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, path, _ = request.split(" ")
        await answer(Asked(path, headers, method, body), writer)
