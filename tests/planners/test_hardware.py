from msgspec.structs import replace

from tests.fakes.machines import nvidia


def test_each_backend_has_its_own_name_for_a_device() -> None:
    card = replace(nvidia(0, 8), engine_names=(("cuda", "CUDA0"), ("vulkan", "Vulkan1")))

    assert card.engine_name("vulkan") == "Vulkan1"
    assert card.engine_name("hip") is None
