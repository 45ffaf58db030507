from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from planners.hardware import HOST, Device, DeviceId, DeviceKind, HardwareProfile
from planners.layout.budget import MOST_DEVICES, Budgets, budgets, emptied, freed
from planners.sizes import GIB, MIB
from tests.fakes.machines import INTEGRATED, LLVMPIPE, machine, nvidia

CARD = nvidia(0, 24, free_gib=20)


def room(
    *devices: Device,
    backend: str = "vulkan",
    promised: Mapping[DeviceId, int] | None = None,
    held: Mapping[DeviceId, int] | None = None,
    profile: HardwareProfile | None = None,
) -> Budgets:
    hardware = machine(*devices) if profile is None else profile
    return budgets(hardware, backend=backend, promised=promised or {}, held=held or {})


@pytest.mark.parametrize(
    ("device", "held_gib", "room_gib"),
    [
        pytest.param(CARD, 0, 20, id="what is free"),
        pytest.param(replace(CARD, reserve_bytes=GIB), 0, 19, id="less the reserve"),
        pytest.param(replace(CARD, limit_bytes=6 * GIB), 0, 6, id="at most the limit"),
        pytest.param(replace(CARD, limit_bytes=6 * GIB), 4, 2, id="of which some is held"),
        pytest.param(replace(CARD, free_bytes=None), 0, 24, id="all of it where free is unknown"),
    ],
)
def test_the_room_on_a_device(device: Device, held_gib: int, room_gib: int) -> None:
    found = room(device, held={device.device_id: held_gib * GIB})

    assert found.room_bytes(device.device_id) == room_gib * GIB


def test_promised_bytes_are_taken_off_everywhere() -> None:
    found = room(CARD, promised={CARD.device_id: 5 * GIB, HOST: GIB})

    assert found.room_bytes(CARD.device_id) == 15 * GIB
    assert found.host_bytes == 23 * GIB


def test_the_host_keeps_its_reserve_and_its_limit() -> None:
    profile = machine()
    host = replace(profile.host, reserve_bytes=2 * GIB, limit_bytes=10 * GIB)

    assert room(profile=replace(profile, host=host)).host_bytes == 10 * GIB
    assert room(profile=replace(profile, host=host), held={HOST: 4 * GIB}).host_bytes == 6 * GIB


@pytest.mark.parametrize(
    ("device", "told"),
    [
        pytest.param(LLVMPIPE, "posing as a GPU", id="software"),
        pytest.param(replace(CARD, use=False), "configuration", id="switched off"),
        pytest.param(replace(CARD, engine_names=()), "does not see it", id="unseen"),
        pytest.param(
            replace(CARD, free_bytes=None, total_bytes=None), "unknown", id="of unknown size"
        ),
    ],
)
def test_a_device_left_out_is_told_with_the_reason(device: Device, told: str) -> None:
    found = room(device)

    assert found.devices == ()
    assert found.notes[0].device_id == device.device_id
    assert told in found.notes[0].because


def test_an_integrated_gpu_is_left_out_beside_a_discrete_one() -> None:
    assert [b.device_id for b in room(INTEGRATED, CARD).devices] == [CARD.device_id]
    assert [b.device_id for b in room(INTEGRATED).devices] == [INTEGRATED.device_id]


def test_larger_cards_come_first() -> None:
    found = room(nvidia(0, 8), nvidia(1, 24), nvidia(2, 12))

    assert [budget.total_bytes // GIB for budget in found.devices] == [24, 12, 8]


@pytest.mark.parametrize(
    ("backend", "kind", "overhead"),
    [
        ("cuda", DeviceKind.DISCRETE, int(24 * GIB * 0.03)),
        ("vulkan", DeviceKind.DISCRETE, 256 * MIB),
        ("vulkan", DeviceKind.SOFTWARE, 0),
    ],
)
def test_a_driver_takes_its_share_before_any_buffer(
    backend: str, kind: DeviceKind, overhead: int
) -> None:
    (budget,) = room(replace(CARD, kind=kind), backend=backend).devices

    assert budget.overhead_bytes == overhead


def test_freed_bytes_are_free_and_never_more_than_there_is() -> None:
    hardware = machine(CARD)

    assert freed(hardware, {CARD.device_id: GIB}).devices[0].free_bytes == 21 * GIB
    assert freed(hardware, {CARD.device_id: 99 * GIB}).devices[0].free_bytes == 24 * GIB


def test_an_empty_machine_has_all_its_memory_but_what_its_group_denies() -> None:
    hardware = machine(CARD, host_gib=24)
    host = replace(hardware.host, available_bytes=GIB, cgroup_limit_bytes=8 * GIB)

    empty = emptied(replace(hardware, host=host))

    assert empty.host.available_bytes == 8 * GIB
    assert empty.devices[0].free_bytes == 24 * GIB


def test_of_very_many_devices_the_largest_with_room_are_used_and_the_others_named() -> None:
    cards = [nvidia(i, 8 + i) for i in range(MOST_DEVICES + 2)]
    full = cards[-1]

    found = room(*cards, promised={full.device_id: 99 * GIB})

    spared = [cards[0].name, full.name]
    assert sorted(budget.label for budget in found.spared) == sorted(spared)
    assert len(found.devices) == MOST_DEVICES
    assert [note.device_id for note in found.notes] == [full.device_id, cards[0].device_id]
    assert found.room_bytes(cards[0].device_id) == 8 * GIB


def test_cards_of_one_name_are_told_apart_by_what_the_engine_calls_them() -> None:
    twins = [replace(nvidia(i, 24), name="NVIDIA H100") for i in range(2)]

    found = room(*twins, CARD)

    assert [budget.label for budget in found.devices if "H100" in budget.label] == [
        "NVIDIA H100 Vulkan0",
        "NVIDIA H100 Vulkan1",
    ]
    assert CARD.name in [budget.label for budget in found.devices]
