"""Who may talk to the public port: Origin rules and the Host check, as Ollama has them. Pure."""

import re
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from msgspec import Struct

from proxy.errors import BadRequest

Headers = tuple[tuple[bytes, bytes], ...]

HOSTS = 64  # remembered: each request tells one, nearly always the same

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0")  # names to compare with, not to bind
_LOCAL_ORIGINS = tuple(
    f"{scheme}://{host}{port}"
    for scheme in ("http", "https")
    for host in _LOCAL_HOSTS
    for port in ("", ":*")
)  # fmt: skip
_APP_ORIGINS = ("app://*", "file://*", "tauri://*", "vscode-webview://*", "vscode-file://*")
_INTERNAL_SUFFIXES = (".localhost", ".local", ".internal")
_STAINLESS = (
    "arch", "async", "custom-poll-interval", "helper-method", "lang", "os", "package-version",
    "poll-helper", "retry-count", "runtime", "runtime-version", "timeout",
)  # fmt: skip
_ALLOWED_HEADERS = ",".join(
    ("Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "OpenAI-Beta",
     "X-Api-Key",
     *(f"x-stainless-{name}" for name in _STAINLESS))
)  # fmt: skip
_PREFLIGHT: Headers = (
    (b"access-control-allow-methods", b"GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"),
    (b"access-control-allow-headers", _ALLOWED_HEADERS.encode()),
    (b"access-control-max-age", b"43200"),
)


class Admitted(Struct, frozen=True):
    """The request goes on; its reply carries these headers."""

    headers: Headers = ()


_ADMITTED = Admitted()


class _Own(Enum):
    ADDRESS = "address"
    NAME = "name"


class Answered(Struct, frozen=True):
    """The request is answered here, without a body."""

    status: int
    headers: Headers = ()


class Refused(BadRequest):
    """Neither web pages of elsewhere nor their tricks are let in. Ollama gives no reason."""

    status = 403
    code = "refused"


class OriginRefused(Refused):
    """A web page of elsewhere calls."""

    code = "origin_refused"

    def __init__(self) -> None:
        super().__init__("web pages of this Origin may not call here; server.origins lets them in")


class HostRefused(Refused):
    """The caller was led here by a name that is none of this machine's."""

    code = "host_refused"

    def __init__(self) -> None:
        super().__init__(
            "the Host header holds no name of this machine; use localhost, its host name or"
            " its address"
        )


class Access:
    """The rules of one port."""

    def __init__(
        self,
        *,
        origins: Iterable[str],
        checks_host: bool,
        own_names: Iterable[str],
        own_addresses: Iterable[str],
    ) -> None:
        told = tuple(origins)
        self._any_origin = "*" in told
        self._origins = tuple(
            _pattern(origin) for origin in (*_LOCAL_ORIGINS, *_APP_ORIGINS, *told)
        )
        self._checks_host = checks_host
        self._names = frozenset(name.lower() for name in ("localhost", *own_names))
        self._addresses = frozenset(own_addresses)
        self._has_own_name = lru_cache(maxsize=HOSTS)(self._is_own)

    def judge(self, method: str, *, origin: str, host: str) -> Admitted | Answered:
        """Whether a request with these headers goes on, or is a preflight that is answered.

        Raises OriginRefused, then HostRefused.
        """
        headers: Headers = ()
        if origin and origin not in (f"http://{host}", f"https://{host}"):
            if not self._allows_origin(origin):
                raise OriginRefused
            headers = self._cors(origin)
            if method == "OPTIONS":
                return Answered(204, _preflight(headers))
        if self._checks_host:
            own = self._has_own_name(host)
            if own is None:
                raise HostRefused
            if own is _Own.NAME and method == "OPTIONS" and not headers:
                return Answered(204)
        return Admitted(headers) if headers else _ADMITTED

    def _is_own(self, host: str) -> "_Own | None":
        """As what a Host header names this machine; None where it does not."""
        name = _without_port(host)
        if self._is_own_address(name):
            return _Own.ADDRESS
        return _Own.NAME if self._is_own_name(name) else None

    def _allows_origin(self, origin: str) -> bool:
        return self._any_origin or any(pattern.fullmatch(origin) for pattern in self._origins)

    def _cors(self, origin: str) -> Headers:
        if self._any_origin:
            return ((b"access-control-allow-origin", b"*"),)
        return (
            (b"access-control-allow-origin", origin.encode("latin-1", "replace")),
            (b"vary", b"Origin"),
        )

    def _is_own_address(self, name: str) -> bool:
        address = _address(name)
        if address is None:
            return False
        near = address.is_loopback or address.is_private or address.is_unspecified
        return near or str(address) in self._addresses

    def _is_own_name(self, name: str) -> bool:
        lower = name.lower().rstrip(".")
        return not lower or lower in self._names or lower.endswith(_INTERNAL_SUFFIXES)


def _preflight(cors: Headers) -> Headers:
    """What a preflight is told besides the origin."""
    asked = (b"vary", b"Access-Control-Request-Method, Access-Control-Request-Headers")
    return (*cors, *_PREFLIGHT, asked)


def _pattern(origin: str) -> re.Pattern[str]:
    """One `*` stands for anything; behind a host's colon, for a port."""
    head, star, tail = origin.partition("*")
    is_port = head.endswith(":") and "//" in head and not tail
    some = r"\d{1,5}" if is_port else ".*"
    return re.compile(re.escape(head) + (some if star else "") + re.escape(tail), re.IGNORECASE)


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if host.count(":") == 1 else host
