"""inferenceosd.commands.profile_text and .recording: what people read, to the letter."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from inferenceosd.commands.profile_text import profile_text
from inferenceosd.commands.recording import recorded_now, with_paths
from planners.hardware import Storage
from planners.profile_json import decode_profile

PROFILES = Path(__file__).parents[2] / "fixtures" / "hardware" / "profiles"
STRIX_HALO_TEXT = """\
synthetic: Ryzen AI Max+ 395 with 128 GB, 512 MiB carved out, GTT at the kernel's default of half the memory (amdgpu and ttm documents); 256 GB/s by its data sheet

host: AMD RYZEN AI MAX+ 395 w/ Radeon 8060S, 16 cores (32 threads), waking another core takes ?
memory: 118.0 GiB of 124.9 GiB available, control group's limit none, pressure 0 %, bandwidth 256 GB/s
memory nodes: node 0: 124.9 GiB, 32 CPUs

DEVICE            NAME                                         KIND                                   ENGINE NAME     TOTAL      FREE    MEMORY  LINK  NODE
pci:0000:c5:00.0  AMD Radeon 8060S Graphics (RADV STRIX_HALO)  integrated (shares the host's memory)  Vulkan0      63.0 GiB  61.5 GiB  256 GB/s     ?     -

MODELS IN       FREE     READS
/models    500.0 GiB  2.5 GB/s"""  # noqa: E501  # as printed


def test_a_machine_is_shown_with_its_pools_rates_and_what_is_unknown() -> None:
    recorded = decode_profile((PROFILES / "strix-halo.json").read_text())

    assert profile_text(recorded) == STRIX_HALO_TEXT


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.json")), ids=lambda path: path.stem)
def test_every_machine_can_be_shown(path: Path) -> None:
    recorded = decode_profile(path.read_text())

    text = profile_text(recorded)

    assert recorded.hardware.host.cpu_name in text
    assert all(device.name in text for device in recorded.hardware.devices)


def test_a_recorded_machine_has_today_as_its_origin_and_no_path_of_a_user() -> None:
    hardware = decode_profile((PROFILES / "no-gpu.json").read_text()).hardware
    private = replace(hardware, storage=(Storage("/home/ada/models", 1, None),))

    recorded = decode_profile(recorded_now(private, dirs=("/not/there", "/home/ada/models")))

    assert recorded.origin.startswith("recorded by inferenceosd ")
    assert recorded.hardware.storage == (Storage("models.dirs[2]", 1, None),)
    assert recorded.hardware.host == hardware.host


def test_who_runs_the_daemon_reads_folders_by_their_paths_and_those_of_elsewhere_by_number() -> (
    None
):
    dirs = ("/srv/models", "/home/ada/models")
    hardware = decode_profile((PROFILES / "no-gpu.json").read_text()).hardware
    private = replace(hardware, storage=(Storage(dirs[1], 1, None), Storage("/elsewhere", 2, None)))
    recorded = decode_profile(recorded_now(private, dirs=dirs)).hardware

    shown = with_paths(recorded, dirs=dirs)

    assert [each.folder for each in shown.storage] == [dirs[1], "models.dirs[?]"]


def test_a_card_of_more_than_a_terabyte_a_second_is_written_without_an_exponent() -> None:
    text = profile_text(decode_profile((PROFILES / "nvidia-24gb.json").read_text()))

    assert " 1008 GB/s " in text
