"""Blobs on their way into a store: written aside, held against their digest, moved in at once.

    aside ─ all bytes there, digest right → synced → renamed: no other way for a blob to come
      any ─ anything else → the file aside is removed; one of a killed daemon by the sweep at start
Blocking.
"""

import errno
import fcntl
import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from supervisor.devices.storage import free_bytes
from supervisor.store.digests import Digest
from supervisor.store.errors import DigestMismatch, NoRoom, Unwritable
from supervisor.store.layout import BLOBS

ASIDE = ".incoming-"
"""What files are called until they are whole: hidden, so that no scan sees one."""
CHUNK_BYTES = 4 << 20
KEPT_FREE_BYTES = 256 << 20  # of the disk: the journal and the logs live there too
_FICLONE = 0x40049409  # linux/fs.h; macOS has none of it


def check_room(folder: str, needed_bytes: int) -> None:
    """Raises NoRoom where so much more would leave the disk too full."""
    free = free_bytes(folder)
    if free is None:
        return
    usable = max(0, free - KEPT_FREE_BYTES)
    if needed_bytes > usable:
        raise NoRoom(folder=folder, needed_bytes=needed_bytes, free_bytes=usable)


def sync_folder(folder: str | Path) -> None:
    """What was renamed or removed in `folder` stays so over a loss of power."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class Unwritten:
    """The block in which `path` is written; an OSError leaves it as Unwritable or NoRoom."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(exc, OSError):
            return
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            folder = os.path.dirname(self._path)
            free = free_bytes(folder) or 0
            raise NoRoom(folder=folder, needed_bytes=None, free_bytes=free) from exc
        raise Unwritable(path=self._path, why=exc.strerror or str(exc)) from exc


class Incoming:
    """A blob that is being written. Left without `keep`, nothing remains of it."""

    def __init__(self, store: str) -> None:
        self._blobs = Path(store, BLOBS)
        self._path = self._blobs / f"{ASIDE}{os.urandom(8).hex()}"
        self._hash = hashlib.sha256()
        self.n_bytes = 0
        self._stream: BinaryIO | None = None

    def __enter__(self) -> "Incoming":
        with Unwritten(self._path):
            self._blobs.mkdir(mode=0o700, exist_ok=True)  # somebody may have removed it
            self._stream = open(self._path, "xb", opener=private)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            with suppress(OSError):  # what it could not flush is removed with it
                self._stream.close()
        self._path.unlink(missing_ok=True)  # not there once it was kept

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes. Raises NoRoom, Unwritable."""
        assert self._stream is not None
        with Unwritten(self._path):
            self._stream.write(data)
        self._hash.update(data)
        self.n_bytes += len(data)

    def fill(self, source: str, *, told: Callable[[int], None] = lambda _: None) -> None:
        """All of the file `source`; shared with it where the file system can. Raises OSError."""
        assert self._stream is not None
        with open(source, "rb") as stream:
            is_shared = _is_cloned(self._stream, stream)
            while chunk := stream.read(CHUNK_BYTES):
                if is_shared:
                    self._hash.update(chunk)
                    self.n_bytes += len(chunk)
                else:
                    self.write(chunk)
                told(self.n_bytes)

    @property
    def digest(self) -> Digest:
        """Of what was written so far."""
        return Digest(self._hash.hexdigest())

    def keep(self, expected: Digest | None = None) -> Digest:
        """Make it a blob of the store. Raises DigestMismatch, NoRoom, Unwritable."""
        assert self._stream is not None
        got = self.digest
        if expected is not None and got != expected:
            raise DigestMismatch(expected=expected, got=got)
        with Unwritten(self._path):
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._path.replace(self._blobs / got.file_name)
            sync_folder(self._blobs)
        return got


def linked(source: str, store: str, digest: Digest) -> bool:
    """Whether `source`, a blob of another store, could be made one of ours without a copy."""
    try:
        os.link(source, Path(store, BLOBS, digest.file_name))
    except FileExistsError:
        return True
    except OSError:
        return False  # another file system, another's file, or one that has no such links
    sync_folder(Path(store, BLOBS))
    return True


def hashed(path: str | Path, *, told: Callable[[int], None] = lambda _: None) -> Digest:
    """The digest of a file. Raises OSError."""
    found, n_bytes = hashlib.sha256(), 0
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            found.update(chunk)
            n_bytes += len(chunk)
            told(n_bytes)
    return Digest(found.hexdigest())


def _is_cloned(target: BinaryIO, source: BinaryIO) -> bool:
    if sys.platform != "linux":
        return False
    try:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except OSError:
        return False
    return True


def private(path: str, flags: int) -> int:
    """An opener of files that are nobody else's to read."""
    return os.open(path, flags, 0o600)
