"""The models of a store, as the catalogue offers them; what stays the same is read once.

Blocking, and lives in the catalogue's thread.
"""

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from planners.model import BrokenFile, BrokenKind
from planners.recipe import Recipe
from supervisor.models.gguf_files import (
    DiskFailed,
    FileStat,
    ModelFile,
    raise_if_passing,
    stat_of,
)
from supervisor.store.digests import Digest
from supervisor.store.layout import (
    BLOBS,
    MANIFESTS,
    ManifestFile,
    ReadManifest,
    blob_path,
    manifest_files,
    read_whole,
)
from supervisor.store.manifest import (
    ADAPTER,
    DRAFT,
    MODEL,
    PROJECTOR,
    TENSOR,
    BadManifest,
    Layer,
    Manifest,
)
from supervisor.store.splits import part_paths, parts_in


class StoredModel(Struct, frozen=True):
    """A model whose blobs are all there."""

    store: str
    """The store's folder."""
    digest: Digest
    """Of its manifest."""
    file: ModelFile
    projector: FileStat | None
    draft: FileStat | None
    adapters: tuple[FileStat, ...]
    recipe: Recipe
    size_bytes: int
    modified_ns: int


class _Known(Struct, frozen=True):
    """What a manifest said."""

    key: str
    read: ReadManifest | str
    """Or why it is none."""
    blobs_key: str = ""
    """Of the folder of blobs, which changes whenever one comes or goes."""
    model: StoredModel | None = None
    """What it came to; None where that may change without its manifest."""


class Shelf:
    """Stores by folder. What a disk that does not answer held when it last did is still there."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._seen: dict[str, tuple[StoredModel | BrokenFile, ...]] = {}

    def look(self, folders: Sequence[str]) -> tuple[StoredModel | BrokenFile, ...]:
        """Every model of the stores at `folders`, in order. Raises CannotLook."""
        known: dict[str, _Known] = {}
        self._seen = {folder: self._models(folder, known) for folder in folders}
        self._known = known
        return tuple(model for folder in folders for model in self._seen[folder])

    def _models(
        self, folder: str, known: dict[str, _Known]
    ) -> tuple[StoredModel | BrokenFile, ...]:
        try:
            blobs_key = _folder_key(os.path.join(folder, BLOBS))
            models: list[StoredModel | BrokenFile] = []
            for file in manifest_files(folder):
                read = self._read(folder, file, blobs_key=blobs_key)
                model = read.model or _model(folder, file, read.read)
                kept = model if isinstance(model, StoredModel) else None
                known[file.path] = read if read.model is model else replace(read, model=kept)
                models.append(model)
            return tuple(models)
        except DiskFailed:
            known |= {path: one for path, one in self._known.items() if _is_in(path, folder)}
            return self._seen.get(folder, ())
        except OSError as exc:
            path = os.path.join(folder, MANIFESTS)
            raise_if_passing(exc, path=path)
            reason = f"cannot be searched: {exc.strerror or exc}"
            return (BrokenFile(path, reason, kind=BrokenKind.FOLDER),)

    def _read(self, folder: str, file: ManifestFile, *, blobs_key: str) -> _Known:
        known = self._known.get(file.path)
        if known is not None and known.key == file.key and not isinstance(known.read, str):
            is_same = known.blobs_key == blobs_key
            return known if is_same else replace(known, blobs_key=blobs_key, model=None)
        try:
            return _Known(file.key, read_whole(folder, file.path), blobs_key)
        except (BadManifest, FileNotFoundError) as exc:
            return _Known(file.key, str(exc), blobs_key)


def _folder_key(folder: str) -> str:
    found = os.stat(folder)
    return f"{found.st_mtime_ns}-{found.st_dev}-{found.st_ino}"


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _model(folder: str, file: ManifestFile, read: ReadManifest | str) -> StoredModel | BrokenFile:
    """What a manifest's blobs come to. Raises DiskFailed."""
    names = (file.name.short,)
    if isinstance(read, str):
        return BrokenFile(file.path, read, names)
    if (reason := _why_not(read.manifest, folder)) is not None:
        return BrokenFile(file.path, reason, names)
    blobs: dict[Digest, FileStat] = {}
    parts = parts_in(read.manifest)
    paths = dict(zip(parts, part_paths(folder, parts) if parts else (), strict=True))
    for layer in read.manifest.of_type(MODEL, PROJECTOR, ADAPTER, DRAFT):
        found = _blob(paths.get(layer.digest) or blob_path(folder, layer.digest), layer)
        if isinstance(found, str):
            return BrokenFile(file.path, found, names, kind=BrokenKind.INCOMPLETE)
        blobs[layer.digest] = found
    return _stored(folder, file, read, blobs)


def _stored(
    folder: str, file: ManifestFile, read: ReadManifest, blobs: Mapping[Digest, FileStat]
) -> StoredModel:
    def of(media_type: str) -> tuple[FileStat, ...]:
        return tuple(blobs[layer.digest] for layer in read.manifest.of_type(media_type))

    return StoredModel(
        store=folder,
        digest=read.digest,
        file=ModelFile(file.name.short, of(MODEL)),
        projector=next(iter(of(PROJECTOR)), None),
        draft=next(iter(of(DRAFT)), None),
        adapters=of(ADAPTER),
        recipe=read.recipe,
        size_bytes=read.manifest.size_bytes,
        modified_ns=file.modified_ns,
    )


def _why_not(manifest: Manifest, folder: str) -> str | None:
    """Why llama-server cannot serve it, before any look at its blobs; None where it may."""
    if any(manifest.of_type(TENSOR)):
        return "its weights are safetensors, which llama-server does not read; pull a GGUF of it"
    n_models = sum(1 for _ in manifest.of_type(MODEL))
    if n_models == 0:
        return "it has no weights here: a model of ollama.com's cloud, or an adapter alone"
    if n_models > 1 and not os.path.isdir(os.path.dirname(_first_link(manifest, folder))):
        return (
            f"it has {n_models} model files, and no links put them together as parts of one: pull"
            " it with inferenceosd, or start that anew where this is its own store"
        )
    projectors = {layer.digest for layer in manifest.of_type(PROJECTOR)}
    if any(layer.digest in projectors for layer in manifest.of_type(MODEL)):
        return (
            "its projector is within its model file, which only Ollama's own patches to llama.cpp"
            " read; pull one with a projector of its own, such as from Hugging Face"
        )
    return None


def _first_link(manifest: Manifest, folder: str) -> str:
    return part_paths(folder, parts_in(manifest))[0]


def _blob(path: str, layer: Layer) -> FileStat | str:
    found = stat_of(path)
    if isinstance(found, str):
        return f"its blob {layer.digest}: {found}"
    if found.size_bytes != layer.size_bytes:
        return f"its blob {layer.digest} has {found.size_bytes} bytes instead of {layer.size_bytes}"
    return found
