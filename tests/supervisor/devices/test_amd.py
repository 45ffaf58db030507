from collections.abc import Callable, Mapping
from pathlib import Path

from planners.hardware import DeviceKind
from planners.sizes import GIB
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
        carved_out=(25753026560, 25753026560 - 1073741824),
        lent=(33711673344, 33711673344 - 20971520),
    )
    assert [s.pci for s in reading.sightings] == ["0000:03:00.0", "0000:7b:00.0"]


def test_a_machine_without_amd_cards_has_no_reading() -> None:
    assert AmdSource(FIXTURES / "vm-cgroup-v1").read() == Reading()


def apu(tree: Callable[[Mapping[str, str]], Path], *, vram_gib: int, gtt_gib: int) -> Path:
    """A Ryzen AI Max (Strix Halo), by amdgpu's own sysfs files."""
    card = "sys/class/drm/card1/device"
    return tree(
        {
            f"{card}/vendor": "0x1002\n",
            f"{card}/device": "0x1586\n",
            f"{card}/uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:c5:00.0\n",
            f"{card}/mem_info_vram_total": f"{vram_gib * GIB}\n",
            f"{card}/mem_info_vram_used": f"{GIB // 4}\n",
            f"{card}/mem_info_gtt_total": f"{gtt_gib * GIB}\n",
            f"{card}/mem_info_gtt_used": f"{GIB}\n",
        }
    )


def test_an_apu_is_known_by_its_pci_id_and_has_vram_and_gtt(
    tree: Callable[[Mapping[str, str]], Path],
) -> None:
    (gpu,) = AmdSource(apu(tree, vram_gib=1, gtt_gib=62)).read().sightings

    assert gpu.kind is DeviceKind.INTEGRATED
    assert gpu.total_bytes == 63 * GIB
    assert gpu.free_bytes == 63 * GIB - GIB - GIB // 4
    assert gpu.carved_out == (GIB, GIB - GIB // 4)


def test_a_figure_amdgpu_does_not_give_is_unknown(
    tree: Callable[[Mapping[str, str]], Path],
) -> None:
    root = apu(tree, vram_gib=1, gtt_gib=62)
    (root / "sys/class/drm/card1/device/mem_info_gtt_used").unlink()

    (gpu,) = AmdSource(root).read().sightings

    assert (gpu.total_bytes, gpu.free_bytes) == (None, None)
