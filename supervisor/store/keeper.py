"""The daemon's own store as its callers see it: every change, and what must be known of it at once.

Models that others keep, in folders and stores, are read, copied and never changed.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from planners.model import ServedModel
from supervisor.errors import SupervisorError
from supervisor.kept_file import read_kept
from supervisor.store.blobs import Incoming, check_room
from supervisor.store.digests import Digest
from supervisor.store.errors import NameTaken, NotOurs, NotPushed, NotStored, StoreError
from supervisor.store.hubs import HUB, Hub
from supervisor.store.layout import manifest_path
from supervisor.store.making import Making
from supervisor.store.manifest import MAX_MANIFEST_BYTES, Manifest, read_manifest
from supervisor.store.names import HOST, BadStoreName, StoreName, parse_name
from supervisor.store.own_store import OwnStore
from supervisor.store.progress import Progress
from supervisor.store.recipes import Creation
from supervisor.store.sources import PACE, Pace
from supervisor.store.threads import StoreThreads

if TYPE_CHECKING:
    from supervisor.store.hub_reading import HubReader
    from supervisor.store.pulling import Puller

WRITE_BYTES = 1 << 20  # of an upload, written at once: a thread is asked for each
ROOM_BYTES = 64 << 20  # of an upload without a length, between two looks at the disk

log = structlog.get_logger(__name__)


class StoreKeeper:
    """The one writer of a store."""

    def __init__(
        self,
        folder: str,
        *,
        offered: Callable[[str], ServedModel | None],
        changed: Callable[[], Awaitable[object]],
        record: Callable[[str, StoreName, str], None] = lambda kind, name, reason: None,
        pace: Pace = PACE,
        hub: Hub = HUB,
    ) -> None:
        """`offered`: the model of a name, wherever it lies; `changed`: look at the store again.

        `record`: note an event of a model, with its reason; `pace`: other than the usual one;
        `hub`: where hf.co/ORG/REPO is.
        """
        self.folder = folder
        self._offered, self._changed, self._record = offered, changed, record
        self._store, self._threads = OwnStore(folder), StoreThreads()
        self._pace, self._hub = pace, hub
        self._tasks: asyncio.TaskGroup | None = None
        self._puller: Puller | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Within, the store may be changed; what a killed daemon left in it is cleared first."""
        async with asyncio.TaskGroup() as self._tasks:
            self._threads.opening = self._tasks.create_task(self._open(), name="store")
            try:
                yield
            finally:
                if self._puller is not None:
                    await self._puller.aclose()

    async def _open(self) -> None:
        """Whatever else is asked of the store's thread waits for this."""
        try:
            await self._threads.run(self._store.open, now=time.time())
        except (StoreError, OSError) as exc:
            self._tell_unusable(str(exc))

    def _tell_unusable(self, reason: str) -> None:
        log.error("store.unusable", folder=self.folder, reason=reason)

    # Blobs.

    async def has_blob(self, digest: Digest) -> bool:
        """Whether it is there, whole."""
        return await self._threads.run(self._store.has_blob, digest)

    async def take_blob(
        self, digest: Digest, parts: AsyncIterator[bytes], *, size_bytes: int | None
    ) -> bool:
        """Keep what comes, if it is what the digest says; False where it was there already.

        `size_bytes` as it was announced, None where it was not. Raises DigestMismatch, NoRoom,
        Unwritable, and whatever `parts` does; then nothing is kept.
        """
        if await self.has_blob(digest):
            return False
        await self._threads.move(check_room, self.folder, size_bytes or WRITE_BYTES)
        async with self._incoming() as incoming:
            looked_at = 0
            async for chunk in _in_pieces(parts, WRITE_BYTES):
                if size_bytes is None and incoming.n_bytes - looked_at >= ROOM_BYTES:
                    looked_at = incoming.n_bytes
                    await self._threads.move(check_room, self.folder, ROOM_BYTES)
                await self._threads.move(incoming.write, chunk)
            await self._threads.move(incoming.keep, digest)
        return True

    @asynccontextmanager
    async def _incoming(self) -> AsyncIterator[Incoming]:
        incoming = Incoming(self.folder)
        await self._threads.move(incoming.__enter__)
        try:
            yield incoming
        finally:
            await asyncio.shield(self._threads.move(incoming.__exit__, None, None, None))

    # Models.

    async def copy(self, source: str, destination: StoreName) -> None:
        """The model is there under another name too.

        Raises NotStored, NameTaken, NotStorable, NoRoom, Unwritable.
        """
        self._check_free(destination)
        own = await self._own(source)
        if own is not None:
            await self._threads.run(self._store.copy_manifest, own[0], destination)
            await self._changed()
        else:
            async for _ in self._made(Creation(destination, base=source)):
                pass
        self._record("model.copied", destination, f"from {source}")

    async def create(self, asked: Creation) -> AsyncGenerator[Progress, None]:
        """A model of others' layers, or of uploaded files; a base that is not there is pulled.

        Raises PullError, NotStored, NameTaken, BlobMissing, NotStorable, NoRoom, Unwritable.
        """
        self._check_free(asked.name)
        if asked.base is not None and not await self._has(asked.base):
            async with aclosing(self.pull(parse_name(asked.base), insecure=False)) as lines:
                async for line in lines:
                    if line.status != "success":
                        yield line
        async with aclosing(self._made(asked)) as made:
            async for line in made:
                yield line
        base = f"from {asked.base}" if asked.base else f"of {len(asked.files)} files"
        self._record("model.created", asked.name, base)
        yield Progress("success")

    async def pull(self, name: StoreName, *, insecure: bool) -> AsyncGenerator[Progress, None]:
        """The model from its registry, or what is missing of it.

        Raises NameTaken, PullError, BadManifest, DigestMismatch, NoRoom, Unwritable.
        """
        self._check_free(name)
        puller = await self._first_puller()
        try:
            async with aclosing(puller.pull(name, insecure=insecure)) as lines:
                async for line in lines:
                    yield line
        except SupervisorError as exc:
            self._record("pull.failed", name, str(exc))
            raise
        await self._changed()
        self._record("model.pulled", name, f"from {name.host}")
        yield Progress("success")

    async def reader(self, name: StoreName) -> "HubReader":
        """The files of a hub's repository, to be read and not pulled. Raises PullError."""
        return await (await self._first_puller()).reader(name)

    async def push(self, name: str, *, insecure: bool) -> AsyncGenerator[Progress, None]:
        """The registry that the name says has the model once it ends, to the byte.

        Raises NotStored, NotPushed, PullError, BadManifest, Unreadable.
        """
        yield Progress("retrieving manifest")
        served, at = self._offered(name), parse_name(name)
        if served is None:
            yield Progress("couldn't retrieve manifest")
            raise NotStored(name)
        if not served.store or at.host.lower() == HOST or self._hub.has(at):
            raise NotPushed(name, is_file=not served.store)
        path = manifest_path(served.store, parse_name(served.model_id))
        data = await self._threads.move(read_kept, Path(path), most_bytes=MAX_MANIFEST_BYTES)
        with self._store.hold(layer.digest for layer in read_manifest(data).all_layers):
            puller = await self._first_puller()
            work = puller.push(at, data, store=served.store, insecure=insecure)
            async with aclosing(work) as lines:
                async for line in lines:
                    yield line
        yield Progress("success")

    async def _first_puller(self) -> "Puller":
        if self._puller is None:
            assert self._tasks is not None, "the store is not open"
            made = await self._threads.move(
                _puller, self._store, self._threads, self._tasks, self._pace, self._hub
            )
            self._puller = self._puller or made
        return self._puller

    async def delete(self, name: str) -> None:
        """The model is gone, and what no other needs of it.

        Raises NotStored, NotOurs, Unwritable.
        """
        found = await self._own_name(name)
        served = self._offered(name)
        if found is None and served is not None:
            if served.store != self.folder:
                raise NotOurs(name, path=served.path, store=served.store)
            found = parse_name(served.model_id)  # by one of its aliases
        if found is None or not await self._threads.run(self._store.remove, found):
            raise NotStored(name)
        self._record("model.deleted", found, "asked for")
        await self._changed()

    async def _made(self, asked: Creation) -> AsyncGenerator[Progress, None]:
        with Making(self._store, self._threads) as making:
            async with aclosing(self._gathered(making, asked)) as gathered:
                async for line in gathered:
                    yield line
            manifest = await making.manifest()
            yield Progress("writing manifest")
            await self._threads.run(self._store.put_manifest, asked.name, manifest)
        await self._changed()

    async def _gathered(self, making: Making, asked: Creation) -> AsyncGenerator[Progress, None]:
        await making.need((*asked.files, *asked.adapters))
        if asked.base is not None:
            own = await self._own(asked.base)
            if own is not None:
                await making.take_own(*own)
            elif (model := self._offered(asked.base)) is not None:
                async with aclosing(making.take(model)) as taken:
                    async for line in taken:
                        yield line
            else:
                raise NotStored(asked.base)
        if asked.files:
            yield Progress("parsing GGUF")
        for digest in asked.files:
            await making.add_file(digest)
        for digest in asked.adapters:
            await making.add_file(digest, as_adapter=True)
        async for line in making.dress(asked):
            yield line

    async def _own(self, name: str) -> tuple[StoreName, Manifest] | None:
        """The store's own model of that name, or of which it is an alias."""
        served = self._offered(name)
        is_alias = served is not None and served.store == self.folder
        own = await self._own_name(served.model_id if served and is_alias else name)
        manifest = await self._threads.run(self._store.manifest, own) if own else None
        return (own, manifest) if own is not None and manifest is not None else None

    async def _has(self, name: str) -> bool:
        """Whether a model of that name is there, wherever."""
        return self._offered(name) is not None or await self._own_name(name) is not None

    async def _own_name(self, name: str) -> StoreName | None:
        """The name, where the store has a model of it."""
        try:
            parsed = parse_name(name)
        except BadStoreName:
            return None
        return parsed if await self._threads.run(self._store.has, parsed) else None

    def _check_free(self, name: StoreName) -> None:
        """Raises NameTaken where the store's model would stand behind another."""
        served = self._offered(name.short)
        if served is not None and served.store != self.folder and not served.is_elsewhere:
            raise NameTaken(name.short, path=served.path, store=served.store)


def _puller(
    store: OwnStore, threads: StoreThreads, tasks: asyncio.TaskGroup, pace: Pace, hub: Hub
) -> "Puller":
    """Late, and in a thread: an HTTP client takes a while to import."""
    from supervisor.store.pulling import Puller

    return Puller(store, threads, tasks, pace=pace, hub=hub)


async def _in_pieces(parts: AsyncIterator[bytes], least_bytes: int) -> AsyncIterator[bytes]:
    """The same bytes in fewer pieces."""
    gathered: list[bytes] = []
    n_bytes = 0
    async for part in parts:
        gathered.append(part)
        n_bytes += len(part)
        if n_bytes >= least_bytes:
            yield b"".join(gathered)
            gathered, n_bytes = [], 0
    if n_bytes:
        yield b"".join(gathered)
