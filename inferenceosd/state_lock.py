"""One daemon per state folder: a lock that the kernel drops however its holder ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


class StateLocked(Exception):
    """Another daemon owns the state folder."""

    def __init__(self, *, folder: Path, holder: str) -> None:
        self.folder, self.holder = folder, holder
        super().__init__(
            f"another inferenceosd ({holder}) uses {folder}; stop it, or choose with --state-dir"
        )


class CannotLock(Exception):
    """The lock's file is no file, or cannot be written."""

    def __init__(self, *, path: Path, why: str) -> None:
        self.path = path
        super().__init__(f"cannot use {path}: {why}; remove it, or choose with --state-dir")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Sole use of `folder` for as long as the block lasts. Raises StateLocked, CannotLock."""
    with ExitStack() as held:
        try:
            _lock(folder, held)
        except OSError as exc:
            raise CannotLock(path=folder / "lock", why=exc.strerror or str(exc)) from exc
        yield


def _lock(folder: Path, held: ExitStack) -> None:
    file = held.enter_context((folder / "lock").open("a+"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        file.seek(0)
        raise StateLocked(folder=folder, holder=file.read(64).strip() or "pid unknown") from exc
    file.truncate(0)
    file.write(f"pid {os.getpid()}\n")
    file.flush()
