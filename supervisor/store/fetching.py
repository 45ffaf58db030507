"""Blobs that a pull needs: what of them is missing is downloaded, once for all who ask."""

from collections.abc import AsyncGenerator, Iterable, Sequence

from msgspec import Struct

from supervisor.store.blobs import check_room
from supervisor.store.digests import Digest
from supervisor.store.downloads import Downloads
from supervisor.store.own_store import OwnStore
from supervisor.store.progress import TELL_S, Progress
from supervisor.store.sources import Source, Wanted
from supervisor.store.threads import StoreThreads


class Sourced(Struct, frozen=True):
    """A blob, and where it comes from."""

    digest: Digest
    size_bytes: int
    source: Source


class Fetcher:
    """Fetches into one store."""

    def __init__(self, store: OwnStore, threads: StoreThreads, downloads: Downloads) -> None:
        self._store, self._threads, self._downloads = store, threads, downloads

    async def fetched(self, blobs: Sequence[Sourced]) -> AsyncGenerator[Progress, None]:
        """All of them are in the store once it ends; who calls holds them.

        Raises PullError, DigestMismatch, NoRoom, Unwritable.
        """
        missing = await self._missing(blobs)
        await self._check_room(missing)
        for blob in blobs:
            status, total = f"pulling {blob.digest.short}", blob.size_bytes
            if blob in missing:
                wanted = Wanted(blob.digest, total)
                async with self._downloads.joined(wanted, blob.source) as shared:
                    while not await shared.is_whole(within_s=TELL_S):
                        yield Progress(status, str(blob.digest), total, shared.completed_bytes)
            yield Progress(status, str(blob.digest), total, total)

    async def _missing(self, blobs: Iterable[Sourced]) -> tuple[Sourced, ...]:
        has = self._store.has_blob
        return tuple(
            [
                blob
                for blob in blobs
                if not await self._threads.run(has, blob.digest, size_bytes=blob.size_bytes)
            ]
        )

    async def _check_room(self, missing: Iterable[Sourced]) -> None:
        """Raises NoRoom. What an earlier pull left of them is on the disk already, and counts."""
        new = (one for one in missing if not self._downloads.is_under_way(one.digest))
        needed = [
            one.size_bytes - await self._threads.run(self._store.partial_bytes, one.digest)
            for one in new
        ]
        await self._threads.move(
            check_room, self._store.folder, sum(needed) + self._downloads.left_bytes
        )
