"""Files of other machines over HTTP: whole small ones, and large ones by ranges.

Proxies are the environment's (HTTPS_PROXY and its kin), as httpx reads them. Imported by who pulls,
and not before: httpx takes its time.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import httpx
from msgspec import Struct

from supervisor.store.pull_errors import (
    MAX_TOLD,
    InsecureProtocol,
    PullError,
    RangesRefused,
    RegistryOdd,
    RegistryRefused,
    Stalled,
    Unreachable,
)
from supervisor.store.sources import LEAST_BYTES_PER_S

CONNECT_S = 20.0
MAX_REDIRECTS = 20  # as httpx
MAX_ASIDE_BYTES = 64 << 10  # read of a redirect's own body, so that its connection may serve again
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)


class Answer(Struct, frozen=True):
    """A small reply, whole."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Web:
    """Connections to other machines."""

    def __init__(self, *, allows_plain: bool, stall_s: float, head_s: float) -> None:
        """`allows_plain`: addresses, and those that they lead to, may be without TLS.

        `stall_s`: the longest silence; `head_s`: until a reply begins, however it trickles.
        """
        self._allows_plain, self._stall_s, self._head_s = allows_plain, stall_s, head_s
        # Its own limit ends a handshake: httpcore leaks the socket of one that is cancelled.
        connect_s = min(CONNECT_S, head_s / 2)
        limits = httpx.Timeout(connect_s, read=stall_s, write=stall_s, pool=None)
        self._client = httpx.AsyncClient(
            timeout=limits,
            follow_redirects=False,  # it would read, and unpack, all that comes along
            headers={"user-agent": "inferenceosd"},
            limits=httpx.Limits(max_keepalive_connections=16),
            event_hooks={"request": [self._check_scheme]},
        )  # fmt: skip

    async def _check_scheme(self, request: httpx.Request) -> None:
        """Before each step of a chain of redirects. Raises InsecureProtocol."""
        if request.url.scheme != "https" and not self._allows_plain:
            raise InsecureProtocol

    async def aclose(self) -> None:
        """Close them."""
        await self._client.aclose()

    async def answer(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        most_bytes: int,
        limit_s: float,
        method: str = "GET",
        content: bytes | None = None,
    ) -> Answer:
        """A small reply of any status. Raises PullError."""
        host = _host(url)
        told = {**headers, "accept-encoding": "identity"}
        try:
            async with (
                asyncio.timeout(limit_s),
                self._opened(url, told, method=method, content=content) as reply,
            ):
                body = bytearray()
                async for chunk in reply.aiter_raw():
                    body += chunk
                    if len(body) > most_bytes:
                        raise RegistryOdd(host=host, reason=f"more than {most_bytes} bytes")
                return Answer(reply.status_code, bytes(body), dict(reply.headers))
        except TimeoutError as exc:
            raise Unreachable(host=host, why=f"no answer within {limit_s:g} s") from exc

    @asynccontextmanager
    async def _opened(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        content: bytes | None = None,
    ) -> AsyncIterator[httpx.Response]:
        host = _host(url)
        try:
            async with AsyncExitStack() as held:
                asked = self._client.build_request(
                    method, url, headers=dict(headers), content=content
                )
                yield await self._begun(self._followed(asked, held), host)
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, UnicodeError) as exc:
            # UnicodeError: idna's, of a host that it is led to.
            raise Unreachable(host=host, why=str(exc) or type(exc).__name__) from exc

    async def _followed(self, request: httpx.Request, held: AsyncExitStack) -> httpx.Response:
        """The reply at the end of a chain of redirects; `held` closes it. Raises RegistryOdd."""
        for _ in range(MAX_REDIRECTS + 1):
            reply = await self._client.send(request, stream=True)
            held.push_async_callback(reply.aclose)
            if reply.next_request is None:
                return reply
            await _leave(reply)
            request = reply.next_request
        raise RegistryOdd(host=request.url.host, reason="one redirect after another")

    async def _begun(self, reply: Awaitable[httpx.Response], host: str) -> httpx.Response:
        """The reply once its head is here. Raises Unreachable where that takes for ever."""
        try:
            async with asyncio.timeout(self._head_s):
                return await reply
        except TimeoutError as exc:
            raise Unreachable(host=host, why=f"no answer within {self._head_s:g} s") from exc

    async def pieces(
        self, url: str, *, headers: Mapping[str, str], first: int, last: int, total_bytes: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """What Source.bytes_from gives, of the file at `url`. Raises Stalled, PullError."""
        asked = {**headers, "range": f"bytes={first}-{last}", "accept-encoding": "identity"}
        async with self._opened(url, asked) as reply:
            if reply.is_error and reply.status_code != 416:
                raise await self._refused(reply)
            at = _place(reply, first=first, last=last, total_bytes=total_bytes)
            watch = _Watch(_host(url), limit_s=self._stall_s)
            async for chunk in reply.aiter_raw():
                watch.came(len(chunk))
                yield at, chunk
                at += len(chunk)

    async def _refused(self, reply: httpx.Response) -> PullError:
        """The error that a reply is, with what it says as far as that comes soon."""
        told = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stall_s):
                async for chunk in reply.aiter_raw():
                    told += chunk
                    if len(told) > MAX_TOLD:
                        break
        text = told.decode(errors="replace").strip()
        return RegistryRefused(host=reply.url.host, status=reply.status_code, told=text)


class _Watch:
    """Tells a connection on which next to nothing comes from one that is merely slow."""

    def __init__(self, host: str, *, limit_s: float) -> None:
        self._host, self._limit_s = host, limit_s
        self._clock = asyncio.get_running_loop().time
        self._since_s, self._n_bytes = self._clock(), 0

    def came(self, n_bytes: int) -> None:
        """Raises Stalled where too little came in the last while."""
        self._n_bytes += n_bytes
        if self._clock() - self._since_s < self._limit_s:
            return
        if self._n_bytes < LEAST_BYTES_PER_S * self._limit_s:
            raise Stalled(host=self._host, limit_s=self._limit_s)
        self._since_s, self._n_bytes = self._clock(), 0


async def _leave(reply: httpx.Response) -> None:
    """Done with a reply whose body says nothing: as it lies, and no more than a little of it."""
    n_bytes = 0
    async for chunk in reply.aiter_raw():
        n_bytes += len(chunk)
        if n_bytes > MAX_ASIDE_BYTES:
            break
    await reply.aclose()


def _host(url: str) -> str:
    """Whose an address is. Raises Unreachable for one that leads nowhere."""
    try:
        return httpx.URL(url).host
    except (httpx.InvalidURL, UnicodeError) as exc:
        raise Unreachable(host=url[:MAX_TOLD], why=str(exc)) from exc


def _place(reply: httpx.Response, *, first: int, last: int, total_bytes: int) -> int:
    """Which byte a reply begins with. Raises PullError for one without the bytes."""
    host = reply.url.host
    is_whole = reply.status_code == 200
    if reply.status_code == 416 or (is_whole and last != total_bytes - 1):
        raise RangesRefused(host=host)
    if is_whole:
        return 0
    if reply.status_code != 206:
        raise RegistryOdd(host=host, reason=f"HTTP {reply.status_code} where bytes were asked for")
    match = _RANGE.fullmatch(reply.headers.get("content-range", ""))
    if match is None or int(match[1]) != first or int(match[2]) > last:
        raise RegistryOdd(host=host, reason="other bytes than were asked for")
    if match[3] not in ("*", str(total_bytes)):
        reason = f"a file of {match[3]} bytes instead of {total_bytes}"
        raise RegistryOdd(host=host, reason=reason)
    return first
