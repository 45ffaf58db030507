"""Plans on recorded and synthetic machines (tests/fixtures/hardware/profiles, with origins)."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.hardware import HOST, DeviceKind, HardwareProfile
from planners.layout.other_machine import engines_there
from planners.model import LayerKind, ModelInfo
from planners.placement import plan_launch
from planners.plan import DeviceBytes, LaunchPlan, Shortfall
from planners.profile_json import RecordedProfile, decode_profile
from planners.sizes import GIB, MIB
from tests.fakes.machines import CUDA, FLAGS, RULES, VULKAN, model_info, served

FOLDER = Path(__file__).parents[1] / "fixtures" / "hardware" / "profiles"
PROFILES = {path.stem: decode_profile(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
MODELS = {
    "tiny": model_info(n_layer=30, layer_bytes=2 * MIB, n_ctx_train=8192),
    "8B": model_info(),
    "8B with windows": model_info(kinds=(LayerKind.SWA, LayerKind.SWA, LayerKind.FULL)),
    "70B": model_info(n_layer=80, layer_bytes=480 * MIB),
    "120B of experts": model_info(n_layer=36, layer_bytes=1640 * MIB, expert_bytes=1580 * MIB),
    "a hybrid": model_info(
        kinds=(LayerKind.RECURRENT, LayerKind.RECURRENT, LayerKind.FULL), state_width=65536
    ),
}
WANTED = {
    "no-gpu", "nvidia-8gb", "nvidia-12gb", "nvidia-24gb", "nvidia-2-unequal", "nvidia-8x80gb",
    "laptop-nvidia-intel", "amd-24gb", "strix-halo", "dgx-spark", "mac-16gb", "mac-64gb",
    "mac-192gb", "container-cgroup", "vm-without-psi",
}  # fmt: skip


def planned(hardware: HardwareProfile, model: ModelInfo) -> LaunchPlan | Shortfall:
    return plan_launch(
        served(model),
        hardware=hardware,
        engines=engines_there(hardware, here=(CUDA, VULKAN)),
        rules=RULES,
        promised={},
    )


def test_every_machine_the_plans_are_tried_on_is_there_with_its_origin() -> None:
    assert set(PROFILES) >= WANTED
    for name, recorded in PROFILES.items():
        assert recorded.origin.partition(": ")[0] in ("recorded", "synthetic"), name


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("recorded", PROFILES.values(), ids=PROFILES)
def test_no_plan_takes_more_than_a_pool_has(recorded: RecordedProfile, model: ModelInfo) -> None:
    hardware = recorded.hardware
    plan = planned(hardware, model)

    if isinstance(plan, Shortfall):
        assert plan.missing_bytes
        return
    parts = {part.device_id: part for part in plan.predicted}
    devices = {device.device_id: device for device in hardware.devices}
    for device_id, _, layers in plan.devices:
        device = devices[device_id]
        assert device.free_bytes is not None
        assert parts[device_id].upper_bytes <= device.free_bytes - device.reserve_bytes
        assert layers > 0
    host = hardware.host
    assert of_host(hardware, parts.values()) <= host.available_bytes - host.reserve_bytes


def of_host(hardware: HardwareProfile, parts: Iterable[DeviceBytes]) -> int:
    """Bytes out of the host's memory, those of devices that share it counted once with the rest."""
    sharing = {HOST, *(d.device_id for d in hardware.devices if d.shares_host)}
    return sum(part.upper_bytes for part in parts if part.device_id in sharing)


@pytest.mark.parametrize("recorded", PROFILES.values(), ids=PROFILES)
def test_the_flags_name_devices_as_that_machines_engine_does(recorded: RecordedProfile) -> None:
    plan = planned(recorded.hardware, MODELS["tiny"])

    assert isinstance(plan, LaunchPlan)
    names = {device.device_id: device.engine_name for device in recorded.hardware.devices}
    for device_id, name, _ in plan.devices:
        assert names[device_id](plan.backend) == name


@pytest.mark.parametrize(
    ("machine", "model", "backend", "n_devices"),
    [
        ("no-gpu", "8B", "cpu", 0),
        ("container-cgroup", "tiny", "cpu", 0),
        ("nvidia-8gb", "8B", "cuda", 1),
        ("nvidia-2-unequal", "8B", "cuda", 1),
        ("nvidia-8x80gb", "70B", "cuda", 1),
        ("laptop-nvidia-intel", "8B", "cuda", 1),
        ("amd-24gb", "8B", "vulkan", 1),
        ("strix-halo", "70B", "vulkan", 1),
        ("strix-halo-carved", "70B", "vulkan", 1),
        ("dgx-spark", "70B", "cuda", 1),
        ("mac-64gb", "8B", "metal", 1),
        ("mac-192gb", "120B of experts", "metal", 1),
    ],
)
def test_a_model_that_fits_goes_to_that_machines_devices_whole(
    machine: str, model: str, backend: str, n_devices: int
) -> None:
    plan = planned(PROFILES[machine].hardware, MODELS[model])

    assert isinstance(plan, LaunchPlan)
    assert (plan.backend, len(plan.devices)) == (backend, n_devices)
    assert plan.n_gpu_layers == (MODELS[model].n_layer + 1 if n_devices else 0)


@pytest.mark.parametrize(
    ("machine", "model"), [("mac-16gb", "70B"), ("no-gpu", "70B"), ("container-cgroup", "70B")]
)
def test_a_model_that_cannot_fit_is_a_shortfall(machine: str, model: str) -> None:
    plan = planned(PROFILES[machine].hardware, MODELS[model])

    assert isinstance(plan, Shortfall)
    assert plan.missing_bytes[HOST] > GIB


def test_a_carve_out_that_is_the_gpus_own_leaves_the_host_its_memory() -> None:
    hardware = PROFILES["strix-halo-carved"].hardware
    (gpu,) = hardware.devices

    assert gpu.kind is DeviceKind.INTEGRATED
    assert not gpu.shares_host
    assert gpu.free_bytes is not None
    assert gpu.free_bytes > hardware.host.total_bytes


def test_engines_of_another_machine_are_those_that_name_its_devices_and_a_cpu_build() -> None:
    mac = engines_there(PROFILES["mac-16gb"].hardware, here=(CUDA, VULKAN))
    bare = engines_there(replace(PROFILES["no-gpu"].hardware), here=())

    assert [engine.backend for engine in mac] == ["metal", "cpu"]
    assert all(engine.flags == FLAGS for engine in mac)
    assert [engine.backend for engine in bare] == ["cpu"]
