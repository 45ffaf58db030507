"""Copying, deleting and uploading over HTTP: the store behind it is a real one."""

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from proxy.admission.gate import OPEN_GATE, Management
from tests.fakes.gguf_writer import gguf, put, split_gguf
from tests.fakes.kept_store import ShelfFleet
from tests.fakes.ollama_store import OllamaStore, as_it_lies
from tests.fakes.serving import SETTINGS, serving


@dataclass(frozen=True, slots=True)
class Kept:
    """A served store, and a client for it."""

    fleet: ShelfFleet
    client: httpx.AsyncClient
    port: int

    async def copy(self, source: str, destination: str) -> httpx.Response:
        told = {"source": source, "destination": destination}
        return await self.client.post("/api/copy", json=told)

    async def delete(self, name: str) -> httpx.Response:
        return await self.client.request("DELETE", "/api/delete", json={"model": name})

    async def names(self) -> set[str]:
        models = (await self.client.get("/api/tags")).json()["models"]
        return {model["name"] for model in models}


@asynccontextmanager
async def kept(folder: Path, **more: Any) -> AsyncIterator[Kept]:
    """A store, and `models/tiny.gguf` beside it."""
    fleet = ShelfFleet(folder)
    put(fleet.dir, "tiny.gguf")
    await fleet.catalogue.scan()
    async with serving(fleet, store=fleet.store, **more) as at:
        yield Kept(fleet, at.client, at.port)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def test_a_copy_is_there_at_once_and_gone_at_once(tmp_path: Path) -> None:
    async with kept(tmp_path) as at:
        copied = await at.copy("tiny", "mine")
        there = await at.names()
        deleted = await at.delete("mine")
        gone = await at.names()

    assert (copied.status_code, copied.content) == (200, b"")
    assert there == {"tiny:latest", "mine:latest"}
    assert (deleted.status_code, deleted.content) == (200, b"")
    assert gone == {"tiny:latest"}
    assert as_it_lies(tmp_path / "store") == {}
    assert at.fleet.events == [("model.copied", "mine:latest"), ("model.deleted", "mine:latest")]


async def test_a_copy_of_a_copy_shares_its_weights(tmp_path: Path) -> None:
    async with kept(tmp_path) as at:
        await at.copy("tiny", "one")
        before = as_it_lies(tmp_path / "store" / "blobs")
        await at.copy("one", "two:1")
        assert as_it_lies(tmp_path / "store" / "blobs") == before
        await at.delete("ONE")

        assert await at.names() == {"tiny:latest", "two:1"}

    assert as_it_lies(tmp_path / "store" / "blobs") == before


async def test_a_copy_of_anothers_store_leaves_it_as_it_was(tmp_path: Path) -> None:
    other = OllamaStore(tmp_path / "models")
    other.add(layers=[("system", b"Be brief.")], params={"temperature": 0.5})
    before = as_it_lies(tmp_path / "models")
    async with kept(tmp_path) as at:
        before |= {"tiny.gguf": gguf()}
        await at.copy("tiny:latest", "mine")
        shown = (await at.client.post("/api/show", json={"model": "mine"})).json()

    assert shown["system"] == "Be brief."
    assert as_it_lies(tmp_path / "models") == before
    own = as_it_lies(tmp_path / "store")
    assert {k: v for k, v in before.items() if "blobs" in k}.items() <= own.items()


@pytest.mark.parametrize(
    ("source", "destination", "status", "says"),
    [
        ("none", "x", 404, 'model "none" not found'),
        ("", "x", 400, 'source "" is invalid'),
        ("a b", "x", 400, 'source "a b" is invalid'),
        ("tiny", "", 400, 'destination "" is invalid'),
        ("tiny", "../x", 400, 'destination "../x" is invalid'),
        ("tiny", "x:", 400, 'destination "x:" is invalid'),
    ],
)
async def test_a_copy_is_refused_in_ollamas_words(
    tmp_path: Path, source: str, destination: str, status: int, says: str
) -> None:
    async with kept(tmp_path) as at:
        reply = await at.copy(source, destination)

    assert (reply.status_code, reply.json()) == (status, {"error": says})
    assert as_it_lies(tmp_path / "store") == {}


async def test_a_name_that_a_file_has_is_not_given_to_a_stored_model(tmp_path: Path) -> None:
    async with kept(tmp_path) as at:
        put(at.fleet.dir, "other.gguf")
        await at.fleet.catalogue.scan()
        reply = await at.copy("tiny", "OTHER")

    assert reply.status_code == 409
    assert str(tmp_path / "models/other.gguf") in reply.json()["error"]


async def test_a_split_model_is_not_copied_and_the_reason_says_what_to_do(tmp_path: Path) -> None:
    async with kept(tmp_path) as at:
        for number, part in enumerate(split_gguf(2), start=1):
            put(at.fleet.dir, f"big-{number:05}-of-00002.gguf", part)
        await at.fleet.catalogue.scan()
        reply = await at.copy("big", "mine")

    assert reply.status_code == 400
    assert "llama-gguf-split --merge" in reply.json()["error"]
    assert as_it_lies(tmp_path / "store") == {}


@pytest.mark.parametrize(
    ("told", "status", "says"),
    [
        ({"model": "none"}, 404, "model 'none' not found"),
        ({"name": "none"}, 404, "model 'none' not found"),
        ({}, 400, "model is required"),
        ({"model": "../../etc"}, 400, 'name "../../etc" is invalid'),
        ({"model": 7}, 400, "json: cannot unmarshal number into Go struct field"
                            " DeleteRequest.model of type string"),
    ],
)  # fmt: skip
async def test_a_deletion_is_refused_in_ollamas_words(
    tmp_path: Path, told: dict[str, object], status: int, says: str
) -> None:
    async with kept(tmp_path) as at:
        reply = await at.client.request("DELETE", "/api/delete", json=told)

    assert (reply.status_code, reply.json()) == (status, {"error": says})


async def test_what_others_keep_is_not_deleted_and_it_is_said_whose_it_is(tmp_path: Path) -> None:
    other = OllamaStore(tmp_path / "models" / "ollama")
    other.add("registry.ollama.ai/library/theirs/latest")
    async with kept(tmp_path) as at:
        at.fleet.catalogue.reconfigure(
            dirs=(str(at.fleet.dir), str(other.folder)),
            rules=(),
            defaults=at.fleet.model.settings,
        )
        await at.fleet.catalogue.scan()
        file = await at.delete("tiny")
        stored = await at.delete("theirs")
        there = await at.names()

    assert (file.status_code, stored.status_code) == (403, 403)
    assert str(tmp_path / "models/tiny.gguf") in file.json()["error"]
    assert str(other.folder) in stored.json()["error"]
    assert there == {"tiny:latest", "theirs:latest"}


async def test_a_broken_model_of_the_own_store_can_be_deleted(tmp_path: Path) -> None:
    async with kept(tmp_path) as at:
        await at.copy("tiny", "mine")
        for blob in (tmp_path / "store" / "blobs").iterdir():
            blob.unlink()
        await at.fleet.catalogue.scan()
        reply = await at.delete("mine")

    assert reply.status_code == 200
    assert as_it_lies(tmp_path / "store") == {}


async def test_an_uploaded_blob_is_there_once_it_is_whole(tmp_path: Path) -> None:
    url = f"/api/blobs/{digest_of(b'abc')}"
    async with kept(tmp_path) as at:
        before = await at.client.head(url)
        created = await at.client.post(url, content=b"abc")
        after = await at.client.head(url)
        again = await at.client.post(url, content=b"abc")

    assert [r.status_code for r in (before, created, after, again)] == [404, 201, 200, 200]
    assert [r.content for r in (before, created, after, again)] == [b""] * 4
    assert list(as_it_lies(tmp_path / "store").values()) == [b"abc"]


async def test_an_upload_may_be_longer_than_any_other_body_and_of_unknown_length(
    tmp_path: Path,
) -> None:
    piece, n = b"weights!" * 8192, 64
    assert len(piece) * n > SETTINGS.max_body_bytes

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(n):
            yield piece

    async with kept(tmp_path) as at:
        url = f"/api/blobs/{digest_of(piece * n)}"
        reply = await at.client.post(url, content=pieces())

    assert reply.status_code == 201
    assert list(as_it_lies(tmp_path / "store").values()) == [piece * n]


@pytest.mark.parametrize(
    ("digest", "body", "says"),
    [
        (digest_of(b"abc"), b"abd",
         f'digest mismatch, expected "{digest_of(b"abc")}", got "{digest_of(b"abd")}"'),
        ("sha256:00", b"abc", "invalid digest format"),
        ("md5:" + "0" * 64, b"abc", "invalid digest format"),
        ("sha256:" + "0" * 62 + "%2e%2e", b"abc", "invalid digest format"),
    ],
)  # fmt: skip
async def test_an_upload_that_is_not_what_its_digest_says_leaves_nothing(
    tmp_path: Path, digest: str, body: bytes, says: str
) -> None:
    async with kept(tmp_path) as at:
        reply = await at.client.post(f"/api/blobs/{digest}", content=body)

    assert (reply.status_code, reply.json()) == (400, {"error": says})
    assert as_it_lies(tmp_path / "store") == {}


async def test_an_upload_that_the_disk_has_no_room_for_is_refused_before_it_is_sent(
    tmp_path: Path,
) -> None:
    digest = digest_of(b"abc")
    async with kept(tmp_path) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(
            f"POST /api/blobs/{digest} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Length: {1 << 60}\r\n\r\n".encode()
        )
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
        writer.close()

    assert head.startswith(b"HTTP/1.1 507 ")


async def test_a_caller_who_leaves_a_copy_leaves_nothing_of_it(tmp_path: Path) -> None:
    async with kept(tmp_path) as at:
        put(at.fleet.dir, "big.gguf", gguf() + bytes(64 << 20))
        await at.fleet.catalogue.scan()
        copying = asyncio.create_task(at.copy("big", "mine"))
        async with asyncio.timeout(20):
            while not any((at.fleet.own / "blobs").glob(".incoming-*")):
                await asyncio.sleep(0.001)
        copying.cancel()
        async with asyncio.timeout(20):
            while any((at.fleet.own / "blobs").glob(".incoming-*")):
                await asyncio.sleep(0.01)
        again = await at.copy("big", "mine")

    assert again.status_code == 200


async def test_a_caller_who_leaves_in_the_middle_of_an_upload_leaves_nothing(
    tmp_path: Path,
) -> None:
    digest = digest_of(b"abc" * 1_000_000)
    async with kept(tmp_path) as at:
        with socket.create_connection(("127.0.0.1", at.port)) as caller:
            caller.sendall(
                f"POST /api/blobs/{digest} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Content-Length: 3000000\r\n\r\n".encode()
                + b"abc" * 500_000
            )
            async with asyncio.timeout(10):
                while not as_it_lies(tmp_path / "store"):
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            while as_it_lies(tmp_path / "store"):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/copy"), ("DELETE", "/api/delete"), ("POST", "/api/create"),
     ("POST", f"/api/blobs/{digest_of(b'abc')}")],
)  # fmt: skip
async def test_where_management_is_off_nothing_is_changed(
    tmp_path: Path, method: str, path: str
) -> None:
    settings = replace(SETTINGS, gate=replace(OPEN_GATE, management=Management.OFF))
    async with kept(tmp_path, settings=settings) as at:
        reply = await at.client.request(method, path, content=b"abc")

    assert reply.status_code == 403
    assert "server.manage is off" in reply.json()["error"]
    assert as_it_lies(tmp_path / "store") == {}


async def test_a_push_of_what_is_not_stored_says_what_to_do(tmp_path: Path) -> None:
    async with kept(tmp_path) as at:
        unknown = await at.client.post("/api/push", json={"model": "none"})
        known = await at.client.post("/api/push", json={"model": "tiny", "stream": False})

    lines = [json.loads(line) for line in unknown.text.splitlines()]
    assert lines == [
        {"status": "retrieving manifest"},
        {"status": "couldn't retrieve manifest"},
        {"error": "model 'none' not found"},
    ]
    assert known.status_code == 501
    assert "copy it first, to the name of a registry" in known.json()["error"]
