from pathlib import Path

from planners.hardware import DeviceKind
from supervisor.devices.amd import AmdSource
from supervisor.devices.sighting import Reading, Sighting

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hardware"


def test_cards_are_read_from_sysfs_in_pci_order_and_connectors_are_none() -> None:
    reading = AmdSource(FIXTURES / "amd-rx7900xtx-igpu").read()

    assert reading.notes == ()
    assert reading.sightings[0] == Sighting(
        source="amdgpu",
        name="",
        kind=DeviceKind.UNKNOWN,
        total_bytes=25753026560,
        free_bytes=25753026560 - 1073741824,
        pci="0000:03:00.0",
    )
    assert [s.pci for s in reading.sightings] == ["0000:03:00.0", "0000:7b:00.0"]


def test_a_machine_without_amd_cards_has_no_reading() -> None:
    assert AmdSource(FIXTURES / "vm-cgroup-v1").read() == Reading()
