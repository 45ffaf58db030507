"""Memory that comes back after a stop: whether free figures have stopped rising. Pure.

A driver tears a process down after its exit; a plan made meanwhile would be one for a fuller
machine, and stay.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.sizes import MIB

SETTLE_S = 10.0  # no start waits longer for memory to come back
QUIET_S = 1.0  # a driver that has given nothing back by then has nothing to give
STEP_BYTES = 32 * MIB  # between two samples: less is the machine's own breathing


class Ended(Struct, frozen=True):
    """An instance that is gone."""

    at_s: float
    """Monotonic."""
    held: Mapping[DeviceId, int]
    """Bytes it had of what the machine counts as used."""
    free: Mapping[DeviceId, int]
    """Bytes free as last read before it ended."""


class Sample(Struct, frozen=True):
    """Bytes free at one moment."""

    at_s: float
    free: Mapping[DeviceId, int]


def free_bytes(hardware: HardwareProfile) -> dict[DeviceId, int]:
    """What is free where, of the places that tell."""
    told = {d.device_id: d.free_bytes for d in hardware.devices if d.free_bytes is not None}
    return {HOST: hardware.host.available_bytes, **told}


def settling(
    ended: Sequence[Ended], samples: Sequence[Sample], *, now_s: float
) -> dict[DeviceId, int]:
    """Bytes that still come back, by device; {} once free memory has stopped rising.

    `ended` and `samples` in order of time; bounded by SETTLE_S.
    """
    recent = [end for end in ended if now_s - end.at_s < SETTLE_S]
    devices = {device for end in recent for device, n in end.held.items() if n >= STEP_BYTES}
    found = {}
    for device in devices:
        ends = [end for end in recent if device in end.held]
        expected = sum(end.held[device] for end in ends)
        if (missing := _missing(device, ends, expected, samples, now_s=now_s)) is not None:
            found[device] = missing
    return found


def _missing(
    device: DeviceId,
    ends: Sequence[Ended],
    expected: int,
    samples: Sequence[Sample],
    *,
    now_s: float,
) -> int | None:
    """Bytes of `expected` that are not free yet; None where no more of them come."""
    first_s, last_s, before = ends[0].at_s, ends[-1].at_s, ends[0].free.get(device)
    if before is None:
        return None  # a device that tells nothing
    told = [(s.at_s, s.free[device]) for s in samples if s.at_s > first_s and device in s.free]
    risen = max(0, told[-1][1] - before) if told else 0
    after = [free for at_s, free in told if at_s > last_s]
    rises = len(after) < 2 or after[-1] - after[-2] > STEP_BYTES
    is_late = risen < expected // 2 and now_s - last_s < QUIET_S
    return max(0, expected - risen) if rises or is_late else None
