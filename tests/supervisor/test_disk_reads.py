import os
import sys
from pathlib import Path

import pytest

from supervisor.disk_reads import bytes_read


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_reading_a_file_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(100_000))
    before = bytes_read(os.getpid())
    assert before is not None

    file.read_bytes()

    after = bytes_read(os.getpid())
    assert after is not None
    assert after - before >= 100_000


def test_a_process_that_is_gone_tells_nothing() -> None:
    assert bytes_read(2**22 + 1) is None
