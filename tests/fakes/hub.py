"""A hub of repositories that speaks as Hugging Face's does, on the loopback, with faults."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from supervisor.store.hubs import Hub
from tests.fakes.registry import TOKEN, Asked, FakeRegistry, Faults, replied, served

REVISION = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/Tiny-GGUF"
PAGE = 2  # entries of a tree's page


@dataclass
class FakeHub(FakeRegistry):
    """One repository: its files are large ones, but for those that are said to be in git."""

    files: dict[str, bytes] = field(default_factory=dict)
    in_git: set[str] = field(default_factory=set)
    is_gated: bool = False
    """Files are for TOKEN alone, though the list is everybody's."""
    is_private: bool = False
    """All of it is for TOKEN alone."""
    has_sizes: bool = True
    """Whether its list tells sizes; else its trees do."""
    has_list: bool = True
    claimed_bytes: int | None = None
    """What its lists say of all sizes, where they lie."""

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def at(self, token: str = "") -> Hub:
        """As whoever has `token` asks it."""
        return Hub(self.endpoint, token)

    def put(self, path: str, data: bytes, *, in_git: bool = False) -> None:
        """A file."""
        self.files[path] = data
        self.blobs[hashlib.sha256(data).hexdigest()] = data
        if in_git:
            self.in_git.add(path)

    async def answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        """One request."""
        self.asked.append(asked)
        path, _, query = asked.path.partition("?")
        if path.startswith("/elsewhere/"):
            return await self.send_blob(asked, path.rpartition("/")[2], writer)
        if self.is_private and not self._is_known(asked):
            headers = {"X-Error-Code": "RepoNotFound"}
            return await replied(writer, 401, b"{}", headers)
        if path == f"/api/models/{REPOSITORY}" and self.has_list:
            return await replied(writer, 200, self._list(with_sizes="blobs=true" in query))
        if path.startswith(f"/api/models/{REPOSITORY}/tree/"):
            return await self._tree(query, writer)
        match = re.fullmatch(rf"/{REPOSITORY}/resolve/{self._revision}/(.+)", path)
        if match is None or unquote(match[1]) not in self.files:
            return await replied(writer, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        return await self._resolve(asked, unquote(match[1]), writer)

    @property
    def _revision(self) -> str:
        return REVISION if self.has_list else "main"

    def _told_bytes(self, data: bytes) -> int:
        return len(data) if self.claimed_bytes is None else self.claimed_bytes

    def _is_known(self, asked: Asked) -> bool:
        return asked.headers.get("authorization") == f"Bearer {TOKEN}"

    async def _resolve(self, asked: Asked, path: str, writer: asyncio.StreamWriter) -> None:
        if self.is_gated and not self._is_known(asked):
            status = 403 if "authorization" in asked.headers else 401
            return await replied(writer, status, b"{}", {"X-Error-Code": "GatedRepo"})
        data = self.files[path]
        if path in self.in_git:
            sent = bytes(len(data)) if self.faults.wrong_bytes else data
            return await replied(writer, 200, sent)
        digest = hashlib.sha256(data).hexdigest()
        if self.faults.moves:
            url = f"http://localhost:{self.port}/elsewhere/{digest}"
            return await replied(writer, 302, b"", {"Location": url})
        return await self.send_blob(asked, digest, writer)

    def _list(self, *, with_sizes: bool) -> bytes:
        siblings: list[dict[str, object]] = [{"rfilename": path} for path in self.files]
        if with_sizes and self.has_sizes:
            siblings = [
                {"rfilename": path, "size": self._told_bytes(data), "blobId": git_id(data)}
                | (
                    {}
                    if path in self.in_git
                    else {"lfs": _lfs("sha256", data, self._told_bytes(data))}
                )
                for path, data in self.files.items()
            ]
        told = {"id": REPOSITORY, "sha": REVISION, "siblings": siblings}
        return json.dumps(told | {"gated": "auto" if self.is_gated else False}).encode()

    async def _tree(self, query: str, writer: asyncio.StreamWriter) -> None:
        at = int(query.partition("cursor=")[2] or "0")
        entries = [
            {"type": "file", "path": path, "size": self._told_bytes(data), "oid": git_id(data)}
            | ({} if path in self.in_git else {"lfs": _lfs("oid", data, self._told_bytes(data))})
            for path, data in self.files.items()
        ]
        page = [{"type": "directory", "path": "d", "oid": "0"}, *entries[at : at + PAGE]]
        url = f"{self.endpoint}/api/models/{REPOSITORY}/tree/x?recursive=true&cursor={at + PAGE}"
        more = {"Link": f'<{url}>; rel="next"'} if at + PAGE < len(entries) else {}
        await replied(writer, 200, json.dumps(page).encode(), more)


def git_id(data: bytes) -> str:
    """As `git hash-object` names a file."""
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def _lfs(key: str, data: bytes, size: int) -> dict[str, object]:
    return {key: hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 133}


@asynccontextmanager
async def hub(faults: Faults | None = None) -> AsyncIterator[FakeHub]:
    """A hub for as long as the block lasts."""
    fake = FakeHub(faults or Faults())
    async with served(fake) as port:
        fake.port = port
        yield fake
