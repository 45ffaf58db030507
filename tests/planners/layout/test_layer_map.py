import pytest
from msgspec.structs import replace

from planners.hardware import DeviceId
from planners.layout.layer_map import layer_map
from planners.plan import LaunchPlan
from tests.fakes.admin_service import PLAN


def plan(*shares: tuple[str, int], n_cpu_moe: int = 0) -> LaunchPlan:
    devices = tuple((DeviceId(name), name, layers) for name, layers in shares)
    return replace(PLAN, devices=devices, n_cpu_moe=n_cpu_moe)


@pytest.mark.parametrize(
    ("launch", "told"),
    [
        (plan(), "layers 0–29 host, output host"),
        (plan(("Vulkan0", 31)), "layers 0–29 Vulkan0, output Vulkan0"),
        (plan(("Vulkan0", 19)), "layers 0–11 host, 12–29 Vulkan0, output Vulkan0"),
        (plan(("Vulkan0", 1)), "layers 0–29 host, output Vulkan0"),
        (plan(("Vulkan0", 30)), "layers 0 host, 1–29 Vulkan0, output Vulkan0"),
        (
            plan(("CUDA0", 10), ("CUDA1", 20)),
            "layers 0 host, 1–10 CUDA0, 11–29 CUDA1, output CUDA1",
        ),
        (plan(("CUDA0", 30), ("CUDA1", 1)), "layers 0–29 CUDA0, output CUDA1"),
        (
            plan(("CUDA0", 31), n_cpu_moe=12),
            "layers 0–29 CUDA0, output CUDA0, experts of 0–11 host",
        ),
    ],
)
def test_each_block_is_named_with_its_owner_and_the_output_layer_last(
    launch: LaunchPlan, told: str
) -> None:
    assert layer_map(launch, n_layer=30) == told


def test_a_model_without_layers_has_an_output() -> None:
    assert layer_map(plan(("Vulkan0", 1)), n_layer=0) == "output Vulkan0"
