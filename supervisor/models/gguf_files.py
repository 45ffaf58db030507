"""GGUF files on disk: a bounded walk through folders, split models put together, headers read.

Blocking, so the catalogue calls it in its own thread. Knows no settings, and no names but paths.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator

from msgspec import Struct

from planners.ggml.header import MAX_HEADER_BYTES, GgufHeader
from planners.gguf import GgufError, GgufKind, NeedMore, model_info, read_header
from planners.model import BrokenFile, BrokenKind, ModelInfo
from supervisor.errors import SupervisorError
from supervisor.models.gguf_names import SUFFIX, part_name, part_of, stem_of
from supervisor.printable import printable

MAX_DEPTH = 16  # folders below a configured one; a Hugging Face cache nests four
MAX_ENTRIES = 200_000  # directory entries looked at in one sweep
FIRST_READ_BYTES = 1 << 20  # holds the header of models with small vocabularies

_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}
"""What says nothing of any file: we cannot look just now."""
_ITS_DISKS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN}
"""What says nothing of the file but that its disk cannot tell just now; others may be well."""


class CannotLook(SupervisorError):
    """Whether files came or went cannot be told at the moment."""

    def __init__(self, *, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{printable(path)} cannot be looked at just now: {why}")


class DiskFailed(CannotLook):
    """Likewise of one file or folder, whose disk does not answer."""


def raise_if_passing(exc: OSError, *, path: str) -> None:
    """Raise CannotLook, or DiskFailed, for an error that must not pass for a file's absence."""
    if exc.errno in _OURS:
        raise CannotLook(path=path, why=_reason(exc)) from exc
    if exc.errno in _ITS_DISKS:
        raise DiskFailed(path=path, why=_reason(exc)) from exc


class FileStat(Struct, frozen=True):
    """One regular file as it is now."""

    path: str
    size_bytes: int
    modified_ns: int
    device: int
    inode: int

    @property
    def key(self) -> str:
        """Changes when the file does."""
        return f"{self.size_bytes}-{self.modified_ns}-{self.device}-{self.inode}"


class ModelFile(Struct, frozen=True):
    """The file, or all the parts, of one model."""

    name: str
    """Its path below the configured folder, without .gguf and part numbers."""
    parts: tuple[FileStat, ...]
    aliases: tuple[str, ...] = ()
    """Other names of it, by where it lies."""

    @property
    def path(self) -> str:
        """What llama-server is given: the first part."""
        return self.parts[0].path

    @property
    def folder(self) -> str:
        """Where it lies."""
        return os.path.dirname(self.path)

    @property
    def stem(self) -> str:
        """The file's own name, without .gguf and part numbers."""
        stem = stem_of(os.path.basename(self.path))
        part = part_of(stem)
        return part.base if part else stem

    @property
    def size_bytes(self) -> int:
        """Of all parts."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def modified_ns(self) -> int:
        """When the youngest part was written, in UTC."""
        return max(part.modified_ns for part in self.parts)

    @property
    def key(self) -> str:
        """Changes when any part does."""
        return "+".join(part.key for part in self.parts)


class Sweep(Struct, frozen=True):
    """What lies in the folders."""

    files: tuple[ModelFile, ...]
    broken: tuple[BrokenFile, ...]
    unseen: tuple[str, ...] = ()
    """Paths of files and folders whose disk does not answer; each is among `broken` too."""


def sweep(
    folders: Iterable[str],
    *,
    max_entries: int = MAX_ENTRIES,
    but_for: frozenset[str] = frozenset(),
    follows_folders: bool = True,
) -> Sweep:
    """Every GGUF file in `folders` and below, in order. Hidden files and folders are left alone.

    So are those whose path is in `but_for`, and, unless `follows_folders`, links to folders.
    Raises CannotLook where we cannot look at anything.
    """
    files: list[ModelFile] = []
    walk = _Walk(max_entries, but_for, follows_folders=follows_folders)
    for folder in folders:
        for here, found in walk.through(folder):
            below = os.path.relpath(here, folder)
            prefix = "" if below == "." else below.replace(os.sep, "/") + "/"
            whole, broken = _put_together(found, prefix=prefix)
            files += whole
            walk.broken += broken
    return Sweep(tuple(files), tuple(walk.broken), tuple(walk.unseen))


def file_at(path: str, *, name: str) -> ModelFile | BrokenFile:
    """The model whose only or first file is `path`. Raises CannotLook."""
    part = part_of(stem_of(path))
    paths = [path]
    if part and part.number == 1:
        numbers = range(1, part.count + 1)
        paths = [part_name(part.base, n, part.count) for n in numbers]
    parts = []
    for number, part_path in enumerate(paths, start=1):
        found = stat_of(part_path)
        if isinstance(found, str):
            of = f"part {number} of {len(paths)}: " if len(paths) > 1 else ""
            kind = BrokenKind.INCOMPLETE if number > 1 else BrokenKind.ABSENT
            return BrokenFile(path, f"{of}{found}", kind=kind)
        parts.append(found)
    return ModelFile(name, tuple(parts))


def stat_of(path: str) -> FileStat | str:
    """The regular file at `path`, links followed, or why there is none. Raises CannotLook."""
    try:
        found = os.stat(path)
    except OSError as exc:
        raise_if_passing(exc, path=path)
        return _reason(exc)
    if not stat.S_ISREG(found.st_mode):
        return "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
    return FileStat(path, found.st_size, found.st_mtime_ns, found.st_dev, found.st_ino)


def read_model(file: ModelFile) -> ModelInfo:
    """What the model is. Raises GgufError; OSError where the disk does."""
    return model_info([_header(part.path) for part in file.parts])


def _header(path: str) -> GgufHeader:
    # Read, not mapped: a file that shrinks under a mapping kills the process with SIGBUS.
    with open(path, "rb", opener=_open_at_once) as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):  # it took the file's place since the sweep
            raise GgufError(GgufKind.MALFORMED, "not a regular file")
        head, wanted_bytes = b"", FIRST_READ_BYTES
        while True:
            # None of what only waiting would bring, as some files of the kernel have it.
            head += stream.read(wanted_bytes - len(head)) or b""
            try:
                return read_header(head, file_bytes=found.st_size)
            except NeedMore as exc:
                if len(head) < wanted_bytes:
                    why = f"truncated: it ends at byte {len(head)}"
                    raise GgufError(GgufKind.TRUNCATED, why) from exc
                # At least fourfold, so that a header costs few attempts.
                wanted_bytes = min(max(exc.wanted_bytes, 4 * len(head)), MAX_HEADER_BYTES)


def _open_at_once(path: str, flags: int) -> int:
    """Opens without waiting for a writer, which a named pipe would have us do."""
    return os.open(path, flags | os.O_NONBLOCK)


def _reason(exc: OSError) -> str:
    return (exc.strerror or str(exc)).lower()


def _put_together(
    found: list[FileStat], *, prefix: str
) -> tuple[list[ModelFile], list[BrokenFile]]:
    """The models whose files lie in one folder."""
    files: list[ModelFile] = []
    split: dict[tuple[str, int], dict[int, FileStat]] = {}
    for file in found:
        stem = stem_of(os.path.basename(file.path))
        part = part_of(stem)
        if part is None:
            files.append(ModelFile(prefix + stem, (file,)))
        else:
            split.setdefault((part.base, part.count), {})[part.number] = file
    broken = []
    for (base, count), parts in split.items():
        missing = next((n for n in range(1, count + 1) if n not in parts), None)
        if missing is None:
            files.append(ModelFile(prefix + base, tuple(parts[n] for n in range(1, count + 1))))
        else:
            lost = part_name(base, missing, count)
            first = min(parts.items())[1].path
            reason = f"part {missing} of {count} is missing: {lost}"
            broken.append(BrokenFile(first, reason, kind=BrokenKind.INCOMPLETE))
    return files, broken


class _Walk:
    """One sweep's progress: where it has been, and how much it may still look at."""

    def __init__(self, max_entries: int, but_for: frozenset[str], *, follows_folders: bool) -> None:
        self._seen: set[tuple[int, int]] = set()
        self._but_for, self._follows = but_for, follows_folders
        self._max_entries = self._entries_left = max_entries
        self.broken: list[BrokenFile] = []
        self.unseen: list[str] = []

    def through(self, folder: str) -> Iterator[tuple[str, list[FileStat]]]:
        """Each folder from `folder` down, with the GGUF files in it, by name."""
        waiting = [(folder, 0)]
        while waiting and self._entries_left > 0:
            here, depth = waiting.pop()
            try:
                entries = self._entries(here)
            except OSError as exc:
                self._cannot_search(here, exc)
                continue
            files = [found for entry in entries if (found := self._file(entry)) is not None]
            yield here, files
            if depth < MAX_DEPTH:
                folders = [entry.path for entry in entries if self._leads_on(entry)]
                waiting += [(p, depth + 1) for p in reversed(folders) if p not in self._but_for]
        if self._entries_left <= 0:
            reason = f"more than {self._max_entries} entries: the rest is not looked at"
            self.broken.append(BrokenFile(folder, reason, kind=BrokenKind.FOLDER))

    def _cannot_search(self, folder: str, exc: OSError) -> None:
        try:
            raise_if_passing(exc, path=folder)
        except DiskFailed:
            self.unseen.append(folder)
        reason = f"cannot be searched: {_reason(exc)}"
        self.broken.append(BrokenFile(printable(folder), reason, kind=BrokenKind.FOLDER))

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        """What lies in `folder`, by name; nothing where a link led here before. Raises OSError."""
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in self._seen:
            return []
        self._seen.add((found.st_dev, found.st_ino))
        entries: list[os.DirEntry[str]] = []
        with os.scandir(folder) as listing:
            for entry in listing:
                self._entries_left -= 1
                if self._entries_left <= 0:
                    break
                if not entry.name.startswith("."):
                    entries.append(entry)
        return sorted(entries, key=lambda entry: entry.name)

    def _leads_on(self, entry: os.DirEntry[str]) -> bool:
        return _is_folder(entry) and (self._follows or not entry.is_symlink())

    def _file(self, entry: os.DirEntry[str]) -> FileStat | None:
        if not entry.name.lower().endswith(SUFFIX) or _is_folder(entry):
            return None
        if not entry.path.isprintable():  # nor could any list of models that it stood in
            self.broken.append(BrokenFile(printable(entry.path), "its name cannot be printed"))
            return None
        try:
            found = stat_of(entry.path)
        except DiskFailed as exc:
            self.unseen.append(entry.path)
            found = f"cannot be looked at just now: {exc.why}"
        if isinstance(found, str):
            self.broken.append(BrokenFile(entry.path, found))
            return None
        return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a loop of links: neither folder nor file
