import os
from pathlib import Path

import pytest

from planners.sizes import MIB
from supervisor.devices.storage import StorageSource, read_bytes_per_s


def model(folder: Path, *, size_bytes: int) -> None:
    (folder / "models").mkdir()
    (folder / "models" / "a.gguf").write_bytes(os.urandom(size_bytes))
    os.sync()  # what is not on the disk yet cannot be read from it


def test_a_disk_is_measured_by_reading_a_model_past_the_cache(tmp_path: Path) -> None:
    model(tmp_path, size_bytes=24 * MIB)

    rate = read_bytes_per_s(str(tmp_path))

    assert (rate is not None) is takes_direct_reads(tmp_path / "models" / "a.gguf")
    assert rate is None or MIB < rate < 100e9


def takes_direct_reads(path: Path) -> bool:
    """False where the temporary folder lies in memory, on kernels before 6.6."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("size_bytes", [0, MIB])
def test_without_a_model_of_some_size_the_speed_is_unknown(tmp_path: Path, size_bytes: int) -> None:
    model(tmp_path, size_bytes=size_bytes)

    assert read_bytes_per_s(str(tmp_path)) is None


def test_a_folder_tells_what_is_free_and_a_missing_one_is_left_out(tmp_path: Path) -> None:
    source = StorageSource((str(tmp_path), str(tmp_path / "missing")))

    (here,) = source.read()

    assert here.folder == str(tmp_path)
    assert here.free_bytes is not None
    assert here.read_bytes_per_s is None
