"""How long a thread that is woken takes to run on another CPU.

Measured, once, since nothing tells it: some microseconds on a bare machine, 25 to 40 where a
virtual one has to wake a CPU that its host gave away meanwhile. In a process of its own, because
what is measured is pinned and forks.
"""

import subprocess
import sys
from pathlib import Path

from supervisor.devices import ping_pong
from supervisor.devices.kernel_files import ROOT

LIMIT_S = 2.0  # 0.1 s on a machine that has some time
_LEAST_S, _MOST_S = 1e-7, 0.1  # outside of these something else was measured


class WakeSource:
    """Measures at the first reading, and never again."""

    name = "wake-ups"

    def __init__(self, root: Path = ROOT) -> None:
        self._can_ask = root == ROOT  # a recorded tree has no CPUs to wake
        self._wake_s: float | None = None

    def read(self) -> float | None:
        """Seconds from one CPU to another; None on one CPU, or where it could not be measured.

        Blocks while it measures.
        """
        if self._can_ask:
            self._can_ask, self._wake_s = False, wake_s()
        return self._wake_s


def wake_s(program: str = ping_pong.__file__, *, limit_s: float = LIMIT_S) -> float | None:
    """What `program` says in its last line, within bounds; None where it says nothing useful."""
    try:
        told = subprocess.run(  # in the source's own thread
            [sys.executable, "-I", "-S", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            timeout=limit_s,
            start_new_session=True,  # Ctrl-C in a terminal is for the daemon
            check=True,
        ).stdout
        seconds = float(told[:40])
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return seconds if _LEAST_S <= seconds <= _MOST_S else None
