import pytest
from msgspec.structs import replace

from planners.hardware import Device, DeviceId, DeviceKind, Host
from planners.settings import DeviceRule, MemoryRule, PlacementRules
from planners.sizes import GIB
from supervisor.devices.rules import (
    ruled_device,
    ruled_host,
    sharing,
    unclear,
    unmatched,
    unserved,
)
from tests.fakes.machines import LLVMPIPE, RULES

CARD = Device(
    device_id=DeviceId("pci:0000:01:00.0"),
    kind=DeviceKind.DISCRETE,
    name="NVIDIA GeForce RTX 4090",
    engine_names=(("cuda", "CUDA0"), ("vulkan", "Vulkan1")),
    total_bytes=24 * GIB,
    free_bytes=20 * GIB,
)
HOST = Host(
    total_bytes=32 * GIB,
    available_bytes=10 * GIB,
    cgroup_limit_bytes=None,
    n_cores=8,
    n_physical_cores=4,
    cpu_name="x",
)


def rule(
    name: str,
    *,
    limit_bytes: int | None = None,
    reserve_bytes: int | None = None,
    use: bool | None = None,
) -> DeviceRule:
    return DeviceRule(name=name, limit_bytes=limit_bytes, reserve_bytes=reserve_bytes, use=use)


def rules(*devices: DeviceRule) -> PlacementRules:
    return replace(RULES, devices=devices, device_reserve_bytes=GIB)


@pytest.mark.parametrize(
    "name",
    ["pci:0000:01:00.0", "PCI:0000:01:00.0", "CUDA0", "vulkan1", "nvidia geforce rtx 4090"],
)
def test_a_rule_names_a_device_by_id_engine_name_or_vendors_name(name: str) -> None:
    device = ruled_device(CARD, rules(rule(name, limit_bytes=6 * GIB)))

    assert device.limit_bytes == 6 * GIB


def test_a_rule_for_another_device_changes_nothing_but_the_common_reserve() -> None:
    device = ruled_device(CARD, rules(rule("CUDA1", limit_bytes=1, use=False)))

    assert (device.limit_bytes, device.reserve_bytes, device.use) == (None, GIB, True)


def test_a_device_with_a_reserve_of_its_own_has_that_one() -> None:
    assert ruled_device(CARD, rules(rule("CUDA0", reserve_bytes=0))).reserve_bytes == 0


def test_of_two_rules_the_more_exact_one_decides_each_key() -> None:
    device = ruled_device(
        CARD,
        rules(
            rule("NVIDIA GeForce RTX 4090", limit_bytes=8 * GIB, reserve_bytes=2 * GIB),
            rule("pci:0000:01:00.0", limit_bytes=4 * GIB),
        ),
    )

    assert (device.limit_bytes, device.reserve_bytes) == (4 * GIB, 2 * GIB)


def test_a_software_device_is_left_alone_until_a_rule_says_use() -> None:
    assert not ruled_device(LLVMPIPE, rules()).use
    assert not ruled_device(LLVMPIPE, rules(rule("Vulkan0", limit_bytes=GIB))).use
    assert ruled_device(LLVMPIPE, rules(rule("Vulkan0", use=True))).use


def test_the_operator_can_keep_us_off_a_card() -> None:
    assert not ruled_device(CARD, rules(rule("CUDA0", use=False))).use


def test_the_hosts_share_is_the_memory_rules() -> None:
    host = ruled_host(HOST, MemoryRule(limit_bytes=4 * GIB, reserve_bytes=GIB))

    assert (host.limit_bytes, host.reserve_bytes) == (4 * GIB, GIB)


@pytest.mark.parametrize(
    ("free_bytes", "expected"), [(20 * GIB, 10 * GIB), (3 * GIB, 3 * GIB), (None, 10 * GIB)]
)
def test_an_integrated_gpu_has_no_more_than_its_host_can_spare(
    free_bytes: int | None, expected: int
) -> None:
    gpu = Device(
        device_id=DeviceId("vulkan:Vulkan0"),
        kind=DeviceKind.INTEGRATED,
        name="AMD Radeon 780M",
        engine_names=(),
        total_bytes=None,
        free_bytes=free_bytes,
    )

    assert sharing(gpu, HOST).free_bytes == expected


STRIX_HALO = Device(
    device_id=DeviceId("pci:0000:c5:00.0"),
    kind=DeviceKind.INTEGRATED,
    name="Radeon 8060S Graphics",
    engine_names=(("vulkan", "Vulkan0"),),
    total_bytes=112 * GIB,
    free_bytes=110 * GIB,
)


def test_a_small_carve_out_is_one_pool_with_the_hosts_memory() -> None:
    gpu = sharing(STRIX_HALO, HOST, carved_out=(GIB, GIB))

    assert gpu.free_bytes == HOST.available_bytes
    assert gpu.shares_host


def test_a_carve_out_larger_than_what_the_host_can_lend_is_a_pool_of_its_own() -> None:
    gpu = sharing(STRIX_HALO, HOST, carved_out=(96 * GIB, 95 * GIB))

    assert (gpu.total_bytes, gpu.free_bytes) == (96 * GIB, 95 * GIB)
    assert not gpu.shares_host


def test_unified_memory_that_nobody_sizes_is_all_of_the_hosts() -> None:
    gb10 = replace(STRIX_HALO, name="NVIDIA GB10", total_bytes=None, free_bytes=None)

    gpu = sharing(gb10, HOST)

    assert (gpu.total_bytes, gpu.free_bytes) == (HOST.total_bytes, HOST.available_bytes)


def test_one_of_several_equal_cards_that_a_variable_hides_from_vulkan_is_noted() -> None:
    shown = replace(CARD, engine_names=(("vulkan", "Vulkan0"),))
    hidden = replace(shown, device_id=DeviceId("pci:0000:02:00.0"), engine_names=())

    (note,) = unclear([shown, hidden], hiding=("GGML_VK_VISIBLE_DEVICES=1",))

    assert note.text.startswith("Vulkan0 is one of 2 cards named")
    assert list(unclear([shown, hidden], hiding=("CUDA_VISIBLE_DEVICES=1",))) == []
    assert list(unclear([shown], hiding=("GGML_VK_VISIBLE_DEVICES=0",))) == []


def test_a_card_of_its_own_does_not_share_the_hosts_memory() -> None:
    assert sharing(CARD, HOST) == CARD


def test_a_rule_that_names_nothing_is_noted_with_what_there_is() -> None:
    (note,) = unmatched((rule("Vulcan0"), rule("Vulkan1")), [CARD])

    assert '"Vulcan0"' in note.text
    assert "pci:0000:01:00.0" in note.text


def test_a_card_no_engine_sees_is_noted() -> None:
    lonely = Device(DeviceId("pci:0000:02:00.0"), DeviceKind.DISCRETE, "NVIDIA T4", (), None, None)

    (built,) = unserved([CARD, lonely], hiding=())
    (shown,) = unserved([CARD, lonely], hiding=("CUDA_VISIBLE_DEVICES=0",) * 2)

    assert "NVIDIA T4" in built.text
    assert built.device_id == lonely.device_id
    assert built.text.endswith("scripts/build_backends.sh can build one")
    assert shown.text.endswith("; CUDA_VISIBLE_DEVICES=0 may hide it")


def test_a_slice_beside_one_that_cuda_shows_is_told_how_it_would_be_shown() -> None:
    shown = replace(CARD, device_id=DeviceId("uuid:MIG-aaaa"))
    other = replace(shown, device_id=DeviceId("uuid:MIG-bbbb"), engine_names=())

    (beside,) = unserved([shown, other], hiding=())
    (alone,) = unserved([other], hiding=())

    assert "CUDA_VISIBLE_DEVICES=MIG-UUID" in str(beside)
    assert str(alone).endswith("scripts/build_backends.sh can build one")


def test_a_hidden_card_is_left_alone_until_a_rule_says_use() -> None:
    use = DeviceRule(CARD.device_id, limit_bytes=None, reserve_bytes=None, use=True)

    assert not ruled_device(CARD, RULES, is_hidden=True).use
    assert ruled_device(CARD, replace(RULES, devices=(use,)), is_hidden=True).use
