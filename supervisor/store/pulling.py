"""Models pulled from a registry: what is missing of one is downloaded, then its manifest is put."""

import asyncio
from collections.abc import AsyncGenerator, Iterable

from supervisor.store.blobs import check_room
from supervisor.store.downloads import Downloads
from supervisor.store.manifest import Layer
from supervisor.store.names import StoreName
from supervisor.store.own_store import OwnStore
from supervisor.store.progress import TELL_S, Progress
from supervisor.store.registry import Registry, is_plain_http
from supervisor.store.sources import Pace, Wanted
from supervisor.store.threads import StoreThreads
from supervisor.store.web import Web


class Puller:
    """Pulls into one store. Its connections are opened with the first pull."""

    def __init__(
        self,
        store: OwnStore,
        threads: StoreThreads,
        tasks: asyncio.TaskGroup,
        *,
        pace: Pace,
    ) -> None:
        self._store, self._threads, self._pace = store, threads, pace
        self._downloads = Downloads(store.folder, threads, tasks, pace=pace)
        self._webs: dict[bool, Web] = {}

    async def aclose(self) -> None:
        """End the downloads under way, close all connections."""
        self._downloads.stop()
        for web in self._webs.values():
            await web.aclose()

    async def pull(self, name: StoreName, *, insecure: bool) -> AsyncGenerator[Progress, None]:
        """The model is in the store once it ends. Raises PullError, BadManifest, StoreError."""
        is_plain = is_plain_http(name, insecure=insecure)
        yield Progress("pulling manifest")
        registry = Registry(await self._web(is_plain=is_plain), name, is_plain=is_plain)
        fetched = await registry.manifest()
        layers = tuple({layer.digest: layer for layer in fetched.manifest.all_layers}.values())
        with self._store.hold(layer.digest for layer in layers):
            missing = await self._missing(layers)
            await self._check_room(missing)
            for layer in layers:
                async for line in self._pulled(layer, registry, is_missing=layer in missing):
                    yield line
            yield Progress("verifying sha256 digest")
            yield Progress("writing manifest")
            await self._threads.run(self._store.put_manifest, name, fetched.manifest, fetched.data)

    async def _pulled(
        self, layer: Layer, registry: Registry, *, is_missing: bool
    ) -> AsyncGenerator[Progress, None]:
        digest, total = layer.digest, layer.size_bytes
        status = f"pulling {digest.short}"
        if is_missing:
            wanted, source = Wanted(digest, total), registry.blob(digest)
            async with self._downloads.joined(wanted, source) as shared:
                while not await shared.is_whole(within_s=TELL_S):
                    yield Progress(status, str(digest), total, shared.completed_bytes)
        yield Progress(status, str(digest), total, total)

    async def _missing(self, layers: Iterable[Layer]) -> tuple[Layer, ...]:
        has = self._store.has_blob
        return tuple(
            [
                layer
                for layer in layers
                if not await self._threads.run(has, layer.digest, size_bytes=layer.size_bytes)
            ]
        )

    async def _check_room(self, missing: Iterable[Layer]) -> None:
        """Raises NoRoom. What an earlier pull left of them is on the disk already, and counts."""
        new = (one for one in missing if not self._downloads.is_under_way(one.digest))
        needed = [
            one.size_bytes - await self._threads.run(self._store.partial_bytes, one.digest)
            for one in new
        ]
        await self._threads.move(
            check_room, self._store.folder, sum(needed) + self._downloads.left_bytes
        )

    async def _web(self, *, is_plain: bool) -> Web:
        web = self._webs.get(is_plain)
        if web is None:
            # In a thread, since it reads every certificate that this machine trusts.
            made = await self._threads.move(Web, allows_plain=is_plain, stall_s=self._pace.stall_s)
            web = self._webs.setdefault(is_plain, made)
        return web
