"""Folders for a trial or a dry run, gone with the block; what a killed process left goes later.

Whose folder is in use is told by a lock on it, which the kernel drops however its holder ends.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

PREFIX = "ios-scratch-"
MOST_TRIES = 5  # to have a folder that nobody took for a left one before it was locked
SOCKET_ROOM_BYTES = 70  # of the kernel's 107 for a socket's path, less our own names


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A fresh 0700 folder; those that killed processes of ours left are removed. Raises OSError."""
    parent = _parent()
    _clear(parent)
    folder, lock = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _parent() -> Path:
    """The usual folder; /tmp where a socket's path would pass the kernel's 107 bytes."""
    usual = gettempdir()
    return Path("/tmp" if len(os.fsencode(usual)) > SOCKET_ROOM_BYTES else usual)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    for _ in range(MOST_TRIES):
        folder = Path(mkdtemp(prefix=PREFIX, dir=parent))
        if (lock := _lock_of(folder)) is not None:
            return folder, lock
    raise OSError(f"no folder of ours stays in {parent}")


def _lock_of(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where another process has it, or took it."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_uid == os.geteuid() and folder.stat().st_ino == os.fstat(lock).st_ino:
            return lock
    except OSError:
        pass  # somebody holds it, or has removed it since
    os.close(lock)
    return None


def _clear(parent: Path) -> None:
    """Remove what processes that were killed left. What cannot be removed stays."""
    with suppress(OSError):
        for left in parent.glob(f"{PREFIX}*"):
            if (lock := _lock_of(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)
