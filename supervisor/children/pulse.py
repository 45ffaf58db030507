"""What the kernel tells of a process's work, processor time and disk reads, and of its killings."""

import os
import re
import sys

import psutil
from msgspec import Struct

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Work(Struct, frozen=True):
    """What it has done so far, and whether it would do more now."""

    cpu_s: float
    """Of all its threads, in user and kernel mode."""
    disk_reads: int
    """Pages that it waited for, and blocks it read; 0 where the kernel does not tell."""
    bytes_read: int
    """By read() calls, out of the page cache too; of files and of whatever else it reads."""
    is_runnable: bool
    """Its main thread, which decodes, runs or waits for a processor."""


def work_of(pid: int) -> Work | None:
    """What a process has done so far; None once it is gone, or while it cannot be read."""
    try:
        return _linux_work(pid) if sys.platform == "linux" else _portable_work(pid)
    except (OSError, psutil.Error):
        return None


def kernel_kills() -> int | None:
    """Processes that it has killed for want of memory, on all of the machine, since it booted.

    Those that a control group's limit cost are among them. None where it does not tell.
    """
    try:
        with open("/proc/vmstat", "rb") as file:
            found = re.search(rb"^oom_kill (\d+)$", file.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def _linux_work(pid: int) -> Work:
    with open(f"/proc/{pid}/stat", "rb") as file:
        # After the name, which may hold anything: state is field 3 of proc(5), and the first here.
        fields = file.read().rpartition(b")")[2].split()
    major_faults, ticks = int(fields[9]), int(fields[11]) + int(fields[12])
    told = _io(pid)
    reads = major_faults + told.get(b"read_bytes", 0) // 512
    is_runnable = fields[0] == b"R"
    return Work(ticks / _TICKS_PER_S, reads, told.get(b"rchar", 0), is_runnable)


def _io(pid: int) -> dict[bytes, int]:
    """The kernel's counts of what it read and wrote; {} where they are not ours to see."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            lines = (line.split(b": ") for line in file.read().splitlines())
            return {name: int(count) for name, count in lines}
    except PermissionError:  # in some sandboxes one's own children are out of sight
        return {}


def _portable_work(pid: int) -> Work:
    process = psutil.Process(pid)
    used = process.cpu_times()
    is_runnable = process.status() == psutil.STATUS_RUNNING
    return Work(used.user + used.system, 0, 0, is_runnable)
