"""supervisor.kept_file: whatever lies in the place of a kept file is answered at once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from planners.model import ModelId
from planners.plan import InstanceId
from supervisor.children.child_logs import open_child_logs
from supervisor.engines.engine_cache import EngineCache
from supervisor.kept_file import read_kept, replace_kept
from supervisor.preflight import PreflightCache

STRANGE = pytest.mark.parametrize(
    "make",
    [
        pytest.param(os.mkfifo, id="a pipe"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="a device without an end"),
        pytest.param(Path.mkdir, id="a folder"),
        pytest.param(lambda path: path.symlink_to(path), id="a link to itself"),
    ],
)
Make = Callable[[Path], object]


@STRANGE
def test_what_is_no_file_is_refused_without_a_wait(tmp_path: Path, make: Make) -> None:
    make(tmp_path / "kept.json")

    with pytest.raises(OSError, match=r"file|directory|symbolic links"):
        read_kept(tmp_path / "kept.json")


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_bytes(b"12345")

    assert read_kept(tmp_path / "kept.json", most_bytes=5) == b"12345"
    with pytest.raises(OSError, match="longer than 4 bytes"):
        read_kept(tmp_path / "kept.json", most_bytes=4)


@pytest.mark.parametrize("suffix", ["", ".new"])
def test_a_pipe_is_replaced_and_not_written_to(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"kept.json{suffix}")

    replace_kept(tmp_path / "kept.json", b"mine")

    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert (tmp_path / "kept.json").read_bytes() == b"mine"


@STRANGE
async def test_the_daemon_starts_anew_where_its_memories_are_no_files(
    tmp_path: Path, make: Make
) -> None:
    make(tmp_path / "engines.json")
    make(tmp_path / "preflights.json")

    with capture_logs() as logs:
        EngineCache(tmp_path / "engines.json", cpu="x").save()
        PreflightCache(tmp_path / "preflights.json").remember("key", {})

    told = {each["event"] for each in logs}
    assert {"engine.verdicts_unreadable", "dry_run.unreadable"} <= told


@STRANGE
async def test_a_log_that_is_no_file_holds_up_neither_its_child_nor_its_reader(
    tmp_path: Path, make: Make
) -> None:
    async with open_child_logs(tmp_path) as logs:
        with logs.open(ModelId("m"), InstanceId("i1")) as log:
            make(log.path)
            log.write("a line")
            assert await logs.last(ModelId("m"), 5) == ()
