"""Who may do what at the public port: API keys held against the table of scopes. Pure.

Origin and Host come first (access.py): they keep web pages out, keys keep people out.
"""

import base64
import binascii
import math
from collections.abc import Iterator, Sequence
from enum import Enum

from msgspec import Struct

from proxy.admission.keys import KeyRing, Scope
from proxy.admission.scopes import is_management, scope_of
from proxy.errors import BadRequest

_BEARER, _BASIC = b"bearer ", b"basic "
_PAGES = "/upstream/"
"""Below it are the children's web chats, and what these ask for."""
_NEAR = (b"same-origin", b"none")
"""Sec-Fetch-Site of what a page of ours asks for, and of what a person types or bookmarked."""


class KeyRefused(BadRequest):
    """No key, or none that opens anything here. Which of both, a caller knows already."""

    status = 401
    code = "invalid_api_key"
    challenge = 'Bearer realm="inferenceosd"'

    def __init__(self, *, was_told: bool, is_page: bool = False) -> None:
        self.was_told = was_told
        if is_page:
            self.challenge = 'Basic realm="inferenceosd: any name, and an API key as password"'
        why = "this API key is not valid" if was_told else "an API key is needed"
        super().__init__(
            f"{why}; send one as Authorization: Bearer KEY or x-api-key: KEY"
            " (inferenceosctl key add NAME makes one)"
        )


class ScopeTooSmall(BadRequest):
    """A valid key that does not reach as far."""

    status = 403
    code = "insufficient_scope"

    def __init__(self, *, has: Scope, needs: Scope) -> None:
        self.has, self.needs = has, needs
        self.challenge = (
            f'Bearer realm="inferenceosd", error="insufficient_scope", scope="{needs.word}"'
        )
        super().__init__(f"this needs an API key of scope {needs.word}; yours is for {has.word}")


class ManagementClosed(BadRequest):
    """Models are not managed over HTTP here."""

    status = 403
    code = "management_closed"

    def __init__(self) -> None:
        super().__init__("models cannot be managed over HTTP here: server.manage is off")


class Management(Enum):
    """Who may manage models over HTTP."""

    OPEN = "open"
    """Whoever may call: with keys, those of scope `manage`."""
    KEY = "key"
    """Those with such a key, also where nothing else needs one."""
    OFF = "off"


class Caller(Struct, frozen=True):
    """Who is let in."""

    key_id: str | None
    """None where no key was needed."""
    is_known: bool
    """False for somebody who was let in to liveness alone."""
    until: float = math.inf
    """UTC seconds from which on the same key opens nothing any more."""


_ANYBODY = Caller(None, is_known=True)


class Gate(Struct, frozen=True):
    """The keys in force and where they are needed."""

    ring: KeyRing
    needs_key: bool
    """True where keys exist, and where the port is reached from elsewhere without --insecure."""
    management: Management = Management.OPEN
    has_pages: bool = False
    """True where web chats are served: there a browser may tell a key as a password."""

    def admit(
        self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], *, now: float
    ) -> Caller:
        """Who calls; `now` in UTC seconds. Raises KeyRefused, ScopeTooSmall, ManagementClosed."""
        manages = self.management is not Management.OPEN and is_management(method, path)
        if manages and self.management is Management.OFF:
            raise ManagementClosed
        if not self.needs_key and not manages:
            return _ANYBODY
        needs = scope_of(method, path)
        is_page = self.has_pages and path.startswith(_PAGES)
        tokens = [*_tokens(headers), *(_passwords(headers) if is_page else ())]
        keys = [self.ring.holder(token, now=now) for token in tokens]
        key = next(filter(None, keys), None)
        until = math.inf if key is None or key.expires_at is None else key.expires_at
        if needs is None:
            return Caller(key.key_id if key else None, is_known=key is not None, until=until)
        if key is None:
            raise KeyRefused(was_told=bool(tokens), is_page=is_page)
        if key.scope < needs:
            raise ScopeTooSmall(has=key.scope, needs=needs)
        return Caller(key.key_id, is_known=True, until=until)


OPEN_GATE = Gate(KeyRing(), needs_key=False)


def _tokens(headers: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """What may be a key, one per way of telling: clients that know both fill one with a dummy."""
    told: dict[bytes, str] = {}
    for name, value in headers:
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            told.setdefault(name, value[len(_BEARER) :].strip().decode("latin-1"))
        elif name == b"x-api-key":
            told.setdefault(name, value.strip().decode("latin-1"))
    return list(told.values())


def _passwords(headers: Sequence[tuple[bytes, bytes]]) -> Iterator[str]:
    """What a browser tells by HTTP Basic (RFC 7617), and not because another site asked it to.

    A browser adds a password to whatever any page asks of us, which a page cannot do with a key.
    """
    told = dict(reversed(headers))  # the first of each name
    if told.get(b"sec-fetch-site", _NEAR[0]) not in _NEAR:
        return
    value = told.get(b"authorization", b"")
    if value[: len(_BASIC)].lower() != _BASIC:
        return
    try:
        pair = base64.b64decode(value[len(_BASIC) :].strip(), validate=True)
    except binascii.Error:
        return
    yield pair.partition(b":")[2].decode("latin-1")
