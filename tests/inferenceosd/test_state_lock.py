import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inferenceosd.state_lock import CannotLock, StateLocked, locked


def test_a_second_holder_is_told_who_is_the_first(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(StateLocked, match=f"pid {os.getpid()}"), locked(tmp_path):
        pass


def test_the_lock_is_free_again_after_the_block(tmp_path: Path) -> None:
    with locked(tmp_path):
        pass

    with locked(tmp_path):
        pass


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Path.mkdir, id="a folder"),
        pytest.param(lambda path: path.symlink_to(path), id="a link to itself"),
        pytest.param(lambda path: path.symlink_to("/dev/null"), id="a device"),
        pytest.param(os.mkfifo, id="a pipe"),
    ],
)
def test_what_is_no_file_in_the_locks_place_is_named(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "lock")

    with pytest.raises(CannotLock, match=f"cannot use {tmp_path}/lock: .*"), locked(tmp_path):
        pass


def test_a_killed_holder_leaves_no_lock_behind(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from inferenceosd.state_lock import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StateLocked), locked(tmp_path):
            pass
        holder.kill()

    with locked(tmp_path):
        pass
