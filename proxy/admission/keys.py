"""API keys: what they allow, how one is made, and whose a token is. Pure: time and chance are told.

Only hashes are kept. A key is 256 random bits, so nobody finds one from its hash by trying: a plain
SHA-256 does, where a password, which people choose, would need a slow and salted hash.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from enum import IntEnum

from msgspec import Struct

PREFIX = "sk-ios"  # some clients refuse keys without sk-; the rest is for scanners of secrets
ID_BYTES = 4
SECRET_BYTES = 32
MAX_TOKEN = 256  # ours have 60 characters

_TOKEN = re.compile(rf"{PREFIX}-([0-9a-f]{{{2 * ID_BYTES}}})-[A-Za-z0-9_-]{{43}}")
_NOBODY = bytes(32)  # compared with where no key has the id, so that it takes as long


class Scope(IntEnum):
    """What a key allows; each holds those before it."""

    INFER = 1
    """Inference, and lists of what there is."""
    MANAGE = 2
    """Models come and go: pull, delete, create, copy; and metrics."""
    ADMIN = 3
    """All that is served."""

    @property
    def word(self) -> str:
        """As it is written: "infer", "manage", "admin"."""
        return self.name.lower()


SCOPES = {scope.word: scope for scope in Scope}


class ApiKey(Struct, frozen=True):
    """One key as it is kept."""

    key_id: str
    name: str
    scope: Scope
    sha256: bytes
    """Of the whole token, 32 bytes."""
    created_at: float
    """UTC seconds, as is the next."""
    expires_at: float | None
    """None for one that stays."""

    def has_expired(self, now: float) -> bool:
        """True once it opens nothing any more; `now` in UTC seconds."""
        return self.expires_at is not None and now >= self.expires_at


def token_of(chance: bytes) -> tuple[str, str]:
    """A key's id and token, of ID_BYTES + SECRET_BYTES random bytes."""
    key_id, secret = chance[:ID_BYTES].hex(), chance[ID_BYTES:]
    text = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return key_id, f"{PREFIX}-{key_id}-{text}"


def digest_of(token: str) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


class KeyRing:
    """The keys in force."""

    __slots__ = ("_by_id",)

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._by_id = {key.key_id: key for key in keys}

    def __len__(self) -> int:
        return len(self._by_id)

    def holder(self, token: str, *, now: float) -> ApiKey | None:
        """The key that `token` is; None for any other text, and for one that has expired.

        The id is no secret, so it is looked up; the rest is compared in constant time.
        """
        told = _TOKEN.fullmatch(token) if len(token) <= MAX_TOKEN else None
        key = self._by_id.get(told[1]) if told else None
        matches = hmac.compare_digest(digest_of(token[:MAX_TOKEN]), key.sha256 if key else _NOBODY)
        return key if key is not None and matches and not key.has_expired(now) else None
