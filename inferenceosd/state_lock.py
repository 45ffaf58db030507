"""One daemon per state folder: a lock that the kernel drops however its holder ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StateLocked(Exception):
    """Another daemon owns the state folder."""

    def __init__(self, *, folder: Path, holder: str) -> None:
        self.folder, self.holder = folder, holder
        super().__init__(
            f"another inferenceosd ({holder}) uses {folder}; stop it, or choose with --state-dir"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Sole use of `folder` for as long as the block lasts. Raises StateLocked."""
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            file.seek(0)
            raise StateLocked(folder=folder, holder=file.read(64).strip() or "pid unknown") from exc
        file.truncate(0)
        file.write(f"pid {os.getpid()}\n")
        file.flush()
        yield
