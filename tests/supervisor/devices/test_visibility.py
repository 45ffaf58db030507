from collections.abc import Mapping

import pytest

from planners.hardware import DeviceKind
from planners.sizes import GIB
from supervisor.devices.sighting import Sighting
from supervisor.devices.visibility import hiding, numbered


def card(source: str, n: int) -> tuple[Sighting]:
    return (
        Sighting(
            source=source,
            name="a card",
            kind=DeviceKind.DISCRETE,
            total_bytes=GIB,
            free_bytes=GIB,
            pci=f"0000:0{n}:00.0",
            uuid=f"GPU-{n}",
        ),
    )


CARDS = [card("nvml", 1), card("amdgpu", 2), card("amdgpu", 3), card("nvml", 4), card("amdgpu", 5)]


@pytest.mark.parametrize(
    ("backend", "env", "pci"),
    [
        ("cuda", {}, [1, 4]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "1,0"}, [4, 1]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "GPU-4"}, [4]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, []),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "0,7,1"}, [1]),
        ("cuda", {"HIP_VISIBLE_DEVICES": "1"}, [1, 4]),
        ("hip", {}, [2, 3, 5]),
        ("hip", {"HIP_VISIBLE_DEVICES": "2"}, [5]),
        ("hip", {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [5]),
        ("hip", {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}, [3]),
        ("hip", {"CUDA_VISIBLE_DEVICES": "0"}, [2]),
        ("vulkan", {"GGML_VK_VISIBLE_DEVICES": "1"}, []),
    ],
)
def test_each_backend_numbers_its_cards_by_its_own_variables(
    backend: str, env: Mapping[str, str], pci: list[int]
) -> None:
    assert [card[0].pci for card in numbered(backend, CARDS, env)] == [
        f"0000:0{n}:00.0" for n in pci
    ]


def test_what_hides_devices_is_named_as_it_is_set() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0", "GGML_VK_VISIBLE_DEVICES": "", "PATH": "/bin"}

    assert hiding("cuda", env) == ("CUDA_VISIBLE_DEVICES=0",)
    assert hiding("vulkan", env) == ("GGML_VK_VISIBLE_DEVICES=",)
    assert hiding("metal", env) == ()
