from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from planners.hardware import Device, DeviceKind
from planners.sizes import GIB, MIB
from supervisor.devices.identity import devices_of
from supervisor.devices.sighting import Sighting, kind_by_name

RTX_4090 = "NVIDIA GeForce RTX 4090"
RTX_3090 = "NVIDIA GeForce RTX 3090"


def nvml(name: str, pci: str, *, free_gib: float | None = 20, total_gib: int = 24) -> Sighting:
    return Sighting(
        source="nvml",
        name=name,
        kind=DeviceKind.DISCRETE,
        total_bytes=total_gib * GIB,
        free_bytes=None if free_gib is None else int(free_gib * GIB),
        pci=pci,
        uuid=f"GPU-{pci[5:7]}",
    )


def seen(backend: str, name: str, description: str, *, total_mib: int, free_mib: int) -> Sighting:
    return Sighting(
        source=backend,
        name=description,
        kind=kind_by_name(description),
        total_bytes=total_mib * MIB,
        free_bytes=free_mib * MIB,
        engine_name=name,
    )


def cuda(n: int, name: str, free_mib: int = 23000) -> Sighting:
    return seen("cuda", f"CUDA{n}", name, total_mib=24081, free_mib=free_mib)


def vulkan(n: int, name: str, total_mib: int = 24564, free_mib: int = 22000) -> Sighting:
    return seen("vulkan", f"Vulkan{n}", name, total_mib=total_mib, free_mib=free_mib)


def joined(
    vendors: Sequence[Sighting],
    *engines: Sequence[Sighting],
    env: Mapping[str, str] | None = None,
) -> dict[str, Device]:
    devices = devices_of(vendors, [(sightings, env or {}) for sightings in engines])
    return {device.device_id: device for device in devices}


def test_cuda_vulkan_and_nvml_see_one_card() -> None:
    devices = joined([nvml(RTX_4090, "0000:01:00.0")], [cuda(0, RTX_4090)], [vulkan(0, RTX_4090)])

    assert list(devices) == ["pci:0000:01:00.0"]
    card = devices["pci:0000:01:00.0"]
    assert card.engine_names == (("cuda", "CUDA0"), ("vulkan", "Vulkan0"))
    assert card.total_bytes == 24 * GIB


def test_free_is_the_least_that_anyone_says() -> None:
    devices = joined([nvml(RTX_4090, "0000:01:00.0", free_gib=20)], [cuda(0, RTX_4090, 18000)])

    assert devices["pci:0000:01:00.0"].free_bytes == 18000 * MIB


def test_free_that_nobody_tells_is_unknown() -> None:
    devices = joined([nvml(RTX_4090, "0000:01:00.0", free_gib=None)])

    assert devices["pci:0000:01:00.0"].free_bytes is None


def test_equal_cards_are_numbered_by_their_pci_addresses() -> None:
    cards = [nvml(RTX_4090, "0000:41:00.0"), nvml(RTX_4090, "0000:01:00.0")]

    devices = joined(cards, [cuda(0, RTX_4090), cuda(1, RTX_4090)])

    assert devices["pci:0000:01:00.0"].engine_name("cuda") == "CUDA0"
    assert devices["pci:0000:41:00.0"].engine_name("cuda") == "CUDA1"


def test_cuda_visible_devices_renumbers() -> None:
    cards = [nvml(RTX_4090, f"0000:{n:02d}:00.0") for n in (1, 2, 3)]

    devices = joined(
        cards, [cuda(0, RTX_4090), cuda(1, RTX_4090)], env={"CUDA_VISIBLE_DEVICES": "2,0"}
    )

    assert [d.engine_name("cuda") for d in devices.values()] == ["CUDA1", None, "CUDA0"]


def test_cuda_visible_devices_may_name_uuids() -> None:
    cards = [nvml(RTX_4090, "0000:01:00.0"), nvml(RTX_4090, "0000:02:00.0")]

    devices = joined(cards, [cuda(0, RTX_4090)], env={"CUDA_VISIBLE_DEVICES": "GPU-02,nonsense,0"})

    assert [d.engine_name("cuda") for d in devices.values()] == [None, "CUDA0"]


def test_unlike_cards_of_one_size_are_told_apart_by_model() -> None:
    cards = [nvml(RTX_3090, "0000:01:00.0"), nvml(RTX_4090, "0000:02:00.0")]

    devices = joined(cards, [vulkan(0, RTX_4090), vulkan(1, RTX_3090)])

    assert devices["pci:0000:01:00.0"].engine_name("vulkan") == "Vulkan1"
    assert devices["pci:0000:02:00.0"].engine_name("vulkan") == "Vulkan0"


def test_two_engines_of_one_backend_name_a_card_once() -> None:
    devices = joined([nvml(RTX_4090, "0000:01:00.0")], [vulkan(0, RTX_4090)], [vulkan(0, RTX_4090)])

    assert devices["pci:0000:01:00.0"].engine_names == (("vulkan", "Vulkan0"),)


def test_equal_cards_that_only_vulkan_sees_stay_two() -> None:
    a770 = "Intel(R) Arc(tm) A770 Graphics (DG2)"

    devices = joined([], [vulkan(0, a770, 16032), vulkan(1, a770, 16032)])

    assert list(devices) == ["vulkan:Vulkan0", "vulkan:Vulkan1"]


def test_a_laptops_integrated_gpu_is_no_part_of_its_nvidia_card() -> None:
    devices = joined(
        [nvml("NVIDIA GeForce RTX 4060 Laptop GPU", "0000:01:00.0", total_gib=8)],
        [
            vulkan(0, "Intel(R) Iris(R) Xe Graphics (RPL-P)", 15000, 12000),
            vulkan(1, "NVIDIA GeForce RTX 4060 Laptop GPU", 8188, 7000),
        ],
    )

    assert devices["pci:0000:01:00.0"].engine_names == (("vulkan", "Vulkan1"),)
    assert devices["vulkan:Vulkan0"].kind is DeviceKind.INTEGRATED


def test_the_kernels_nameless_amd_cards_take_names_from_vulkan() -> None:
    def amdgpu(pci: str, total_gib: int) -> Sighting:
        return Sighting("amdgpu", "", DeviceKind.UNKNOWN, total_gib * GIB, GIB, pci=pci)

    devices = joined(
        [amdgpu("0000:03:00.0", 24), amdgpu("0000:7b:00.0", 16)],
        [
            vulkan(0, "AMD Radeon RX 7900 XTX (RADV NAVI31)", 24560),
            vulkan(1, "AMD Radeon RX 7800 XT (RADV NAVI32)", 16368),
        ],
    )

    assert devices["pci:0000:03:00.0"].name == "AMD Radeon RX 7900 XTX (RADV NAVI31)"
    assert devices["pci:0000:7b:00.0"].engine_name("vulkan") == "Vulkan1"
    assert devices["pci:0000:03:00.0"].kind is DeviceKind.DISCRETE


def test_a_software_device_is_never_a_card() -> None:
    devices = joined(
        [nvml(RTX_4090, "0000:01:00.0")],
        [vulkan(0, "llvmpipe (LLVM 15.0.6, 256 bits)", 24564, 24564)],
    )

    assert devices["pci:0000:01:00.0"].engine_names == ()
    assert devices["vulkan:Vulkan0"].kind is DeviceKind.SOFTWARE


def test_remote_devices_stay_apart_and_local() -> None:
    rpc = [
        Sighting("vulkan", f"127.0.0.1:{port}", DeviceKind.REMOTE, GIB, GIB, engine_name=name)
        for name, port in (("RPC0", 50052), ("RPC1", 50053))
    ]

    devices = joined([], rpc)

    assert list(devices) == ["vulkan:RPC0", "vulkan:RPC1"]


def test_a_card_without_a_bus_is_known_by_its_uuid() -> None:
    slice_ = Sighting(
        "nvml", "NVIDIA A100 MIG 1g.10gb", DeviceKind.DISCRETE, GIB, GIB, uuid="MIG-7"
    )

    assert list(joined([slice_])) == ["uuid:MIG-7"]


def test_a_macs_gpu_is_one_device_for_sysctl_and_metal() -> None:
    gpu = Sighting("apple", "Apple M2 Max", DeviceKind.INTEGRATED, 48 * GIB, None)
    metal = seen("metal", "MTL0", "Apple M2 Max", total_mib=49152, free_mib=49000)

    devices = joined([gpu], [metal])

    assert list(devices) == ["metal:MTL0"]
    assert devices["metal:MTL0"].total_bytes == 48 * GIB
    assert devices["metal:MTL0"].free_bytes == 49000 * MIB


def test_hip_numbers_amds_cards_by_its_own_variables() -> None:
    def amdgpu(pci: str) -> Sighting:
        return Sighting("amdgpu", "", DeviceKind.UNKNOWN, 24 * GIB, GIB, pci=pci)

    hip = seen("hip", "ROCm0", "AMD Radeon RX 7900 XTX", total_mib=24560, free_mib=24000)

    devices = joined(
        [amdgpu("0000:03:00.0"), amdgpu("0000:0b:00.0")], [hip], env={"HIP_VISIBLE_DEVICES": "1"}
    )

    assert devices["pci:0000:03:00.0"].engine_names == ()
    assert devices["pci:0000:0b:00.0"].engine_names == (("hip", "ROCm0"),)


def test_a_card_has_the_bandwidth_its_driver_tells_else_its_data_sheets() -> None:
    told = replace(nvml(RTX_4090, "0000:01:00.0"), bandwidth_bytes_per_s=1.0, link_bytes_per_s=2.0)
    radeon = vulkan(0, "AMD Radeon RX 7900 XTX (RADV NAVI31)")

    devices = joined([told], [radeon])

    assert devices["pci:0000:01:00.0"].bandwidth_bytes_per_s == 1.0
    assert devices["pci:0000:01:00.0"].link_bytes_per_s == 2.0
    assert devices["vulkan:Vulkan0"].bandwidth_bytes_per_s == 960e9
    assert devices["vulkan:Vulkan0"].link_bytes_per_s is None


def test_a_card_that_an_engine_calls_integrated_has_what_its_host_lends() -> None:
    nameless = Sighting(
        source="amdgpu",
        name="",
        kind=DeviceKind.UNKNOWN,
        total_bytes=GIB // 2,
        free_bytes=GIB // 4,
        pci="0000:c5:00.0",
        lent=(62 * GIB, 60 * GIB),
    )

    (newer,) = joined([nameless], [vulkan(0, "AMD Radeon 8060S Graphics", 63488, 62000)]).values()
    (discrete,) = joined([nameless], [vulkan(0, "AMD Radeon RX 9070", 512, 300)]).values()

    assert (newer.kind, newer.total_bytes) == (DeviceKind.INTEGRATED, 62 * GIB + GIB // 2)
    assert newer.free_bytes == 60 * GIB + GIB // 4
    assert (discrete.kind, discrete.total_bytes) == (DeviceKind.DISCRETE, GIB // 2)
