"""Models pulled: what is missing of one is downloaded, then its manifest is put."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from supervisor.store.downloads import Downloads
from supervisor.store.fetching import Fetcher, Sourced
from supervisor.store.hub_pulling import HubPull
from supervisor.store.hub_reading import HubReader
from supervisor.store.hub_repository import HubRepository
from supervisor.store.hubs import Hub
from supervisor.store.manifest import read_manifest
from supervisor.store.names import StoreName
from supervisor.store.own_store import OwnStore
from supervisor.store.progress import Progress
from supervisor.store.pull_errors import NoRepository
from supervisor.store.pushing import Pushed, pushed
from supervisor.store.registry import Registry, is_plain_http
from supervisor.store.sources import Pace
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
        hub: Hub,
    ) -> None:
        self._store, self._threads, self._pace, self._hub = store, threads, pace, hub
        self._downloads = Downloads(store.folder, threads, tasks, pace=pace)
        self._fetcher = Fetcher(store, threads, self._downloads)
        self._webs: dict[bool, Web] = {}

    async def aclose(self) -> None:
        """End the downloads under way, close all connections."""
        self._downloads.stop()
        for web in self._webs.values():
            await web.aclose()

    async def pull(self, name: StoreName, *, insecure: bool) -> AsyncGenerator[Progress, None]:
        """The model is in the store once it ends. Raises PullError, BadManifest, StoreError."""
        is_hubs = self._hub.has(name)
        work = self._from_hub(name) if is_hubs else self._from_registry(name, insecure=insecure)
        async with aclosing(work) as lines:
            async for line in lines:
                yield line

    async def push(
        self, name: StoreName, data: bytes, *, store: str, insecure: bool
    ) -> AsyncGenerator[Progress, None]:
        """The registry that the name says has the model of `store` whose manifest is `data`.

        Raises PullError, BadManifest, Unreadable.
        """
        is_plain = is_plain_http(name, insecure=insecure)
        registry = Registry(await self._web(is_plain=is_plain), name, is_plain=is_plain)
        model = Pushed(store, read_manifest(data), data)
        async with aclosing(pushed(registry, model, threads=self._threads)) as lines:
            async for line in lines:
                yield line

    async def reader(self, name: StoreName) -> HubReader:
        """The hub's repository `name`, to be read. Raises PullError, NoRepository."""
        if not self._hub.has(name):
            raise NoRepository(name.short)
        repository = await self._repository(name)
        return HubReader(name, repository, await repository.listing())

    async def _repository(self, name: StoreName) -> HubRepository:
        return HubRepository(await self._web(is_plain=self._hub.is_plain), self._hub, name)

    async def _from_hub(self, name: StoreName) -> AsyncGenerator[Progress, None]:
        yield Progress("pulling manifest")
        repository = await self._repository(name)
        work = HubPull(
            name, repository, fetcher=self._fetcher, store=self._store, threads=self._threads
        )
        async with aclosing(work.lines()) as lines:
            async for line in lines:
                yield line

    async def _from_registry(
        self, name: StoreName, *, insecure: bool
    ) -> AsyncGenerator[Progress, None]:
        is_plain = is_plain_http(name, insecure=insecure)
        yield Progress("pulling manifest")
        registry = Registry(await self._web(is_plain=is_plain), name, is_plain=is_plain)
        fetched = await registry.manifest()
        layers = tuple({layer.digest: layer for layer in fetched.manifest.all_layers}.values())
        with self._store.hold(layer.digest for layer in layers):
            blobs = [
                Sourced(one.digest, one.size_bytes, registry.blob(one.digest)) for one in layers
            ]
            async with aclosing(self._fetcher.fetched(blobs)) as lines:
                async for line in lines:
                    yield line
            yield Progress("verifying sha256 digest")
            yield Progress("writing manifest")
            await self._threads.run(self._store.put_manifest, name, fetched.manifest, fetched.data)

    async def _web(self, *, is_plain: bool) -> Web:
        web = self._webs.get(is_plain)
        if web is None:
            # In a thread, since it reads every certificate that this machine trusts.
            made = await self._threads.move(
                Web, allows_plain=is_plain, stall_s=self._pace.stall_s, head_s=self._pace.head_s
            )
            web = self._webs.setdefault(is_plain, made)
        return web
