"""What our own instances have of the machine, by how the machine counts it. Pure."""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from planners.hardware import HOST, DeviceId, DeviceKind, HardwareProfile
from planners.instances.cards import identities
from planners.view import InstanceState, Observed


class Taken(Struct, frozen=True):
    """What our own instances have of the machine, by how the machine counts it."""

    promised: Counter[DeviceId]
    """Spoken for though it still counts as free: all of a loading instance's; of the others what
    free figures never show, which is file-backed weights (the kernel counts them as available)
    and everything on devices that report no use."""
    held: Counter[DeviceId]
    """The rest, which the machine counts as used; it counts against the operator's limits."""


def taken(hardware: HardwareProfile, instances: Iterable[Observed]) -> Taken:
    """Bytes of all living instances, each byte in one of the two counts."""
    silent = (DeviceKind.SOFTWARE, DeviceKind.REMOTE)
    blind = {device.device_id for device in hardware.devices if device.kind in silent}
    ours = Taken(Counter(), Counter())
    for seen in instances:
        if seen.state.is_down:
            continue
        now = identities(seen.plan, hardware.devices)
        for part in seen.plan.predicted:
            place = now.get(part.device_id, part.device_id)
            unseen_bytes = part.weights_bytes if place == HOST else 0
            if seen.state is InstanceState.LOADING or place in blind:
                unseen_bytes = part.upper_bytes
            ours.promised[place] += unseen_bytes
            ours.held[place] += max(0, part.total_bytes - unseen_bytes)
    return ours
