"""Downloads under way, each shared by all who wait for the same blob, and ended with the last.

nobody ─ asked for → under way ─ whole, or failed → nobody: all who wait are told
under way ─ the last who waited left → ending ─ closed, what came is kept → nobody
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from supervisor.store.digests import Digest
from supervisor.store.download import Download
from supervisor.store.errors import StoreError
from supervisor.store.sources import Pace, Source, Wanted
from supervisor.store.threads import StoreThreads

log = structlog.get_logger(__name__)


class DownloadBroke(StoreError):
    """A bug of ours showed in a download."""

    def __init__(self, digest: Digest) -> None:
        self.digest = digest
        super().__init__(f"the download of {digest} met a bug; the daemon's log has the details")


class Shared:
    """A download and those who wait for it."""

    def __init__(self, download: Download, task: asyncio.Task[StoreError | None]) -> None:
        self._download, self.task = download, task
        self.waiting = 0

    @property
    def completed_bytes(self) -> int:
        """Of the blob."""
        return self._download.completed_bytes

    @property
    def left_bytes(self) -> int:
        """What is still to come."""
        return self._download.wanted.size_bytes - self.completed_bytes

    @property
    def is_done(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.task.done()

    async def is_whole(self, *, within_s: float) -> bool:
        """Wait; True once the blob is in the store. Raises what ended it otherwise."""
        done, _ = await asyncio.wait([self.task], timeout=within_s)
        error = self.task.result() if done and not self.task.cancelled() else None
        if error is not None:
            raise error
        return bool(done)


class Downloads:
    """All of them; their tasks are those of a group that outlives who asks."""

    def __init__(
        self, store: str, threads: StoreThreads, tasks: asyncio.TaskGroup, *, pace: Pace
    ) -> None:
        self._store, self._threads, self._tasks, self._pace = store, threads, tasks, pace
        self._running: dict[Digest, Shared] = {}

    def stop(self) -> None:
        """End all of them; what came is kept."""
        for shared in self._running.values():
            shared.task.cancel()

    @property
    def left_bytes(self) -> int:
        """What is still to come of all that are under way."""
        return sum(shared.left_bytes for shared in self._running.values())

    def is_under_way(self, digest: Digest) -> bool:
        """Whether somebody waits for that blob already."""
        return digest in self._running

    @asynccontextmanager
    async def joined(self, wanted: Wanted, source: Source) -> AsyncIterator[Shared]:
        """Within: somebody waits for that blob; it is asked of `source`, if nobody did yet."""
        shared = await self._under_way(wanted.digest) or self._begun(wanted, source)
        shared.waiting += 1
        try:
            yield shared
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                shared.task.cancel()
                await asyncio.wait([shared.task])
                if self._running.get(wanted.digest) is shared:
                    del self._running[wanted.digest]

    async def _under_way(self, digest: Digest) -> Shared | None:
        """One that can be joined; one that is ending is waited for, as it has the file open."""
        while (shared := self._running.get(digest)) is not None and not shared.is_done:
            if shared.waiting:
                return shared
            await asyncio.wait([shared.task])
        return None

    def _begun(self, wanted: Wanted, source: Source) -> Shared:
        download = Download(
            wanted, source, store=self._store, threads=self._threads, pace=self._pace
        )
        task = self._tasks.create_task(_outcome(download), name=f"download {wanted.digest.short}")
        shared = self._running[wanted.digest] = Shared(download, task)
        return shared


async def _outcome(download: Download) -> StoreError | None:
    """What ended it, None where it is whole. Never raises: its group is everybody's."""
    try:
        await download.run()
    except StoreError as exc:
        return exc
    except Exception:
        digest = download.wanted.digest
        log.exception("download.broke", digest=str(digest))
        return DownloadBroke(digest)
    return None
