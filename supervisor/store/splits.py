"""Split models of a store: links by the names that llama.cpp finds a file's other parts by.

`splits/KEY/model-00001-of-00003.gguf` → `../../blobs/sha256-HEX`. They are made of the manifest, so
they can be made again at any time. Blocking.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from supervisor.models.gguf_names import part_name
from supervisor.store.digests import Digest
from supervisor.store.manifest import MODEL, Manifest

SPLITS = "splits"
KEY_DIGITS = 32


def parts_in(manifest: Manifest) -> tuple[Digest, ...]:
    """The blobs of a split model, in order; () where the model is one file."""
    parts = tuple(layer.digest for layer in manifest.of_type(MODEL))
    return parts if len(parts) > 1 else ()


def key_of(parts: Sequence[Digest]) -> str:
    """The folder of those parts: another where one of them is another."""
    return hashlib.sha256("".join(part.hex for part in parts).encode()).hexdigest()[:KEY_DIGITS]


def part_paths(store: str, parts: Sequence[Digest]) -> tuple[str, ...]:
    """Where the links are, in order."""
    folder, count = os.path.join(store, SPLITS, key_of(parts)), len(parts)
    return tuple(
        os.path.join(folder, part_name("model", number, count)) for number in range(1, count + 1)
    )


def link_parts(store: str, parts: Sequence[Digest]) -> None:
    """The links are there. Raises OSError."""
    for path, part in zip(map(Path, part_paths(store, parts)), parts, strict=True):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = f"../../blobs/{part.file_name}"
        if path.is_symlink() and os.readlink(path) == target:
            continue
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def unlink_unused(store: str, used: frozenset[str]) -> None:
    """Of folders of links only those in `used` remain; others' files are left alone."""
    try:
        folders = [Path(entry.path) for entry in os.scandir(Path(store, SPLITS))]
    except OSError:
        return  # there is none
    for folder in folders:
        if folder.name in used or folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            if path.is_symlink():
                path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()
