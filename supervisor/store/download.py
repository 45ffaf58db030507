"""One blob on its way here: by ranges over several connections, resumed, verified, moved in.

    part ─ cut, slow, refused for now → the same part from where it is, after a pause
      any ─ ranges are not offered → the whole file over one connection
      all parts there ─ digest right → a blob;  wrong → nothing remains
Knows nothing of registries: a source gives bytes from a place on.
"""

import asyncio
from contextlib import aclosing, suppress

from supervisor.store.blobs import check_room
from supervisor.store.errors import StoreError
from supervisor.store.partial import Part, Partial
from supervisor.store.pull_errors import (
    RangesRefused,
    RegistryOdd,
    RegistryRefused,
    Stalled,
    Unreachable,
)
from supervisor.store.sources import LEAST_BYTES_PER_S, Pace, Source, Wanted
from supervisor.store.threads import StoreThreads

WRITE_BYTES = 1 << 20  # at a time: a thread is asked for each
NOTE_S = 1.0  # cadence of notes: what a kill costs


class Download:
    """One blob. `run` is its task; others look at `completed_bytes`."""

    def __init__(
        self, wanted: Wanted, source: Source, *, store: str, threads: StoreThreads, pace: Pace
    ) -> None:
        self.wanted = wanted
        self._source, self._store, self._threads, self._pace = source, store, threads, pace
        self._partial = Partial(
            store, wanted.digest, size_bytes=wanted.size_bytes, part_bytes=pace.part_bytes
        )

    @property
    def completed_bytes(self) -> int:
        """Of its size; what an earlier pull left counts."""
        return self._partial.done_bytes

    async def run(self) -> None:
        """Until it is a blob. Raises PullError, DigestMismatch, NoRoom, Unwritable."""
        await self._threads.move(self._partial.open)
        try:
            left_bytes = self.wanted.size_bytes - self.completed_bytes
            await self._threads.move(check_room, self._store, left_bytes)
            await self._fetch()
            await self._threads.move(self._partial.keep, _untold)
        finally:
            await asyncio.shield(self._threads.move(self._partial.close))

    async def _fetch(self) -> None:
        """All parts; as one, where the source does not send parts."""
        try:
            await self._fetch_parts()
        except RangesRefused:
            await self._threads.move(self._partial.as_one)
            await self._fetch_parts()

    async def _fetch_parts(self) -> None:
        waiting = [part for part in reversed(self._partial.parts) if not part.is_done]
        try:
            async with asyncio.TaskGroup() as tasks:
                noting = tasks.create_task(self._note_now_and_then())
                workers = [
                    tasks.create_task(self._work(waiting))
                    for _ in range(min(self._pace.connections, len(waiting)))
                ]
                await asyncio.gather(*workers)
                noting.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None  # the others were ended by it
        finally:
            with suppress(StoreError, OSError):  # it was said already
                await asyncio.shield(self._threads.move(self._partial.note))

    async def _note_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(NOTE_S)
            await self._threads.move(self._partial.note)

    async def _work(self, waiting: list[Part]) -> None:
        while waiting:
            await self._fetch_part(waiting.pop())

    async def _fetch_part(self, part: Part) -> None:
        tries, before = 0, part.done
        while not part.is_done:
            try:
                await self._fetch_on(part)
            except (Unreachable, Stalled, RegistryRefused) as exc:
                came_on = part.done - before >= LEAST_BYTES_PER_S * self._pace.stall_s
                tries = 1 if came_on else tries + 1
                before = part.done
                may_pass = not isinstance(exc, RegistryRefused) or exc.may_pass
                if not may_pass or tries >= self._pace.tries:
                    raise
                await asyncio.sleep(self._pace.pause_s * 2 ** (tries - 1))

    async def _fetch_on(self, part: Part) -> None:
        """A part from where it is, over one connection. Raises PullError."""
        buffer = bytearray()
        last = part.first + part.n_bytes - 1
        total_bytes = self.wanted.size_bytes
        found = self._source.bytes_from(part.at, last, total_bytes=total_bytes)
        try:
            async with aclosing(found) as pieces:
                async for at, piece in pieces:
                    if at != part.at + len(buffer):
                        self._begin_anew(part, buffer, at)
                    buffer += piece
                    if part.at + len(buffer) > last + 1:
                        reason = "more bytes than were asked for"
                        raise RegistryOdd(host=self._source.host, reason=reason)
                    if len(buffer) >= WRITE_BYTES:
                        await self._write(part, buffer)
        finally:
            if buffer:
                await asyncio.shield(self._write(part, buffer))
        if not part.is_done:
            raise Unreachable(host=self._source.host, why="it broke off in the middle of a file")

    def _begin_anew(self, part: Part, buffer: bytearray, at: int) -> None:
        """The source sends the whole file, though a range was asked for. Raises RangesRefused."""
        if at != 0 or part.first != 0 or part.n_bytes != self.wanted.size_bytes:
            raise RangesRefused(host=self._source.host)
        part.done = 0
        buffer.clear()

    async def _write(self, part: Part, buffer: bytearray) -> None:
        data = bytes(buffer)
        buffer.clear()
        await self._threads.move(self._partial.write, part, data)


def _untold(_: int) -> None:
    """Nobody is shown how far the digest is."""
