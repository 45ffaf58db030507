"""Where a store keeps what: `manifests/HOST/NAMESPACE/MODEL/TAG`, `blobs/sha256-HEX`. Reads only.

Blocking. Raises CannotLook and DiskFailed as supervisor.models.gguf_files does.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from planners.recipe import Message, ParameterValue, Recipe
from supervisor.kept_file import read_kept
from supervisor.models.gguf_files import raise_if_passing
from supervisor.store.digests import Digest
from supervisor.store.manifest import (
    LICENSE,
    MAX_MANIFEST_BYTES,
    MESSAGES,
    PARAMS,
    PROMPT,
    SYSTEM,
    TEMPLATE,
    BadManifest,
    Layer,
    Manifest,
    digest_of,
    read_manifest,
)
from supervisor.store.names import BadStoreName, StoreName
from supervisor.store.splits import SPLITS

MANIFESTS, BLOBS = "manifests", "blobs"
MAX_MODELS = 20_000  # manifests looked at in one store
MAX_TEXT_BYTES = 4 << 20  # of a template, a licence, a system prompt: read into memory
DEPTH = 4  # of a manifest below `manifests`


T = TypeVar("T")


class ManifestFile(msgspec.Struct, frozen=True):
    """One manifest on disk, not read yet."""

    name: StoreName
    path: str
    modified_ns: int
    key: str
    """Changes when the file does."""


class ReadManifest(msgspec.Struct, frozen=True):
    """A manifest and the small blobs that go with it."""

    manifest: Manifest
    digest: Digest
    """Of the manifest's own bytes: what Ollama's clients know a model by."""
    recipe: Recipe


def is_store(folder: str) -> bool:
    """Whether `folder` is laid out as a store."""
    return all(os.path.isdir(os.path.join(folder, part)) for part in (MANIFESTS, BLOBS))


def inner_folders(stores: Iterable[str]) -> frozenset[str]:
    """The stores' own folders, in which nobody looks for plain files."""
    inner = (MANIFESTS, BLOBS, SPLITS)
    return frozenset(os.path.join(store, part) for store in stores for part in inner)


def blob_path(folder: str, digest: Digest) -> str:
    """Where a store keeps that blob."""
    return os.path.join(folder, BLOBS, digest.file_name)


def manifest_path(folder: str, name: StoreName) -> str:
    """Where a store keeps that model's manifest."""
    return os.path.join(folder, MANIFESTS, *name.path)


def manifest_files(folder: str) -> Iterator[ManifestFile]:
    """Every manifest of the store, by name. Raises OSError where a folder cannot be searched."""
    found = 0
    for path in _files_at(os.path.join(folder, MANIFESTS), DEPTH):
        *_, host, namespace, model, tag = path.split(os.sep)
        try:
            name = StoreName(host, namespace, model, tag)
            seen = os.stat(path)
        except (BadStoreName, FileNotFoundError):
            continue  # something else that lies there; or gone since its folder was listed
        if not stat.S_ISREG(seen.st_mode):
            continue
        key = f"{seen.st_size}-{seen.st_mtime_ns}-{seen.st_dev}-{seen.st_ino}"
        yield ManifestFile(name, path, seen.st_mtime_ns, key)
        found += 1
        if found >= MAX_MODELS:
            return


def read_manifest_at(path: str) -> tuple[Manifest, Digest]:
    """The manifest and its digest. Raises BadManifest, CannotLook; FileNotFoundError."""
    data = _read(path, most_bytes=MAX_MANIFEST_BYTES)
    return read_manifest(data), digest_of(data)


def read_whole(folder: str, path: str) -> ReadManifest:
    """The manifest at `path` and what its small blobs say. Raises as read_manifest_at does."""
    manifest, digest = read_manifest_at(path)
    return ReadManifest(manifest, digest, read_recipe(folder, manifest))


def read_recipe(folder: str, manifest: Manifest) -> Recipe:
    """What goes with the model's weights. Raises BadManifest, CannotLook."""
    params = [_json(folder, layer, _PARAMS) for layer in manifest.of_type(PARAMS)]
    messages = [m for layer in manifest.of_type(MESSAGES) for m in _json(folder, layer, _MESSAGES)]
    templates = [_text(folder, layer) for layer in manifest.of_type(TEMPLATE, PROMPT)]
    systems = [_text(folder, layer) for layer in manifest.of_type(SYSTEM)]
    return Recipe(
        parameters=_parameters({k: v for one in params for k, v in one.items()}),
        system=systems[-1] if systems else "",
        template=templates[-1] if templates else "",
        messages=tuple(Message(m.role, m.content) for m in messages),
        licenses=tuple(_text(folder, layer) for layer in manifest.of_type(LICENSE)),
    )


class _Message(msgspec.Struct):
    role: str
    content: str = ""


_PARAMS = msgspec.json.Decoder(dict[str, str | bool | int | float | list[str] | None])
_MESSAGES = msgspec.json.Decoder(list[_Message])


def _parameters(
    told: dict[str, str | bool | int | float | list[str] | None],
) -> tuple[tuple[str, ParameterValue], ...]:
    return tuple(
        (key, tuple(value) if isinstance(value, list) else value)
        for key, value in told.items()
        if value is not None
    )


def _json(folder: str, layer: Layer, decoder: msgspec.json.Decoder[T]) -> T:
    kind = layer.media_type.rpartition(".")[2]
    try:
        return decoder.decode(_blob(folder, layer))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadManifest(f"its {kind}, {layer.digest}, cannot be read: {exc}") from exc


def _text(folder: str, layer: Layer) -> str:
    return _blob(folder, layer).decode(errors="replace")


def _blob(folder: str, layer: Layer) -> bytes:
    """A small one, whole."""
    try:
        data = _read(blob_path(folder, layer.digest), most_bytes=MAX_TEXT_BYTES)
    except FileNotFoundError as exc:
        raise BadManifest(f"{layer.digest} is not among the store's blobs") from exc
    if len(data) != layer.size_bytes:
        raise BadManifest(f"{layer.digest} has {len(data)} bytes instead of {layer.size_bytes}")
    return data


def _read(path: str, *, most_bytes: int) -> bytes:
    try:
        return read_kept(Path(path), most_bytes=most_bytes)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise_if_passing(exc, path=path)
        raise BadManifest(f"{path}: {exc.strerror or exc}") from exc


def _files_at(folder: str, depth: int) -> Iterator[str]:
    """Whatever lies exactly `depth` levels below, hidden entries apart. Raises OSError."""
    with os.scandir(folder) as listing:
        entries = sorted((e for e in listing if not e.name.startswith(".")), key=lambda e: e.name)
    for entry in entries:
        if depth == 1:
            yield entry.path
        elif entry.is_dir():
            yield from _files_at(entry.path, depth - 1)
