"""inferenceosd.edits: a file is read once its edit is over."""

import asyncio
import os
from pathlib import Path

from inferenceosd.edits import until_written


async def test_a_file_that_is_empty_in_the_midst_of_its_edit_is_not_taken_as_it_is(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("")

    waiting = asyncio.create_task(until_written(str(file)))
    await asyncio.sleep(0)
    assert not waiting.done()
    file.write_text("[fleet]\n")
    await waiting

    assert file.read_text() == "[fleet]\n"


async def test_what_was_left_alone_or_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    old = tmp_path / "old.toml"
    old.touch()
    os.utime(old, (1, 1))

    for file in (str(old), str(tmp_path / "none.toml"), None):
        waiting = asyncio.create_task(until_written(file))
        await asyncio.sleep(0)
        assert waiting.done()
