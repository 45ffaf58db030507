"""Which card of the machine a launch is on, where its identity became another since. Pure.

Until a vendor's library answers a card goes by what an engine calls it ("vulkan:Vulkan0"); later
by its address, and the other way round where the library is lost.
"""

from collections.abc import Iterable, Mapping

from planners.hardware import Device, DeviceId, has_address
from planners.plan import LaunchPlan


def identities(plan: LaunchPlan, devices: Iterable[Device]) -> Mapping[DeviceId, DeviceId]:
    """For each of the plan's devices that is known by another identity now, that one.

    Told by the engine's name for it. A card with an address is no other card with an address.
    """
    there = [*devices]
    known = {device.device_id for device in there}
    found: dict[DeviceId, DeviceId] = {}
    for planned, engine_name, _ in plan.devices:
        if planned in known:
            continue
        for device in there:
            if device.engine_name(plan.backend) == engine_name and not (
                has_address(planned) and device.has_address
            ):
                found[planned] = device.device_id
    return found
