from pathlib import Path

import pytest

from supervisor.devices.nvidia import has_card, pci_address

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hardware"


def test_a_card_is_seen_on_the_bus_without_a_driver() -> None:
    assert has_card(FIXTURES / "nvidia-without-driver")
    assert not has_card(FIXTURES / "vm-cgroup-v1")


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


def test_wsl_lends_a_card_that_no_bus_shows(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("5.15.167.4-microsoft-standard-WSL2\n")
    assert not has_card(tmp_path)

    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert has_card(tmp_path)
