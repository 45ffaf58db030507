"""inferenceosd.ground: the daemon's own folders."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from inferenceosd.ground import RUN_PREFIX, clear_ground


@pytest.fixture
def dead_pid() -> int:
    """Of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(30)
    return process.pid


@pytest.fixture
def living_pid() -> Iterator[int]:
    """Of another process that lives as long as the test."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def left_behind(runtime: Path, pid: object) -> Path:
    folder = runtime / f"{RUN_PREFIX}{pid}-abcdef"
    folder.mkdir()
    (folder / "i1.sock").touch()
    return folder


def test_the_ground_is_private_and_goes_with_the_daemon(tmp_path: Path) -> None:
    with ExitStack() as held:
        ground = clear_ground(tmp_path, held)

        assert stat.S_IMODE(ground.run_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(ground.cwd.stat().st_mode) == 0o500

    assert list(tmp_path.iterdir()) == []


def test_what_dead_daemons_left_is_removed(tmp_path: Path, dead_pid: int) -> None:
    left = [left_behind(tmp_path, pid) for pid in (dead_pid, "odd")]

    with ExitStack() as held:
        clear_ground(tmp_path, held)

        assert [folder.exists() for folder in left] == [False, False]


def test_a_dead_daemon_of_our_own_pid_is_no_living_one(tmp_path: Path) -> None:
    left = left_behind(tmp_path, os.getpid())

    with ExitStack() as held:
        clear_ground(tmp_path, held)

        assert not left.exists()


def test_the_folder_of_a_living_daemon_and_all_else_stays(tmp_path: Path, living_pid: int) -> None:
    kept = [left_behind(tmp_path, living_pid), tmp_path / "admin.sock"]
    kept[1].touch()

    with ExitStack() as held:
        clear_ground(tmp_path, held)

    assert [path.exists() for path in kept] == [True, True]
