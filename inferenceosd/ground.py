"""The daemon's own folders: made, or refused in one sentence; what dead daemons left is cleared.

Knows nothing of what is served; blocks, and runs before the first task.
"""

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil

from supervisor.desired import Ground

RUN_PREFIX = "c-"  # of the folder with our children's sockets; short, socket paths are 107 bytes


class CannotUseFolder(Exception):
    """A folder of the daemon's own that it cannot make or write."""

    def __init__(self, *, path: str, why: str, choose: str) -> None:
        self.path = path
        super().__init__(f"cannot use the folder {path}: {why}; choose another with {choose}")


def private_folder(path: str, *, choose: str) -> Path:
    """The folder, made with mode 0700 where it was missing. Raises CannotUseFolder."""
    folder = Path(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise CannotUseFolder(path=path, why=exc.strerror or str(exc), choose=choose) from exc
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CannotUseFolder(path=path, why="it is not ours to write", choose=choose)
    return folder


def clear_ground(runtime: Path, held: ExitStack) -> Ground:
    """A fresh 0700 folder for this daemon's children; those of dead daemons are removed.

    Raises CannotUseFolder.
    """
    for found in runtime.glob(f"{RUN_PREFIX}*"):
        if not _is_in_use(found):
            shutil.rmtree(found, ignore_errors=True)
    try:
        run_dir = Path(tempfile.mkdtemp(prefix=f"{RUN_PREFIX}{os.getpid()}-", dir=runtime))
    except OSError as exc:  # a full disk
        choose = "INFERENCEOSD_RUNTIME_DIR"
        why = exc.strerror or str(exc)
        raise CannotUseFolder(path=str(runtime), why=why, choose=choose) from exc
    held.callback(shutil.rmtree, run_dir, ignore_errors=True)
    cwd = run_dir / "cwd"
    cwd.mkdir(mode=0o500)
    return Ground(run_dir=run_dir, cwd=cwd, environ=dict(os.environ))


def keep_temporary_files_in(run_dir: Path, held: ExitStack) -> None:
    """Have what trials and dry runs make in passing end where the next daemon clears up.

    Elsewhere it would outlive a SIGKILL for ever. Children are not told: what they make is theirs.
    """
    held.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
    tempfile.tempdir = str(run_dir)


def _is_in_use(run_dir: Path) -> bool:
    """True while the daemon that made it lives.

    One with our own pid is dead: in a container each daemon may have the pid of the one before.
    """
    pid = run_dir.name.removeprefix(RUN_PREFIX).partition("-")[0]
    return pid.isdecimal() and int(pid) != os.getpid() and psutil.pid_exists(int(pid))
