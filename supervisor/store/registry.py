"""A registry that speaks as Ollama's does: manifests and blobs by name, and tokens.

(Ollama, server/images.go and server/download.go; the Docker registry's HTTP API V2.)
"""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from ipaddress import ip_address
from types import MappingProxyType
from urllib.parse import SplitResult, quote, urlencode, urljoin, urlsplit

import msgspec

from supervisor.store.digests import Digest
from supervisor.store.manifest import MANIFEST_TYPE, MAX_MANIFEST_BYTES, Manifest, read_manifest
from supervisor.store.names import StoreName
from supervisor.store.pull_errors import (
    InsecureProtocol,
    NoSuchModel,
    RegistryOdd,
    RegistryRefused,
)
from supervisor.store.web import Answer, Web

ANSWER_S = 60.0  # for a manifest or a token
PIECE_S = 600.0  # for a piece of a blob: 16 MiB at 30 kB/s
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class FetchedManifest(msgspec.Struct, frozen=True):
    """A manifest as it came."""

    manifest: Manifest
    data: bytes


class Registry:
    """One model's registry."""

    def __init__(self, web: Web, name: StoreName, *, is_plain: bool) -> None:
        self._web, self._name, self._is_plain = web, name, is_plain
        self.host = name.host
        self._base = f"http{'' if is_plain else 's'}://{name.host}/v2/{name.namespace}/{name.model}"
        self._token = ""

    async def manifest(self) -> FetchedManifest:
        """The model's manifest. Raises NoSuchModel, PullError, BadManifest."""
        url = f"{self._base}/manifests/{quote(self._name.tag)}"
        answer = await self._answer(url, headers={"accept": MANIFEST_TYPE})
        if answer.status == 404:
            raise NoSuchModel(self._name.short, host=self.host)
        if answer.status != 200:
            raise self._refused(answer)
        return FetchedManifest(read_manifest(answer.body), answer.body)

    def blob(self, digest: Digest) -> "RegistryBlob":
        """Where that blob comes from."""
        return RegistryBlob(self, f"{self._base}/blobs/{digest}")

    async def pieces(
        self, url: str, *, first: int, last: int, total_bytes: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Bytes of a blob; a token is asked for once. Raises PullError."""
        for is_last in (False, True):
            try:
                headers = self._headers()
                found = self._web.pieces(
                    url, headers=headers, first=first, last=last, total_bytes=total_bytes
                )
                async with aclosing(found) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except RegistryRefused as exc:
                if exc.status != 401 or is_last:
                    raise
            if headers == self._headers():  # else another part has a new token already
                await self._authorize(await self._challenge(url))

    # What is sent to it.

    async def has_blob(self, digest: Digest) -> bool:
        """Whether the registry has it for this model already. Raises PullError."""
        answer = await self._answer(f"{self._base}/blobs/{digest}", method="HEAD")
        if answer.status not in (200, 404):
            raise self._refused(answer)
        return answer.status == 200

    async def upload_begun(self) -> str:
        """Where the next piece of a blob goes. Raises PullError."""
        url = f"{self._base}/blobs/uploads/"
        return self._place(await self._answer(url, method="POST", content=b""))

    async def piece_sent(self, at: str, piece: bytes, *, first: int) -> str:
        """Where the piece after this one goes. Raises PullError."""
        headers = {
            "content-type": "application/octet-stream",
            "content-range": f"{first}-{first + len(piece) - 1}",
        }
        answer = await self._answer(
            at, method="PATCH", headers=headers, content=piece, limit_s=PIECE_S
        )
        return self._place(answer)

    async def upload_ended(self, at: str, digest: Digest) -> None:
        """It is a blob of the registry. Raises PullError."""
        url = urlsplit(at)
        query = "&".join(filter(None, (url.query, urlencode({"digest": str(digest)}))))
        at = url._replace(query=query).geturl()
        answer = await self._answer(at, method="PUT", content=b"")
        if answer.status not in (201, 204):
            raise self._refused(answer)

    async def manifest_put(self, data: bytes) -> None:
        """The model is there, of blobs that are. Raises PullError."""
        url = f"{self._base}/manifests/{quote(self._name.tag)}"
        headers = {"content-type": MANIFEST_TYPE}
        answer = await self._answer(url, method="PUT", headers=headers, content=data)
        if answer.status not in (200, 201, 202):
            raise self._refused(answer)

    def _place(self, answer: Answer) -> str:
        """Where an answer says that the upload goes on; at the registry itself alone."""
        if answer.status not in (201, 202):
            raise self._refused(answer)
        at = urljoin(f"{self._base}/", answer.headers.get("location", ""))
        mine, theirs = urlsplit(self._base), urlsplit(at)
        if (theirs.scheme, theirs.netloc) != (mine.scheme, mine.netloc):
            raise RegistryOdd(host=self.host, reason="us with a blob to another host")
        return at

    def _refused(self, answer: Answer) -> RegistryRefused:
        told = answer.body.decode(errors="replace").strip()
        return RegistryRefused(host=self.host, status=answer.status, told=told)

    # How it is asked.

    async def _answer(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] = MappingProxyType({}),
        content: bytes | None = None,
        limit_s: float = ANSWER_S,
    ) -> Answer:
        """What it answers; a token is asked for once. Raises PullError."""
        for is_last in (False, True):
            answer = await self._web.answer(
                url,
                headers={**headers, **self._headers()},
                most_bytes=MAX_MANIFEST_BYTES,
                limit_s=limit_s,
                method=method,
                content=content,
            )
            if answer.status != 401 or is_last:
                break
            await self._authorize(answer.headers.get("www-authenticate", ""))
        return answer

    async def _challenge(self, url: str) -> str:
        """What a refusal asks for; the token may have run out in the middle of a long pull."""
        answer = await self._web.answer(
            url,
            headers={"range": "bytes=0-0"},
            most_bytes=MAX_MANIFEST_BYTES,
            limit_s=ANSWER_S,
        )
        return answer.headers.get("www-authenticate", "")

    def _headers(self) -> dict[str, str]:
        return {"authorization": self._token} if self._token else {}

    async def _authorize(self, challenge: str) -> None:
        """Get a token where the challenge says. Raises PullError."""
        scheme, _, rest = challenge.partition(" ")
        told = dict(_PARAMETER.findall(rest))
        realm = self._realm(told.pop("realm", ""))
        if scheme.lower() != "bearer" or not realm.netloc:
            raise RegistryRefused(host=self.host, status=401, told="unauthorized")
        is_same = realm.hostname == urlsplit(self._base).hostname
        if not is_same or (realm.scheme != "https" and not self._is_plain):
            where = f"{realm.scheme}://{realm.netloc}"
            reason = f"us for a token to {where}, which is another's"
            raise RegistryOdd(host=self.host, reason=reason)
        query = "&".join(filter(None, (realm.query, urlencode(_asked(told)))))
        answer = await self._web.answer(
            realm._replace(query=query).geturl(),
            headers={"accept": "application/json"},
            most_bytes=MAX_MANIFEST_BYTES,
            limit_s=ANSWER_S,
        )
        if answer.status != 200:
            raise RegistryRefused(host=self.host, status=answer.status, told="no token is given")
        try:
            token = msgspec.json.decode(answer.body, type=_Token)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise RegistryOdd(host=self.host, reason="no token where one was asked for") from exc
        self._token = f"Bearer {token.token or token.access_token}"
        if not (self._token.isascii() and self._token.isprintable()):
            self._token = ""
            raise RegistryOdd(host=self.host, reason="a token that no header can hold")

    def _realm(self, url: str) -> SplitResult:
        """Where a challenge says that tokens are. Raises RegistryOdd."""
        try:
            return urlsplit(url)
        except ValueError as exc:
            raise RegistryOdd(host=self.host, reason="no address to get a token at") from exc


class RegistryBlob(msgspec.Struct, frozen=True):
    """One blob of a registry, as a download's source."""

    registry: Registry
    url: str

    @property
    def host(self) -> str:
        """Whose it is."""
        return self.registry.host

    def bytes_from(
        self, first: int, last: int, *, total_bytes: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """What supervisor.store.web.Source gives."""
        return self.registry.pieces(self.url, first=first, last=last, total_bytes=total_bytes)


def _asked(told: dict[str, str]) -> list[tuple[str, str]]:
    """The challenge's service, and each of its scopes."""
    scopes = [("scope", scope) for scope in told.get("scope", "").split()]
    return [*([("service", told["service"])] if "service" in told else []), *scopes]


def is_plain_http(name: StoreName, *, insecure: bool) -> bool:
    """Whether the registry is spoken to without TLS. Raises InsecureProtocol.

    With `insecure` those of this machine and its network are. Of others clients say it, too, whose
    certificates are in order.
    """
    if name.is_plain_http and not insecure:
        raise InsecureProtocol
    return name.is_plain_http or (insecure and _is_near(name.host))


def _is_near(host: str) -> bool:
    name = host.partition(":")[0].lower()
    try:
        return ip_address(name).is_private
    except ValueError:
        return name == "localhost" or name.endswith((".localhost", ".local", ".internal"))
