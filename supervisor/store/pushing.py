"""A stored model on its way to a registry: blobs that it lacks, piece by piece, then its manifest.

(The Docker registry's HTTP API V2; Ollama, server/upload.go.)
"""

import os
from collections.abc import AsyncGenerator

from msgspec import Struct

from supervisor.store.errors import Unreadable
from supervisor.store.layout import blob_path
from supervisor.store.manifest import Layer, Manifest
from supervisor.store.progress import Progress
from supervisor.store.registry import Registry
from supervisor.store.threads import StoreThreads

PIECE_BYTES = 16 << 20  # of a blob, sent and acknowledged at once


class Pushed(Struct, frozen=True):
    """What is sent."""

    store: str
    manifest: Manifest
    data: bytes
    """The manifest as a file: its digest is what the registry will know it by."""


async def pushed(
    registry: Registry, model: Pushed, *, threads: StoreThreads, piece_bytes: int = PIECE_BYTES
) -> AsyncGenerator[Progress, None]:
    """The registry has the model once it ends. Raises PullError, Unreadable."""
    layers = tuple({layer.digest: layer for layer in model.manifest.all_layers}.values())
    for layer in layers:
        if not await registry.has_blob(layer.digest):
            at = await registry.upload_begun()
            for first in range(0, layer.size_bytes, piece_bytes):
                yield _line(layer, first)
                piece = await threads.move(_piece, model.store, layer, first, piece_bytes)
                at = await registry.piece_sent(at, piece, first=first)
            await registry.upload_ended(at, layer.digest)
        yield _line(layer, layer.size_bytes)
    yield Progress("pushing manifest")
    await registry.manifest_put(model.data)


def _line(layer: Layer, n_bytes: int) -> Progress:
    return Progress(f"pushing {layer.digest.short}", str(layer.digest), layer.size_bytes, n_bytes)


def _piece(store: str, layer: Layer, first: int, n_bytes: int) -> bytes:
    """Blocking. Raises Unreadable."""
    path = blob_path(store, layer.digest)
    try:
        with open(path, "rb") as stream:
            return os.pread(stream.fileno(), n_bytes, first)
    except OSError as exc:
        raise Unreadable(path=path, why=exc.strerror or str(exc)) from exc
