"""Slot files: a conversation's cache on disk, for as long as it is between two children.

Children write and read them (`/slots/ID?action=…`); here it is decided under which name, how many
bytes they may take, and when they go. Of what is in them, planners.moving.slot_file knows.
"""

import asyncio
import os
import re
import stat
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import httpx
import msgspec
from msgspec.structs import replace

from planners.moving.slot_file import (
    SlotFileError,
    SlotMemory,
    Span,
    bridged,
    reading,
    reading_ids,
)
from planners.sizes import format_size
from supervisor.errors import SupervisorError

FILE_MODE = 0o600
KEEP_FREE_BYTES = 256 << 20  # of the disk: others write there too
REPLY_BYTES = 64 << 10
COPY_BYTES = 1 << 20
_NAME = re.compile(r"slot-\d{1,6}-\d{1,12}\.bin", re.ASCII)
_FOLDERS = "*.slots"
_CLOSE = {"Connection": "close"}  # a child hangs up on an idle connection when it likes

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SlotError(SupervisorError):
    """A slot's cache could not be carried; its text has to be computed again."""


class NoRoomForSlot(SlotError):
    """A file would take more than the quota, or than the disk has to spare."""

    def __init__(self, *, wanted_bytes: int, spare_bytes: int, where: str) -> None:
        self.wanted_bytes, self.spare_bytes = wanted_bytes, spare_bytes
        super().__init__(
            f"a slot file of {format_size(wanted_bytes)} finds no room:"
            f" {where} has {format_size(max(0, spare_bytes))} to spare"
        )


class SlotNotSaved(SlotError):
    """A child did not write a slot's file, or wrote something else."""

    def __init__(self, *, slot: int, why: str) -> None:
        self.slot, self.why = slot, why
        super().__init__(f"slot {slot} was not saved: {why}")


class SlotNotRestored(SlotError):
    """A child did not take over what a file holds; its slot is empty now."""

    def __init__(self, *, slot: int, why: str) -> None:
        self.slot, self.why = slot, why
        super().__init__(f"slot {slot} was not restored: {why}")


class SlotDoor(msgspec.Struct, frozen=True):
    """Where a child takes orders about its slots, and the folder it saves them to."""

    client: httpx.AsyncClient
    """Of its own, so that no connection is idle when an order is sent."""
    folder: Path


class SavedSlot(msgspec.Struct, frozen=True):
    """A slot's file, whole and checked."""

    path: Path
    n_tokens: int
    n_bytes: int


class _Saved(msgspec.Struct):
    n_saved: int
    n_written: int


class _Restored(msgspec.Struct):
    n_restored: int
    n_read: int


class _Error(msgspec.Struct):
    message: str = ""


class _Refused(msgspec.Struct):
    error: _Error = msgspec.field(default_factory=_Error)


_SAVED = msgspec.json.Decoder(_Saved)
_RESTORED = msgspec.json.Decoder(_Restored)
_REFUSED = msgspec.json.Decoder(_Refused)


class SlotShelf:
    """All slot files there are, within one quota. They are copied by a thread of their own."""

    def __init__(
        self,
        *,
        quota_bytes: int,
        thread: ThreadPoolExecutor,
        keep_free_bytes: int = KEEP_FREE_BYTES,
    ) -> None:
        self._quota_bytes, self._keep_free_bytes = quota_bytes, keep_free_bytes
        self._thread = thread
        self._files: dict[Path, int] = {}
        self._serial = count(1)

    @property
    def used_bytes(self) -> int:
        """Of files on the shelf and of those being written."""
        return sum(self._files.values())

    async def save(
        self, door: SlotDoor, slot: int, *, expected_bytes: int, within_s: float
    ) -> SavedSlot:
        """Has a child write the cache of an idle slot. Raises NoRoomForSlot, SlotNotSaved.

        A busy slot's is written once it is idle: close its stream first.
        """
        with self._written(door.folder, slot, expected_bytes=expected_bytes) as path:
            try:
                told = await _ordered(
                    door, slot, "save", {"filename": path.name}, _SAVED, within_s=within_s
                )
                n_bytes = _checked_bytes(path)
            except (_Unanswered, OSError) as exc:
                raise SlotNotSaved(slot=slot, why=str(exc)) from exc
            if told.n_saved < 1:
                raise SlotNotSaved(slot=slot, why="it is empty")
            if n_bytes != told.n_written:
                why = f"the file has {n_bytes} bytes of the {told.n_written} that were told"
                raise SlotNotSaved(slot=slot, why=why)
            self._grown(path, n_bytes)
            return SavedSlot(path=path, n_tokens=told.n_saved, n_bytes=n_bytes)

    async def restore(
        self, door: SlotDoor, slot: int, saved: SavedSlot, *, within_s: float
    ) -> None:
        """Has a child read a file in its folder into a slot. Raises SlotNotRestored.

        That a child took it does not mean that it will use it: see migration.is_carried.
        """
        if saved.path.parent != door.folder or not _NAME.fullmatch(saved.path.name):
            raise SlotNotRestored(slot=slot, why=f"{saved.path} is no file of that child's")
        body = {"filename": saved.path.name}
        try:
            told = await _ordered(door, slot, "restore", body, _RESTORED, within_s=within_s)
        except _Unanswered as exc:
            raise SlotNotRestored(slot=slot, why=str(exc)) from exc
        if told.n_restored != saved.n_tokens:
            why = f"{told.n_restored} of {saved.n_tokens} tokens were read"
            raise SlotNotRestored(slot=slot, why=why)

    async def ids(self, saved: SavedSlot) -> tuple[int, ...]:
        """The slot's tokens, () where not all of it are. Raises SlotFileError, OSError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, _read, saved.path, reading_ids)

    def moved(self, saved: SavedSlot, folder: Path) -> SavedSlot:
        """The file in another child's folder. Raises OSError."""
        if saved.path.parent == folder:
            return saved
        path = folder / f"slot-0-{next(self._serial)}.bin"
        saved.path.rename(path)
        self._files[path] = self._files.pop(saved.path, saved.n_bytes)
        return replace(saved, path=path)

    async def bridge(
        self, saved: SavedSlot, memory: SlotMemory, *, n_stream: int, folder: Path
    ) -> SavedSlot:
        """The same file for a child of `n_stream` split slots, in `folder`; the old one goes.

        Raises NoRoomForSlot, SlotFileError, OSError; the old one stays then.
        """
        loop = asyncio.get_running_loop()
        steps = partial(reading, memory)
        layout = await loop.run_in_executor(self._thread, _read, saved.path, steps)
        if layout.n_stream in (None, n_stream):
            return self.moved(saved, folder)
        parts = bridged(layout, n_stream=n_stream)
        n_bytes = sum(len(part) if isinstance(part, bytes) else part.n_bytes for part in parts)
        with self._written(folder, 0, expected_bytes=n_bytes) as path:
            await loop.run_in_executor(self._thread, _rewrite, saved.path, path, parts)
        self.remove(saved)
        return replace(saved, path=path, n_bytes=n_bytes)

    def remove(self, saved: SavedSlot) -> None:
        """Takes a file from the shelf and from the disk; one that is gone is no error."""
        self._drop(saved.path)

    def _drop(self, path: Path) -> None:
        self._files.pop(path, None)
        with suppress(OSError):
            path.unlink()

    @contextmanager
    def _written(self, folder: Path, slot: int, *, expected_bytes: int) -> Iterator[Path]:
        """A new file with its room kept, empty so far; gone again where the block fails."""
        spare_bytes = self._quota_bytes - self.used_bytes
        if expected_bytes > spare_bytes:
            raise NoRoomForSlot(
                wanted_bytes=expected_bytes, spare_bytes=spare_bytes, where="the quota"
            )
        path = folder / f"slot-{slot}-{next(self._serial)}.bin"
        with ExitStack() as undone:
            self._files[path] = expected_bytes
            undone.callback(self._drop, path)
            _check_disk(folder, expected_bytes, keep_free_bytes=self._keep_free_bytes)
            _make_private(path)
            yield path
            undone.pop_all()

    def _grown(self, path: Path, n_bytes: int) -> None:
        """Counts what a file really takes. Raises NoRoomForSlot above the quota."""
        others_bytes = self.used_bytes - self._files[path]
        if others_bytes + n_bytes > self._quota_bytes:
            raise NoRoomForSlot(
                wanted_bytes=n_bytes,
                spare_bytes=self._quota_bytes - others_bytes,
                where="the quota",
            )
        self._files[path] = n_bytes


async def erase(door: SlotDoor, slot: int, *, within_s: float) -> None:
    """Empties an idle slot. Raises SlotError."""
    try:
        await _ordered(door, slot, "erase", {}, msgspec.json.Decoder(), within_s=within_s)
    except _Unanswered as exc:
        raise SlotError(f"slot {slot} was not erased: {exc}") from exc


def remove_left_files(run_dir: Path) -> int:
    """Removes the slot files that a daemon left behind, and their folders; gives their bytes.

    Blocks. Only to be called by the run folder's owner, before it has children.
    """
    n_bytes = 0
    for folder in run_dir.glob(_FOLDERS):
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            with suppress(OSError):  # a folder, or somebody else's: no file of a child's
                size = path.lstat().st_size
                path.unlink()
                n_bytes += size
        with suppress(OSError):
            folder.rmdir()
    return n_bytes


class _Unanswered(Exception):
    """An order was refused, or not understood, or not answered in time; says which."""


async def _ordered(
    door: SlotDoor,
    slot: int,
    action: str,
    body: Mapping[str, str],
    decoder: msgspec.json.Decoder[T],
    *,
    within_s: float,
) -> T:
    """What a child answers to an order. Raises _Unanswered."""
    path = f"/slots/{slot:d}?action={action}"
    reply = b""
    try:
        async with (
            asyncio.timeout(within_s),
            door.client.stream(
                "POST", path, json=dict(body), headers=_CLOSE, timeout=None
            ) as response,
        ):
            async for part in response.aiter_bytes():
                reply += part
                if len(reply) > REPLY_BYTES:
                    raise _Unanswered(f"its answer is over {REPLY_BYTES} bytes")
    except TimeoutError as exc:
        raise _Unanswered(f"no answer within {within_s:g} s") from exc
    except httpx.TransportError as exc:
        raise _Unanswered(f"the child is not there ({exc})") from exc
    try:
        if response.status_code != httpx.codes.OK:
            raise _Unanswered(_REFUSED.decode(reply).error.message or "refused without a word")
        return decoder.decode(reply)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _Unanswered(f"an answer of another shape ({exc})") from exc


def _check_disk(folder: Path, wanted_bytes: int, *, keep_free_bytes: int) -> None:
    disk = os.statvfs(folder)
    spare_bytes = disk.f_bavail * disk.f_frsize - keep_free_bytes
    if wanted_bytes > spare_bytes:
        raise NoRoomForSlot(wanted_bytes=wanted_bytes, spare_bytes=spare_bytes, where=str(folder))


def _make_private(path: Path) -> None:
    """An empty file that others cannot read: a child would make it by its umask, 0644."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, FILE_MODE))


def _checked_bytes(path: Path) -> int:
    """The bytes of what a child wrote. Raises OSError where it is no private file of ours."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise OSError(f"{path} is no plain file any more")
    if stat.S_IMODE(found.st_mode) != FILE_MODE:
        path.chmod(FILE_MODE)
    return found.st_size


class _Steps(Protocol[T_co]):
    """What wants parts of a file, by the bytes that it has."""

    def __call__(self, *, file_bytes: int) -> Generator[Span, bytes, T_co]: ...


def _read(path: Path, begin: _Steps[T]) -> T:
    """What the steps make of a file. Raises SlotFileError, OSError."""
    with _opened(path) as descriptor:
        steps = begin(file_bytes=os.fstat(descriptor).st_size)
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(os.pread(descriptor, wanted.n_bytes, wanted.at))
        except StopIteration as done:
            found: T = done.value
            return found


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _rewrite(source: Path, target: Path, parts: Sequence[bytes | Span]) -> None:
    """Fills an empty file with parts of another. Raises SlotFileError, OSError."""
    opened = os.open(target, os.O_WRONLY | os.O_NOFOLLOW)
    with _opened(source) as descriptor, open(opened, "wb", buffering=COPY_BYTES) as file:
        for part in parts:
            if isinstance(part, bytes):
                file.write(part)
            else:
                _copy(part, descriptor, file)


def _copy(part: Span, source: int, file: BinaryIO) -> None:
    at = part.at
    while at < part.end:
        data = os.pread(source, min(COPY_BYTES, part.end - at), at)
        if not data:
            raise SlotFileError(f"truncated while it was copied, at {at}")
        file.write(data)
        at += len(data)
