import pytest

from supervisor.devices.datasheet import bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 960),
        ("AMD Radeon RX 7900 XT (RADV NAVI31)", 800),
        ("AMD Radeon 8060S Graphics (RADV STRIX_HALO)", 256),
        ("Apple M2 Ultra", 800),
        ("Apple M2 Max", 400),
        ("Apple M2", 100),
        ("NVIDIA GB10", 273),
    ],
)
def test_a_listed_device_has_its_data_sheets_bandwidth(name: str, gb_per_s: int) -> None:
    assert bandwidth_bytes_per_s(name) == gb_per_s * 1e9


def test_a_device_nobody_listed_is_unknown() -> None:
    assert bandwidth_bytes_per_s("llvmpipe (LLVM 15.0.6, 256 bits)") is None
    assert bandwidth_bytes_per_s("") is None
