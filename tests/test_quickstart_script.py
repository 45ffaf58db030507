import ctypes.util
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.quickstart import OPENMP, REQUIREMENTS, fetch_openmp, unpack_openmp

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


@pytest.mark.parametrize("name", ["quickstart.txt", "quickstart-openmp.txt", "llama.cpp.txt"])
def test_everything_fetched_is_pinned_by_version_and_hash(name: str) -> None:
    text = (REQUIREMENTS / name).read_text().replace("\\\n", " ")
    wanted = [line for line in text.splitlines() if line and not line.startswith("#")]

    assert wanted
    for line in wanted:
        assert re.fullmatch(r"[\w.-]+==[\w.]+ .*--hash=sha256:[0-9a-f]{64}", line), line


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
