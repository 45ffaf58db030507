import pytest

from planners.backends import Engine, EngineDevice
from planners.hardware import DeviceKind
from planners.sizes import GIB
from supervisor.devices.engine import EngineSource
from supervisor.devices.sighting import Sighting

VULKAN = Engine(
    engine_id="0" * 12,
    backend="vulkan",
    path="/opt/llama-server",
    source="built",
    env=(),
    flags=frozenset(),
    devices=(),
    version="1",
)


def source(name: str, description: str, *, is_fresh: bool = True) -> EngineSource:
    device = EngineDevice(name, description, total_bytes=8 * GIB, free_bytes=6 * GIB)
    return EngineSource(VULKAN, (device,), is_fresh=is_fresh)


def test_a_device_is_sighted_under_the_name_that_the_engine_takes() -> None:
    reading = source("Vulkan0", "NVIDIA GeForce RTX 3060").read()

    assert reading.sightings == (
        Sighting(
            source="vulkan",
            name="NVIDIA GeForce RTX 3060",
            kind=DeviceKind.DISCRETE,
            total_bytes=8 * GIB,
            free_bytes=6 * GIB,
            engine_name="Vulkan0",
        ),
    )


def test_what_was_free_some_time_ago_is_unknown_now() -> None:
    (sighting,) = source("Vulkan0", "Intel(R) Arc(tm) A770", is_fresh=False).read().sightings

    assert sighting.free_bytes is None
    assert sighting.total_bytes == 8 * GIB


@pytest.mark.parametrize(
    ("name", "description", "kind"),
    [
        ("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", DeviceKind.SOFTWARE),
        ("Vulkan0", "AMD Radeon Graphics (RADV REMBRANDT)", DeviceKind.INTEGRATED),
        ("Vulkan0", "Radeon 8060S Graphics (RADV GFX1151)", DeviceKind.INTEGRATED),
        ("Vulkan1", "AMD Radeon RX 7900 XTX (RADV NAVI31)", DeviceKind.DISCRETE),
        ("Vulkan0", "Intel(R) UHD Graphics 770 (ADL-S GT1)", DeviceKind.INTEGRATED),
        ("Vulkan0", "Intel(R) Arc(tm) A770 Graphics (DG2)", DeviceKind.DISCRETE),
        ("CUDA0", "NVIDIA GB10", DeviceKind.INTEGRATED),
        ("CUDA0", "NVIDIA H100 80GB HBM3", DeviceKind.DISCRETE),
        ("MTL0", "Apple M2 Max", DeviceKind.INTEGRATED),
        ("RPC0", "127.0.0.1:50052", DeviceKind.REMOTE),
        ("Vulkan0", "Something New", DeviceKind.UNKNOWN),
    ],
)
def test_the_kind_is_told_by_the_name(name: str, description: str, kind: DeviceKind) -> None:
    (sighting,) = source(name, description).read().sightings

    assert sighting.kind is kind
