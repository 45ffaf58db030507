import pytest
from msgspec.structs import replace

from planners.hardware import Device, DeviceId, DeviceKind
from planners.instances.cards import identities
from planners.instances.taken import taken
from planners.plan import DeviceBytes
from planners.sizes import GIB
from planners.view import InstanceState
from tests.fakes.admin_service import GPU, HARDWARE, READY

BY_NAME, BY_ADDRESS = DeviceId("vulkan:Vulkan0"), DeviceId("pci:0000:01:00.0")


def card(device_id: DeviceId, engine_name: str = "Vulkan0") -> Device:
    return Device(
        device_id, DeviceKind.DISCRETE, "RTX 4090", (("vulkan", engine_name),), 24 * GIB, 20 * GIB
    )


@pytest.mark.parametrize(
    ("planned", "there", "expected"),
    [
        (BY_NAME, [card(BY_ADDRESS)], {BY_NAME: BY_ADDRESS}),
        (BY_ADDRESS, [card(BY_NAME)], {BY_ADDRESS: BY_NAME}),
        (BY_NAME, [card(BY_ADDRESS, "Vulkan1")], {}),
        (BY_NAME, [card(BY_NAME), card(BY_ADDRESS, "Vulkan1")], {}),
        (BY_ADDRESS, [card(DeviceId("pci:0000:02:00.0"))], {}),
        (BY_NAME, [], {}),
    ],
    ids=["address found", "address lost", "another name", "as before", "another card", "gone"],
)
def test_a_card_is_known_by_the_engines_name_where_its_identity_became_another(
    planned: DeviceId, there: list[Device], expected: dict[DeviceId, DeviceId]
) -> None:
    plan = replace(READY.plan, backend="vulkan", devices=((planned, "Vulkan0", 33),))

    assert identities(plan, there) == expected


def test_bytes_of_ours_follow_a_card_that_goes_by_its_address_at_last() -> None:
    part = DeviceBytes(BY_NAME, GIB, GIB, GIB)
    plan = replace(
        READY.plan, backend="vulkan", devices=((BY_NAME, "Vulkan0", 33),), predicted=(part,)
    )
    seen = replace(READY, plan=plan, state=InstanceState.READY)

    ours = taken(replace(HARDWARE, devices=(card(GPU),)), (seen,))

    assert ours.held == {GPU: 3 * GIB}
