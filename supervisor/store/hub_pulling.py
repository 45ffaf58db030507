"""Models pulled from a hub of repositories: files become layers, and a manifest is made of them."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing

import msgspec

from planners.gguf import GgufError
from planners.model import ModelInfo
from supervisor.models.gguf_files import ModelFile, read_model, stat_of
from supervisor.store.errors import BlobMissing, NotStorable
from supervisor.store.fetching import Fetcher, Sourced
from supervisor.store.hub_files import Choice, HubFile, HubListing, Variant
from supervisor.store.hub_repository import SMALL_BYTES, HubRepository
from supervisor.store.layout import blob_path, read_recipe
from supervisor.store.manifest import (
    CONFIG_TYPE,
    MODEL,
    PARAMS,
    PROJECTOR,
    SYSTEM,
    TEMPLATE,
    Layer,
    Manifest,
    digest_of,
)
from supervisor.store.names import StoreName
from supervisor.store.own_store import OwnStore
from supervisor.store.progress import Progress
from supervisor.store.pull_errors import NoSuchVariant, RegistryOdd
from supervisor.store.recipes import config_of, manifest_of, rootfs
from supervisor.store.threads import StoreThreads

_KINDS = {"template": TEMPLATE, "system": SYSTEM, "params": PARAMS}


class HubPull:
    """One model on its way here."""

    def __init__(
        self,
        name: StoreName,
        repository: HubRepository,
        *,
        fetcher: Fetcher,
        store: OwnStore,
        threads: StoreThreads,
    ) -> None:
        self._name, self._repository = name, repository
        self._fetcher, self._store, self._threads = fetcher, store, threads
        self._held = ExitStack()

    async def lines(self) -> AsyncGenerator[Progress, None]:
        """The model is in the store once it ends. Raises PullError, BadManifest, StoreError."""
        listing = await self._repository.listing()
        variant = self._chosen(listing)
        files = [(MODEL, part) for part in variant.parts]
        if variant.projector is not None:
            files.append((PROJECTOR, variant.projector))
        with self._held:
            layers = [await self._layer(listing, kind, file) for kind, file in files]
            sourced = [
                Sourced(layer.digest, layer.size_bytes, self._repository.file(listing, file))
                for layer, (_, file) in zip(layers, files, strict=True)
            ]
            async with aclosing(self._fetcher.fetched(sourced)) as fetching:
                async for line in fetching:
                    yield line
            yield Progress("verifying sha256 digest")
            for file in listing.texts():
                kind = _KINDS[file.path]
                layers.append(await self._put(kind, await self._small(listing, file)))
            manifest = await self._manifest(layers)
            yield Progress("writing manifest")
            await self._threads.run(self._store.put_manifest, self._name, manifest)

    def _chosen(self, listing: HubListing) -> Variant:
        offered = self._repository.models(listing)
        variant = Choice(offered).of(self._name.tag)
        if variant is None:
            tags = tuple(dict.fromkeys(one.tag for one in offered))
            raise NoSuchVariant(name=self._repository.name, tag=self._name.tag, tags=tags)
        return variant

    async def _layer(self, listing: HubListing, media_type: str, file: HubFile) -> Layer:
        """What the file is to the model; one that lies in git itself is put at once."""
        if file.digest is None:
            return await self._put(media_type, await self._small(listing, file))
        if file.size_bytes < 0:
            raise RegistryOdd(host=self._repository.host, reason=f"no size of {file.path}")
        layer = Layer(media_type, file.digest, file.size_bytes)
        self._hold(layer)
        return layer

    async def _small(self, listing: HubListing, file: HubFile) -> bytes:
        if not 0 <= file.size_bytes <= SMALL_BYTES:
            reason = f"no digest of {file.path}, by which it could be told from another"
            raise RegistryOdd(host=self._repository.host, reason=reason)
        return await self._repository.small(listing, file)

    async def _put(self, media_type: str, data: bytes) -> Layer:
        """A small blob. Held before it is there: it may be the last of a model that goes now."""
        self._hold(Layer(media_type, digest_of(data), len(data)))
        return await self._threads.run(self._store.put_blob, media_type, data)

    def _hold(self, layer: Layer) -> None:
        self._held.enter_context(self._store.hold([layer.digest]))

    async def _manifest(self, layers: list[Layer]) -> Manifest:
        """Raises NotStorable, BadManifest for what nobody could use."""
        info = await self._threads.move(self._info, layers)
        data = msgspec.json.encode(config_of(info) | {"rootfs": rootfs(layers)})
        manifest = manifest_of(await self._put(CONFIG_TYPE, data), layers)
        await self._threads.run(read_recipe, self._store.folder, manifest)
        return manifest

    def _info(self, layers: list[Layer]) -> ModelInfo:
        found = []
        for layer in (each for each in layers if each.media_type == MODEL):
            part = stat_of(blob_path(self._store.folder, layer.digest))
            if isinstance(part, str):
                raise BlobMissing(layer.digest)
            found.append(part)
        try:
            return read_model(ModelFile(self._name.short, tuple(found)))
        except GgufError as exc:
            raise NotStorable(
                f"what {self._name.short} names is no GGUF model: {exc}; pull another"
            ) from exc
