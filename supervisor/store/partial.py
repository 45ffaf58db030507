"""A download that is not whole: the file, and notes of which of its bytes are there.

Outlives a restart. What the notes say is there was synced before; they are no proof of what it is,
that is the digest's. Blocking.
"""

import os
from pathlib import Path
from threading import Lock

import msgspec

from supervisor.kept_file import read_kept, replace_kept
from supervisor.store.blobs import Unwritten, hashed, private, sync_folder
from supervisor.store.digests import Digest
from supervisor.store.errors import DigestMismatch
from supervisor.store.layout import BLOBS
from supervisor.store.progress import Told

PARTIAL = "-partial"
"""In the names of both files, after the blob's."""


class Part(msgspec.Struct):
    """A stretch of the file, which is filled from its beginning."""

    first: int
    n_bytes: int
    done: int = 0
    """Bytes written."""

    @property
    def at(self) -> int:
        """The next byte that is missing."""
        return self.first + self.done

    @property
    def is_done(self) -> bool:
        """Whether all of it is there."""
        return self.done >= self.n_bytes


class _Notes(msgspec.Struct):
    size: int
    parts: list[tuple[int, int, int]]


_NOTES = msgspec.json.Decoder(_Notes)


class Partial:
    """One download's file."""

    def __init__(self, store: str, digest: Digest, *, size_bytes: int, part_bytes: int) -> None:
        self._blobs, self._digest = Path(store, BLOBS), digest
        self._path = self._blobs / f"{digest.file_name}{PARTIAL}"
        self._notes = self._path.with_name(f"{self._path.name}-notes")
        self.size_bytes, self._part_bytes = size_bytes, part_bytes
        self._file = -1
        self._writing = Lock()
        """A write whose asker has left may still be under way when the file is closed."""
        self.parts: list[Part] = []

    @property
    def done_bytes(self) -> int:
        """Of all parts."""
        return sum(part.done for part in self.parts)

    def open(self) -> None:
        """Go on with what is there, or begin. Raises NoRoom, Unwritable."""
        with Unwritten(self._path):
            self._blobs.mkdir(mode=0o700, exist_ok=True)  # somebody may have removed it
            self.parts = self._noted()
            if not self.parts:
                self._path.unlink(missing_ok=True)
                self.parts = list(parts_of(self.size_bytes, self._part_bytes))
            self._file = private(
                str(self._path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            )
            os.ftruncate(self._file, self.size_bytes)

    def as_one(self) -> None:
        """Forget what is there, and take the file as one part from now on."""
        self._notes.unlink(missing_ok=True)
        self.parts = [Part(0, self.size_bytes)]

    def write(self, part: Part, data: bytes) -> None:
        """The next bytes of a part. Raises NoRoom, Unwritable."""
        with self._writing, Unwritten(self._path):
            view = memoryview(data)
            while view and self._file >= 0:
                n_bytes = os.pwrite(self._file, view, part.at)
                part.done += n_bytes
                view = view[n_bytes:]

    def note(self) -> None:
        """What is there by now will be gone on with, also after a kill. Raises as `write` does."""
        told = [(part.first, part.n_bytes, part.done) for part in self.parts]
        with Unwritten(self._notes):
            os.fsync(self._file)
            replace_kept(self._notes, msgspec.json.encode(_Notes(self.size_bytes, told)))

    def close(self) -> None:
        """The file stays."""
        with self._writing:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def keep(self, told: Told) -> None:
        """It is whole: make it a blob. Raises DigestMismatch, and then nothing remains of it."""
        with Unwritten(self._path):
            os.fsync(self._file)
            got = hashed(self._path, told=told)
            if got != self._digest:
                self.discard()
                raise DigestMismatch(expected=self._digest, got=got)
            self._path.replace(self._blobs / self._digest.file_name)
            sync_folder(self._blobs)
            self._notes.unlink(missing_ok=True)

    def discard(self) -> None:
        """Nothing remains of it."""
        self._notes.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def _noted(self) -> list[Part]:
        """What the notes of an earlier download say, where they can be believed."""
        try:
            told = _NOTES.decode(read_kept(self._notes))
            has_file = os.stat(self._path).st_size == self.size_bytes
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return []
        parts = [Part(*one) for one in told.parts]
        at = 0
        for part in parts:
            if part.first != at or not 0 <= part.done <= part.n_bytes or part.n_bytes <= 0:
                return []
            at += part.n_bytes
        return parts if has_file and at == told.size == self.size_bytes else []


def parts_of(size_bytes: int, part_bytes: int) -> tuple[Part, ...]:
    """The parts of a file that is not empty; an empty one has none."""
    return tuple(
        Part(first, min(part_bytes, size_bytes - first))
        for first in range(0, size_bytes, part_bytes)
    )
