"""Where the bytes of a download come from, and how hard it tries to get them."""

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct

from supervisor.store.digests import Digest

LEAST_BYTES_PER_S = 1024  # of one connection, over Pace.stall_s


class Wanted(Struct, frozen=True):
    """A file by what it holds."""

    digest: Digest
    size_bytes: int


class Pace(Struct, frozen=True):
    """How hard a download tries. The tests' are shorter."""

    connections: int = 8
    """At once, for one file."""
    part_bytes: int = 64 << 20
    stall_s: float = 30.0  # as Ollama
    head_s: float = 90.0
    """Until a reply begins, over all redirects: what trickles byte by byte never stalls."""
    tries: int = 6  # as Ollama; of one part, with next to nothing in between
    pause_s: float = 1.0
    """Before the second try; doubled before each further one."""


PACE = Pace()


class Source(Protocol):
    """Where a file's bytes come from."""

    @property
    def host(self) -> str:
        """Whose they are."""

    def bytes_from(
        self, first: int, last: int, *, total_bytes: int
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """From the byte `first` on, each piece with its place; from 0 where it is sent whole.

        Raises PullError.
        """
