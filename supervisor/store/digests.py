"""SHA-256 digests as names of blobs. Pure."""

import re

from msgspec import Struct

from supervisor.errors import SupervisorError

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})", re.ASCII)


class BadDigest(SupervisorError):
    """A text that is no digest."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"{text[:80]!r} is no digest: sha256: and 64 hexadecimal digits are")


class Digest(Struct, frozen=True):
    """What a blob is known by."""

    hex: str

    def __str__(self) -> str:
        return f"sha256:{self.hex}"

    @property
    def file_name(self) -> str:
        """Of the blob."""
        return f"sha256-{self.hex}"

    @property
    def short(self) -> str:
        """The twelve digits that progress lines show."""
        return self.hex[:12]


def parse_digest(text: str) -> Digest:
    """The digest that `text`, with a colon or a dash, writes. Raises BadDigest."""
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise BadDigest(text)
    return Digest(match[1].lower())
