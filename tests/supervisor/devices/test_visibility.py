from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from planners.hardware import DeviceKind
from planners.sizes import GIB
from supervisor.devices.sighting import Sighting
from supervisor.devices.visibility import hidden, hiding, numbered


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


@pytest.mark.parametrize(
    ("env", "by_number"),
    [
        ({}, {}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {1: "CUDA_VISIBLE_DEVICES=1"}),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, dict.fromkeys((1, 4), "CUDA_VISIBLE_DEVICES=-1")),
        ({"HIP_VISIBLE_DEVICES": "0"}, dict.fromkeys((3, 5), "HIP_VISIBLE_DEVICES=0")),
        (
            {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "0"},
            dict.fromkeys((2, 5), "ROCR_VISIBLE_DEVICES=1,2, HIP_VISIBLE_DEVICES=0"),
        ),
        ({"GGML_VK_VISIBLE_DEVICES": "0"}, {}),
    ],
    ids=["nothing set", "one of NVIDIA's", "all of NVIDIA's", "AMD's", "AMD's twice", "Vulkan's"],
)
def test_a_card_is_hidden_by_its_own_vendors_variables(
    env: Mapping[str, str], by_number: Mapping[int, str]
) -> None:
    found = hidden([card for (card,) in reversed(CARDS)], env)

    assert found == {f"pci:0000:0{n}:00.0": told for n, told in by_number.items()}


def test_a_slice_without_an_address_is_hidden_by_its_uuid() -> None:
    shown, other = (replace(CARDS[0][0], pci=None, uuid=f"MIG-{each}") for each in "ab")

    assert hidden([shown, other], {"CUDA_VISIBLE_DEVICES": "MIG-a"}) == {
        "uuid:MIG-b": "CUDA_VISIBLE_DEVICES=MIG-a"
    }
