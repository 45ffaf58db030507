"""The daemon's own store on disk: manifests put, blobs removed with the last that needs them.

Blocking; one thread at a time. At any moment, a kill or a loss of power included, every manifest
that is there has all of its blobs: these come first, and go last.
"""

import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from supervisor.kept_file import read_kept
from supervisor.models.gguf_files import CannotLook
from supervisor.store.blobs import ASIDE, Incoming, Unwritten, private, sync_folder
from supervisor.store.digests import BadDigest, Digest, parse_digest
from supervisor.store.errors import BlobMissing
from supervisor.store.layout import (
    BLOBS,
    DEPTH,
    MANIFESTS,
    blob_path,
    manifest_files,
    manifest_path,
    read_manifest_at,
)
from supervisor.store.manifest import BadManifest, Layer, Manifest, read_manifest, written
from supervisor.store.names import StoreName
from supervisor.store.partial import PARTIAL
from supervisor.store.splits import SPLITS, key_of, link_parts, parts_in, unlink_unused

UNUSED_S = 3600.0  # a blob without a model may be one whose model is made just now; as in Ollama
PARTIALS_S = 7 * 24 * 3600.0  # a download that nobody has gone on with

log = structlog.get_logger(__name__)


class OwnStore:
    """A store that may be changed: all but `hold` in the store's thread."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._manifests, self._blobs = Path(folder, MANIFESTS), Path(folder, BLOBS)
        self._held: Counter[Digest] = Counter()

    @contextmanager
    def hold(self, digests: Iterable[Digest]) -> Iterator[None]:
        """Within: none of these is removed, whoever deletes the model that has them."""
        held = tuple(digests)
        self._held.update(held)
        try:
            yield
        finally:
            self._held.subtract(held)

    def open(self, *, now: float | None = None) -> None:
        """Make the folders, clear what a killed daemon left. Raises Unwritable."""
        for folder in (self._manifests, self._blobs):
            with Unwritten(folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep(time.time() if now is None else now)

    def spelled(self, name: StoreName) -> StoreName:
        """The name as an existing manifest spells it; case does not count."""
        return next((known for known in self.names() if known.folded == name.folded), name)

    def manifest(self, name: StoreName) -> Manifest | None:
        """The model's manifest, None where there is none. Raises BadManifest, CannotLook."""
        try:
            return read_manifest_at(manifest_path(self.folder, self.spelled(name)))[0]
        except (FileNotFoundError, NotADirectoryError):
            return None

    def has(self, name: StoreName) -> bool:
        """Whether there is a manifest of that name, be it broken."""
        return os.path.isfile(manifest_path(self.folder, self.spelled(name)))

    def has_blob(self, digest: Digest, *, size_bytes: int | None = None) -> bool:
        """Whether the blob is there, a file, and of that size."""
        try:
            found = os.stat(blob_path(self.folder, digest))
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and size_bytes in (None, found.st_size)

    def partial_bytes(self, digest: Digest) -> int:
        """What an unfinished download of it takes on the disk."""
        try:
            return os.stat(f"{blob_path(self.folder, digest)}{PARTIAL}").st_blocks * 512
        except OSError:
            return 0

    def put_blob(self, media_type: str, data: bytes) -> Layer:
        """A small blob, whole, as a layer. Raises NoRoom, Unwritable."""
        with Incoming(self.folder) as incoming:
            incoming.write(data)
            if not self.has_blob(incoming.digest, size_bytes=len(data)):
                incoming.keep()
            return Layer(media_type, incoming.digest, len(data))

    def put_manifest(self, name: StoreName, manifest: Manifest, data: bytes = b"") -> None:
        """The model is there from now on, in the place of one of its name.

        `data`: the manifest as it came, where it came from elsewhere: its digest is that of these
        bytes. Raises BlobMissing where one of its blobs is not whole, NoRoom, Unwritable.
        """
        for layer in manifest.all_layers:
            if not self.has_blob(layer.digest, size_bytes=layer.size_bytes):
                raise BlobMissing(layer.digest)
        path = Path(manifest_path(self.folder, self.spelled(name)))
        before = self._read(path)
        if parts := parts_in(manifest):
            with Unwritten(Path(self.folder, SPLITS)):
                link_parts(self.folder, parts)
        self._replace(path, data or written(manifest))
        if before is not None:
            self._remove_unused(before)

    def copy_manifest(self, source: StoreName, destination: StoreName) -> None:
        """The model is there under another name too, the same to the byte.

        Raises BadManifest, BlobMissing, NoRoom, Unwritable.
        """
        data = read_kept(Path(manifest_path(self.folder, self.spelled(source))))
        self.put_manifest(destination, read_manifest(data), data)

    def _replace(self, path: Path, data: bytes) -> None:
        fresh = path.with_name(f"{ASIDE}{path.name}")
        with Unwritten(path):
            for folder in reversed(path.parents[:DEPTH]):
                folder.mkdir(mode=0o700, exist_ok=True)
            fresh.unlink(missing_ok=True)  # never opened: a pipe would wait, a link lead elsewhere
            with open(fresh, "xb", opener=private) as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(path)
            for folder in path.parents[:DEPTH]:
                sync_folder(folder)

    def remove(self, name: StoreName) -> bool:
        """The model is gone, and its blobs but for those that others need; False: none there.

        Raises Unwritable.
        """
        path = Path(manifest_path(self.folder, self.spelled(name)))
        before = self._read(path)
        with Unwritten(path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return False
            sync_folder(path.parent)
        self._remove_empty(path.parent)
        if before is not None:
            self._remove_unused(before)
        return True

    def names(self) -> Iterator[StoreName]:
        """Every model that is there; none where the folder is gone. Raises CannotLook."""
        try:
            yield from (file.name for file in manifest_files(self.folder))
        except FileNotFoundError:
            return
        except OSError as exc:
            raise CannotLook(path=str(self._manifests), why=exc.strerror or str(exc)) from exc

    def _read(self, path: Path) -> Manifest | None:
        with suppress(FileNotFoundError, NotADirectoryError, BadManifest, CannotLook):
            return read_manifest_at(str(path))[0]
        return None

    def _all(self) -> tuple[Manifest, ...] | None:
        """Every manifest; None where one cannot be read: it may name any blob."""
        try:
            files = tuple(manifest_files(self.folder))
        except OSError:
            return None
        manifests = [self._read(Path(file.path)) for file in files]
        return None if None in manifests else tuple(m for m in manifests if m is not None)

    def _remove_unused(self, before: Manifest) -> None:
        """What only the model needed that is gone."""
        manifests = self._all()
        if manifests is None:
            return
        for digest in {layer.digest for layer in before.all_layers} - _used_by(manifests):
            if not self._held[digest]:
                with suppress(OSError):  # the next sweep tries again
                    os.unlink(blob_path(self.folder, digest))
        if parts_in(before):
            self._remove_links(manifests)

    def _remove_links(self, manifests: Iterable[Manifest]) -> None:
        used = frozenset(key_of(parts) for each in manifests if (parts := parts_in(each)))
        with suppress(OSError):  # the next sweep tries again
            unlink_unused(self.folder, used)

    def _remove_empty(self, folder: Path) -> None:
        """Folders above a manifest that was the last in them."""
        with suppress(OSError):  # the first that holds something
            while folder != self._manifests:
                folder.rmdir()
                folder = folder.parent

    # At the start, when nobody else changes the store.

    def _sweep(self, now: float) -> None:
        removed = [path for path in self._manifests.rglob(f"{ASIDE}*") if _is_removed(path)]
        manifests = self._all()
        used = None if manifests is None else _used_by(manifests)
        for entry in os.scandir(self._blobs):
            if _is_left(entry, used, now=now) and _is_removed(Path(entry.path)):
                removed.append(Path(entry.path))
        for folder in sorted(self._manifests.rglob("*"), reverse=True):
            if folder.is_dir():
                with suppress(OSError):  # it holds something
                    folder.rmdir()
        if manifests is not None:
            self._remove_links(manifests)
            for parts in filter(None, map(parts_in, manifests)):
                with Unwritten(Path(self.folder, SPLITS)):
                    link_parts(self.folder, parts)
        if removed:
            log.info("store.swept", folder=self.folder, files=len(removed))


def _used_by(manifests: Iterable[Manifest]) -> set[Digest]:
    return {layer.digest for manifest in manifests for layer in manifest.all_layers}


def _is_left(entry: os.DirEntry[str], used: set[Digest] | None, *, now: float) -> bool:
    """Whether what lies among the blobs is of no use any more."""
    if entry.name.startswith(ASIDE):
        return True
    try:
        age_s = now - entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    if PARTIAL in entry.name:
        return age_s > PARTIALS_S
    try:
        digest = parse_digest(entry.name)
    except BadDigest:
        return False  # no file of ours
    return used is not None and digest not in used and age_s > UNUSED_S


def _is_removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
