"""Whether the machine slept since somebody last asked."""

import sys
import time

SLEPT_S = 1.0  # less is the jitter between two readings of two clocks


def suspended_s() -> float:
    """Seconds that this machine has spent suspended since it booted; 0.0 where nobody tells.

    The difference of two monotonic clocks, so that setting the wall clock never looks like sleep:
    on Linux CLOCK_BOOTTIME counts sleep and CLOCK_MONOTONIC does not; on macOS CLOCK_MONOTONIC
    does and CLOCK_UPTIME_RAW does not.
    """
    if sys.platform == "linux":
        # First, so that no difference is below 0.
        awake_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        return time.clock_gettime(time.CLOCK_BOOTTIME) - awake_s
    if sys.platform == "darwin":
        awake_s = time.clock_gettime(time.CLOCK_UPTIME_RAW)
        return time.clock_gettime(time.CLOCK_MONOTONIC) - awake_s
    return 0.0
