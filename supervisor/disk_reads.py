"""How much a process has read: what a load that says nothing is still seen to do."""

from pathlib import Path

_COUNTED = ("rchar", "read_bytes")  # read() calls, from the page cache too; pages off the disk


def bytes_read(pid: int) -> int | None:
    """Bytes that `pid` has read by now; None where the system does not tell.

    Source: /proc/PID/io, Linux alone. Both its counters, since a mapped file is in one only.
    """
    try:
        told = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return None
    fields = dict(line.split(": ", 1) for line in told.splitlines() if ": " in line)
    return sum(int(fields.get(name, 0)) for name in _COUNTED)
