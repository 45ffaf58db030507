"""One model in the making: layers taken from another, from uploaded files, from texts.

What another store or a folder holds is copied into the daemon's own, or shared with it where the
file system can.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from planners.gguf import GgufError
from planners.model import ModelInfo, ServedModel
from planners.recipe import PLAIN
from supervisor.kept_file import read_kept
from supervisor.models.gguf_files import FileStat, ModelFile, read_model, stat_of
from supervisor.store.blobs import Incoming, check_room, linked
from supervisor.store.digests import Digest
from supervisor.store.errors import BlobMissing, NotStorable
from supervisor.store.layout import (
    MAX_TEXT_BYTES,
    blob_path,
    manifest_path,
    read_recipe,
    read_whole,
)
from supervisor.store.manifest import (
    ADAPTER,
    CONFIG_TYPE,
    MAX_LAYERS,
    MAX_MANIFEST_BYTES,
    MODEL,
    PROJECTOR,
    Layer,
    Manifest,
    digest_of,
)
from supervisor.store.names import StoreName, parse_name
from supervisor.store.own_store import OwnStore
from supervisor.store.progress import Progress, Told, Work
from supervisor.store.recipes import Creation, Text, config_of, kept, manifest_of, rootfs, texts
from supervisor.store.splits import parts_in
from supervisor.store.threads import StoreThreads

MERGE = "it is split into parts; merge them with `llama-gguf-split --merge` first"


class Making:
    """Gathers layers; `manifest` is what they make."""

    def __init__(self, store: OwnStore, threads: StoreThreads) -> None:
        self._store, self._threads = store, threads
        self.layers: tuple[Layer, ...] = ()
        self.base = PLAIN
        """The recipe of what the layers were taken from."""
        self._config: dict[str, Any] = {}
        self._config_layer: Layer | None = None
        self._n_parts = 1
        """Model files that make one model: those of a split base."""
        self._held = ExitStack()

    def __enter__(self) -> "Making":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    def _hold(self, *layers: Layer) -> None:
        """None of these is removed until the manifest is written."""
        self._held.enter_context(self._store.hold(layer.digest for layer in layers))

    async def take_own(self, name: StoreName, manifest: Manifest) -> None:
        """The layers of a model of the store itself."""
        self._hold(*manifest.all_layers)
        self.base = await self._threads.run(read_recipe, self._store.folder, manifest)
        self._take(manifest)
        await self._read_config(manifest.config)

    async def take(self, model: ServedModel) -> AsyncGenerator[Progress, None]:
        """The layers of a model that lies elsewhere, copied."""
        taken = self._take_stored(model) if model.store else self._take_files(model)
        async with aclosing(taken):
            async for line in taken:
                yield line

    async def need(self, digests: Iterable[Digest]) -> None:
        """Uploaded files, before anything is said of them. Raises BlobMissing."""
        for digest in digests:
            self._held.enter_context(self._store.hold([digest]))
            if not await self._threads.run(self._store.has_blob, digest):
                raise BlobMissing(digest)

    async def add_file(self, digest: Digest, *, as_adapter: bool = False) -> None:
        """An uploaded GGUF file. Raises BlobMissing, NotStorable."""
        found = await self._threads.run(stat_of, blob_path(self._store.folder, digest))
        if isinstance(found, str):
            raise BlobMissing(digest)
        info = await self._threads.move(_info, found)
        self._add(info, Layer(_kind(info), digest, found.size_bytes), as_adapter=as_adapter)

    async def dress(self, asked: Creation) -> AsyncGenerator[Progress, None]:
        """The texts that were asked for, over those of the base."""
        before, self.layers = self.layers, kept(self.layers, asked)
        new = texts(asked, dict(self.base.parameters))
        _check_readable(len(self.layers), new)
        for text in new:
            layer = await self._put(text.media_type, text.data)
            yield Progress(f"creating new layer {layer.digest}")
            self.layers += (layer,)
        if self.layers != before or asked.config:
            self._config_layer = None
        self._config |= dict(asked.config)

    async def manifest(self) -> Manifest:
        """All of it. Raises NotStorable where there is not one model among the layers."""
        n_models = sum(layer.media_type == MODEL for layer in self.layers)
        if n_models != self._n_parts:
            raise NotStorable(f"{n_models or 'no'} models are among the files, and one is needed")
        config = self._config_layer or await self._written_config()
        return manifest_of(config, self.layers)

    # Elsewhere.

    async def _take_stored(self, model: ServedModel) -> AsyncGenerator[Progress, None]:
        path = manifest_path(model.store, parse_name(model.model_id))
        read = await self._threads.move(read_whole, model.store, path)
        self.base = read.recipe
        self._hold(*read.manifest.all_layers)
        for layer in read.manifest.all_layers:
            async with aclosing(self._import(model.store, layer)) as lines:
                async for line in lines:
                    yield line
        self._take(read.manifest)
        await self._read_config(read.manifest.config)

    async def _import(self, other: str, layer: Layer) -> AsyncGenerator[Progress, None]:
        source, digest = blob_path(other, layer.digest), layer.digest
        is_there = await self._threads.run(
            self._store.has_blob, digest, size_bytes=layer.size_bytes
        )
        if is_there or await self._threads.move(linked, source, self._store.folder, digest):
            yield Progress(f"using existing layer {digest}")
            return
        async with self._incoming(layer.size_bytes) as incoming:
            copied = self._copied(incoming, source, layer.size_bytes, digest=str(digest))
            async with aclosing(copied):
                async for line in copied:
                    yield line
            await self._threads.move(incoming.keep, digest)
        yield Progress(f"creating new layer {digest}")

    async def _take_files(self, model: ServedModel) -> AsyncGenerator[Progress, None]:
        if _is_split(model.info):
            raise NotStorable(f"model '{model.model_id}' cannot be copied: {MERGE}")
        settings = model.settings
        paths = [path for path in (model.path, settings.mmproj_path) if path is not None]
        for path in (*paths, *settings.lora_paths):
            found = await self._threads.move(stat_of, path)
            if isinstance(found, str):
                raise NotStorable(f"model '{model.model_id}' cannot be copied: {path}: {found}")
            info = await self._threads.move(_info, found)
            async with self._incoming(found.size_bytes) as incoming:
                async with aclosing(self._copied(incoming, path, found.size_bytes)) as copied:
                    async for line in copied:
                        yield line
                layer = Layer(_kind(info), incoming.digest, found.size_bytes)
                # Held before it is a blob: it may be one already, of a model that goes now.
                self._add(info, layer, as_adapter=path in settings.lora_paths)
                await self._threads.move(incoming.keep)
            yield Progress(f"creating new layer {layer.digest}")

    @asynccontextmanager
    async def _incoming(self, size_bytes: int) -> AsyncIterator[Incoming]:
        """A blob to be, for which there is room. Raises NoRoom, Unwritable."""
        await self._threads.move(check_room, self._store.folder, size_bytes)
        incoming = Incoming(self._store.folder)
        await self._threads.move(incoming.__enter__)
        try:
            yield incoming
        finally:
            await asyncio.shield(self._threads.move(incoming.__exit__, None, None, None))

    async def _copied(
        self, incoming: Incoming, source: str, size_bytes: int, *, digest: str = ""
    ) -> AsyncGenerator[Progress, None]:
        """All of the file `source` is in it once this ends; its thread, too, has ended then."""

        def copy(told: Told) -> None:
            incoming.fill(source, told=told)

        work = Work(self._threads.bulk, copy)
        lines = work.follow("copying model", total_bytes=size_bytes, digest=digest)
        async with aclosing(lines):
            async for line in lines:
                yield line

    # What is gathered.

    def _take(self, manifest: Manifest) -> None:
        self.layers, self._config_layer = manifest.layers, manifest.config
        self._n_parts = len(parts_in(manifest)) or 1

    def _add(self, info: ModelInfo, layer: Layer, *, as_adapter: bool) -> None:
        if as_adapter != (layer.media_type == ADAPTER):
            what = "is no adapter" if as_adapter else "is an adapter: name it among the adapters"
            raise NotStorable(f"the file {layer.digest} {what}")
        if _is_split(info):
            raise NotStorable(f"the file {layer.digest} cannot be stored: {MERGE}")
        if layer.media_type == MODEL:
            self._config = config_of(info)
        self._hold(layer)
        self.layers += (layer,)
        self._config_layer = None

    async def _read_config(self, layer: Layer) -> None:
        path = Path(blob_path(self._store.folder, layer.digest))
        data = await self._threads.run(read_kept, path, most_bytes=MAX_MANIFEST_BYTES)
        try:
            told = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            told = None
        self._config = told if isinstance(told, dict) else {}

    async def _written_config(self) -> Layer:
        data = msgspec.json.encode(self._config | {"rootfs": rootfs(self.layers)})
        if len(data) > MAX_MANIFEST_BYTES:
            raise NotStorable(f"its configuration is longer than {MAX_MANIFEST_BYTES} bytes")
        return await self._put(CONFIG_TYPE, data)

    async def _put(self, media_type: str, data: bytes) -> Layer:
        """A small blob. Held before it is there: it may be the last of a model that goes now."""
        self._hold(Layer(media_type, digest_of(data), len(data)))
        return await self._threads.run(self._store.put_blob, media_type, data)


def _check_readable(n_kept: int, new: Sequence[Text]) -> None:
    """Raises NotStorable for what no reader of a store would take: nobody could use the model."""
    if n_kept + len(new) > MAX_LAYERS:
        raise NotStorable(f"the model would have more than {MAX_LAYERS} layers")
    for text in new:
        if len(text.data) > MAX_TEXT_BYTES:
            kind = text.media_type.rpartition(".")[2]
            raise NotStorable(f"the model's {kind} would be longer than {MAX_TEXT_BYTES} bytes")


def _info(file: FileStat) -> ModelInfo:
    """What a GGUF file is. Raises NotStorable."""
    try:
        return read_model(ModelFile(os.path.basename(file.path), (file,)))
    except GgufError as exc:
        raise NotStorable(f"supplied file was not in GGUF format: {exc}") from exc


def _kind(info: ModelInfo) -> str:
    if info.is_projector:
        return PROJECTOR
    return ADAPTER if info.is_adapter else MODEL


def _is_split(info: ModelInfo) -> bool:
    count = dict(info.metadata).get("split.count")
    return isinstance(count, int) and count > 1
