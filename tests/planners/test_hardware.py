from dataclasses import replace

import pytest

from planners.hardware import DeviceId
from tests.fakes.machines import machine, nvidia


def test_a_device_is_found_by_its_id() -> None:
    first, second = nvidia(0, 8), nvidia(1, 24)

    assert machine(first, second).device(second.device_id) == second


def test_an_unknown_device_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        machine(nvidia(0, 8)).device(DeviceId("pci:ffff:00:00.0"))


def test_each_backend_has_its_own_name_for_a_device() -> None:
    card = replace(nvidia(0, 8), engine_names=(("cuda", "CUDA0"), ("vulkan", "Vulkan1")))

    assert card.engine_name("vulkan") == "Vulkan1"
    assert card.engine_name("hip") is None
