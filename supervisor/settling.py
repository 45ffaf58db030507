"""Watches memory come back after a stop. What the figures mean is planners.instances.settling's."""

from collections import deque

from planners.hardware import DeviceId, HardwareProfile
from planners.instances.settling import SETTLE_S, Ended, Sample, free_bytes, settling
from planners.instances.taken import taken
from planners.view import Observed

SAMPLE_S = 0.1  # cadence while memory comes back; nearer samples would show no difference
MAX_KEPT = 200  # samples of SETTLE_S, and more stops than a machine has in that time


class MemoryWatch:
    """What ended lately, and what was free since."""

    def __init__(self) -> None:
        self._ended: deque[Ended] = deque(maxlen=MAX_KEPT)
        self._samples: deque[Sample] = deque(maxlen=MAX_KEPT)

    def ended(self, seen: Observed, hardware: HardwareProfile, *, now_s: float) -> None:
        """Take an instance that is gone, and the machine as last read."""
        held = dict(taken(hardware, (seen,)).held)
        self._ended.append(Ended(now_s, held, free_bytes(hardware)))

    def sampled(self, hardware: HardwareProfile, *, now_s: float) -> None:
        """Take a fresh reading, while there is something to watch."""
        while self._ended and now_s - self._ended[0].at_s >= SETTLE_S:
            self._ended.popleft()
        if not self._ended:
            self._samples.clear()
        elif not self._samples or now_s - self._samples[-1].at_s >= SAMPLE_S / 2:
            self._samples.append(Sample(now_s, free_bytes(hardware)))

    def settling(self, *, now_s: float) -> dict[DeviceId, int]:
        """Bytes that still come back, by device."""
        return settling(tuple(self._ended), tuple(self._samples), now_s=now_s)
