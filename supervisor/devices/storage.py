"""How fast the disk below a folder of models reads, and what is free on it.

Measured, once a folder: what the kernel says of a disk (`rotational`) is wrong on virtual machines,
where every virtio disk claims to rotate, and says nothing of network mounts. Read past the page
cache, or the answer would be the memory's speed; a quarter of a second is enough and never more.
"""

import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter

from planners.hardware import Storage
from planners.sizes import MIB

BLOCK_BYTES = 4 * MIB  # as much as the kernel reads ahead of a mapped model
MOST_BYTES = 64 * MIB
MOST_S = 0.25
LEAST_BYTES = 16 * MIB  # a smaller file ends before the disk is up to speed
MOST_ENTRIES = 2000
_DIRECT = getattr(os, "O_DIRECT", 0)  # macOS has none


class StorageSource:
    """The folders' disks. Speed is measured at the first reading that finds a model to read."""

    name = "storage"

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = tuple(folders)
        self._rates: dict[str, float] = {}

    def read(self) -> tuple[Storage, ...]:
        """One value a folder that exists. Blocks while it measures, longer where a disk sleeps."""
        return tuple(self._storage(folder) for folder in self._folders if os.path.isdir(folder))

    def _storage(self, folder: str) -> Storage:
        if folder not in self._rates and (rate := read_bytes_per_s(folder)) is not None:
            self._rates[folder] = rate
        return Storage(folder, free_bytes(folder), self._rates.get(folder))


def free_bytes(folder: str) -> int | None:
    """What an unprivileged user may still write there; None where it cannot be told."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def read_bytes_per_s(folder: str) -> float | None:
    """Bytes/s of reading one of its models; None without one, or where caching is forced."""
    if not _DIRECT or (path := next(_models(folder), None)) is None:
        return None
    try:
        with closing(mmap.mmap(-1, BLOCK_BYTES)) as block:  # pages: O_DIRECT wants them aligned
            return _timed(path, block)
    except OSError:  # tmpfs and some network mounts refuse O_DIRECT; a file may have gone
        return None


def _timed(path: str, block: mmap.mmap) -> float | None:
    file = os.open(path, os.O_RDONLY | _DIRECT)
    try:
        done, begun_s = 0, perf_counter()
        while done < MOST_BYTES and perf_counter() - begun_s < MOST_S:
            got = os.preadv(file, [block], done)
            done += got
            if got < BLOCK_BYTES:
                break
        return done / (perf_counter() - begun_s) if done >= BLOCK_BYTES else None
    finally:
        os.close(file)


def _models(folder: str) -> Iterator[str]:
    """Model files large enough to be measured, in no order, as long as the search is cheap."""
    seen = 0
    for here, _, names in os.walk(folder):
        for name in names:
            seen += 1
            if seen > MOST_ENTRIES:
                return
            path = Path(here, name)
            if path.suffix == ".gguf" and _size_bytes(path) >= LEAST_BYTES:
                yield str(path)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
