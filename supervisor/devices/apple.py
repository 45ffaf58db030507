"""Apple's GPU: no card, but a share of the one memory, as sysctl tells it."""

import platform
import re
import subprocess
import sys

from planners.hardware import DeviceKind, Note, NoteKind
from planners.sizes import GIB, MIB
from supervisor.devices.sighting import Reading, Sighting

_SYSCTL = ("/usr/sbin/sysctl", "hw.memsize", "iogpu.wired_limit_mb", "machdep.cpu.brand_string")
_SYSCTL_S = 5.0
_SMALL_BYTES = 36 * GIB  # up to here Metal lets the GPU wire 2/3 of the memory, above it 3/4


class AppleSource:
    """The GPU of an Apple silicon Mac; nothing anywhere else."""

    name = "apple"

    def read(self) -> Reading:
        """One device on Apple silicon."""
        if sys.platform != "darwin" or platform.machine() != "arm64":
            return Reading()
        try:
            told = subprocess.run(  # in the source's own thread
                _SYSCTL, capture_output=True, text=True, timeout=_SYSCTL_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            return Reading(notes=(Note(NoteKind.DRIVER, f"sysctl: {exc}"),))
        return parse_sysctl(told.stdout)


def parse_sysctl(text: str) -> Reading:
    """The GPU in the output of sysctl. Free is unknown: only Metal can tell it."""
    found = dict(re.findall(r"^([\w.]+): (.*)$", text, re.MULTILINE))
    if not (memory := found.get("hw.memsize", "")).isdecimal():
        return Reading(notes=(Note(NoteKind.DRIVER, "sysctl: hw.memsize is missing"),))
    memory_bytes = int(memory)
    # Older systems have no iogpu key; 0 means the system's default.
    wired_mib = int(found.get("iogpu.wired_limit_mb", "0") or 0)
    return Reading(
        (
            Sighting(
                source=AppleSource.name,
                name=found.get("machdep.cpu.brand_string", "Apple GPU"),
                kind=DeviceKind.INTEGRATED,
                total_bytes=wired_mib * MIB if wired_mib else _default_limit_bytes(memory_bytes),
                free_bytes=None,
            ),
        )
    )


def _default_limit_bytes(memory_bytes: int) -> int:
    if memory_bytes <= _SMALL_BYTES:
        return memory_bytes * 2 // 3
    return memory_bytes * 3 // 4
