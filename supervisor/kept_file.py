"""Small files that the daemon keeps for its next start: read at once, replaced in one step.

Anybody who reaches the state folder may have put something else in their place: a pipe, a folder, a
device that never ends.
"""

import errno
import os
import stat
from pathlib import Path

MAX_BYTES = 16 << 20  # the largest of ours, the dry runs of every model, stay below one MiB


def read_kept(path: Path, *, most_bytes: int = MAX_BYTES) -> bytes:
    """What the file holds. Raises OSError, also where it is no regular file, or longer."""
    with open(path, "rb", opener=open_at_once) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is longer than {most_bytes} bytes", str(path))
    return data


def replace_kept(path: Path, data: bytes) -> None:
    """Put `data` in the place of what is there. Raises OSError; then the old file is whole."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)  # never opened: writing to a pipe would wait for its reader
    with fresh.open("xb") as stream:
        stream.write(data)
    fresh.replace(path)


def open_at_once(path: str, flags: int) -> int:
    """An opener that waits for no writer, which a named pipe would have us do."""
    return os.open(path, flags | os.O_NONBLOCK)
