"""supervisor.engines.scratch: folders for a moment, and those that a killed process left."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.engines.scratch import scratch_folder

HOLDER = """
import sys
from supervisor.engines.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "tiny.gguf").write_bytes(b"x")
    (folder / "cwd").mkdir(mode=0o500)
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@contextmanager
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a folder of its own."""
    argv, pipe = [sys.executable, "-c", HOLDER], subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_folder_is_private_and_gone_with_its_block(temporary: Path) -> None:
    with scratch_folder() as folder:
        mode = folder.stat().st_mode & 0o777
        (folder / "file").touch()

    assert mode == 0o700
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(temporary: Path) -> None:
    with holder() as (process, left):
        process.kill()
        process.wait()
    assert (left / "tiny.gguf").exists()

    with scratch_folder() as folder:
        found = list(temporary.iterdir())

    assert found == [folder]


def test_what_a_living_process_uses_stays() -> None:
    with holder() as (_, theirs), scratch_folder() as ours, scratch_folder() as another:
        assert (theirs / "tiny.gguf").exists()
        assert ours.exists()
        assert another.exists()


def test_a_link_in_place_of_a_folder_is_not_followed(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    (temporary / "ios-scratch-link").symlink_to(tmp_path)

    with scratch_folder():
        pass

    assert (tmp_path / "precious").exists()
