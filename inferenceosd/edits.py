"""When an edit of a file is over: most editors write in place, and for a moment it is empty."""

import asyncio
import os
import time

WRITTEN_S = 0.2  # unchanged for so long: a program writes a file of ours in far less
MOST_LOOKS = 10  # a file that is written for ever is read all the same


async def until_written(file: str | None) -> None:
    """Return once the file was left alone for WRITTEN_S, or after MOST_LOOKS of them."""
    for _ in range(MOST_LOOKS):
        try:
            age_s = time.time() - os.stat(file or "").st_mtime
        except OSError:
            return
        if not 0.0 <= age_s < WRITTEN_S:  # below: by a clock that was set back
            return
        await asyncio.sleep(WRITTEN_S - age_s)
