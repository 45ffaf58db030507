import pytest

from supervisor.devices.nvidia import pci_address


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        (b"00000000:01:00.0", "0000:01:00.0"),
        ("0000000F:C1:00.0", "000f:c1:00.0"),
        ("00010000:00:00.0", "10000:00:00.0"),
    ],
)
def test_a_bus_id_is_written_as_the_kernel_writes_it(bus_id: str | bytes, address: str) -> None:
    assert pci_address(bus_id) == address
