"""A hub of Git repositories that speaks as Hugging Face's does: lists of files, and their bytes.

(huggingface.co/docs/hub/api; huggingface_hub, hf_api.py and file_download.py.)
"""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import quote, urljoin, urlsplit

import httpx
from msgspec import Struct
from msgspec.structs import replace

from supervisor.store.hub_files import (
    CANNOT_READ,
    HubFile,
    HubListing,
    TooManyFiles,
    Variant,
    read_repository,
    read_tree,
    variants,
)
from supervisor.store.hubs import Hub
from supervisor.store.names import StoreName
from supervisor.store.pull_errors import (
    Gated,
    NoModelThere,
    NoSuchRepository,
    PullError,
    RegistryOdd,
    RegistryRefused,
    TokenRefused,
    WrongBytes,
)
from supervisor.store.web import Answer, Web

ANSWER_S = 60.0  # for a list of files, or a small one
MAX_LIST_BYTES = 32 << 20  # of a repository of 100,000 files
MAX_PAGES = 100  # of such a list, 1000 files each
SMALL_BYTES = 16 << 20  # of a file in git itself; the hub takes no more than 10 MB of one
_NEXT = "next"


class HubRepository:
    """One repository."""

    def __init__(self, web: Web, hub: Hub, name: StoreName) -> None:
        self._web, self._hub = web, hub
        self.name = f"{name.namespace}/{name.model}"

    @property
    def host(self) -> str:
        """Whose it is."""
        return self._hub.host

    async def listing(self) -> HubListing:
        """Its files at the revision that is its newest. Raises PullError."""
        answer = await self._get(f"/api/models/{self.name}?blobs=true")
        if answer.status == 404:  # a mirror may have files alone
            return HubListing("main", await self._tree("main"))
        self._check(answer)
        try:
            listing = read_repository(answer.body)
        except CANNOT_READ as exc:
            raise RegistryOdd(host=self.host, reason="no list of files") from exc
        if listing.is_measured:
            return listing
        return replace(listing, files=await self._tree(listing.revision))

    def models(self, listing: HubListing) -> tuple[Variant, ...]:
        """What of it may be pulled. Raises NoModelThere, RegistryOdd."""
        try:
            offered = variants(listing.files)
        except TooManyFiles as exc:
            raise RegistryOdd(host=self.host, reason=str(exc)) from exc
        if not offered:
            raise NoModelThere(host=self.host, repository=self.name)
        return offered

    async def _tree(self, revision: str) -> tuple[HubFile, ...]:
        """The same files, page by page, from a hub that does not tell sizes at once."""
        path: str | None = f"/api/models/{self.name}/tree/{revision}?recursive=true"
        files: list[HubFile] = []
        for _ in range(MAX_PAGES):
            answer = await self._get(path or "")
            self._check(answer)
            try:
                files += read_tree(answer.body)
            except CANNOT_READ as exc:
                raise RegistryOdd(host=self.host, reason="no list of files") from exc
            path = self._next(answer)
            if path is None:
                return tuple(files)
        raise RegistryOdd(host=self.host, reason=f"a list of more than {MAX_PAGES} pages")

    def _next(self, answer: Answer) -> str | None:
        """The page after this one; only of the same hub: the token goes along."""
        links = httpx.Headers({"link": answer.headers.get("link", "")})
        url = httpx.Response(200, headers=links).links.get(_NEXT, {}).get("url", "")
        if not url:
            return None
        whole = urljoin(f"{self._hub.endpoint}/", url)
        if not whole.startswith(f"{self._hub.endpoint}/"):
            raise RegistryOdd(host=self.host, reason="a list that goes on at another host")
        return whole.removeprefix(self._hub.endpoint)

    def file(self, listing: HubListing, file: HubFile) -> "HubBlob":
        """Where that file comes from."""
        path = f"/{self.name}/resolve/{listing.revision}/{quote(file.path)}"
        return HubBlob(self, f"{self._hub.endpoint}{path}", is_gated=listing.is_gated)

    async def small(self, listing: HubListing, file: HubFile) -> bytes:
        """A file that lies in git itself, whole. Raises PullError, WrongBytes."""
        answer = await self._get(f"/{self.name}/resolve/{listing.revision}/{quote(file.path)}")
        self._check(answer, is_gated=listing.is_gated)
        if len(answer.body) != file.size_bytes or git_id(answer.body) != file.git_id:
            raise WrongBytes(host=self.host, path=file.path)
        return answer.body

    async def pieces(
        self, url: str, *, first: int, last: int, total_bytes: int, is_gated: bool
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Bytes of a file. A redirect to another host takes no token along. Raises PullError."""
        found = self._web.pieces(
            url, headers=self._headers(), first=first, last=last, total_bytes=total_bytes
        )
        try:
            async with aclosing(found) as pieces:
                async for piece in pieces:
                    yield piece
        except RegistryRefused as exc:
            if exc.host != (urlsplit(self._hub.endpoint).hostname or ""):
                raise  # where it leads to: no word on who may have it
            raise self._refusal(exc.status, is_gated=is_gated, told=exc.told) from exc

    async def _get(self, path: str) -> Answer:
        return await self._web.answer(
            f"{self._hub.endpoint}{path}",
            headers=self._headers(),
            most_bytes=MAX_LIST_BYTES,
            limit_s=ANSWER_S,
        )

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._hub.token}"} if self._hub.token else {}

    def _check(self, answer: Answer, *, is_gated: bool = False) -> None:
        """Raises PullError for an answer that is a refusal."""
        if answer.status == 200:
            return
        told = answer.headers.get("x-error-message", "")
        is_gated = is_gated or answer.headers.get("x-error-code") == "GatedRepo"
        raise self._refusal(answer.status, is_gated=is_gated, told=told)

    def _refusal(self, status: int, *, is_gated: bool, told: str) -> PullError:
        has_token = bool(self._hub.token)
        if status in (401, 403) and is_gated:
            return Gated(host=self.host, repository=self.name, has_token=has_token)
        if status == 404 or (status == 401 and not has_token):
            return NoSuchRepository(host=self.host, repository=self.name, has_token=has_token)
        if status in (401, 403) and has_token:
            return TokenRefused(host=self.host)
        return RegistryRefused(host=self.host, status=status, told=told)


class HubBlob(Struct, frozen=True):
    """One file of a repository, as a download's source."""

    repository: HubRepository
    url: str
    is_gated: bool

    @property
    def host(self) -> str:
        """Whose it is."""
        return self.repository.host

    def bytes_from(
        self, first: int, last: int, *, total_bytes: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """What supervisor.store.sources.Source gives."""
        return self.repository.pieces(
            self.url, first=first, last=last, total_bytes=total_bytes, is_gated=self.is_gated
        )


def git_id(data: bytes) -> str:
    """The name that git has for a file of these bytes, hex."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
