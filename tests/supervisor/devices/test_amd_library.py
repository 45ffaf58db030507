"""The real pyamdgpuinfo over libdrm's calls from tests/fakes/libdrm, in a child process."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from planners.sizes import GIB, MIB
from tests.fakes.c_libraries import built

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "tests" / "fakes" / "libdrm" / "amdgpu.c"
READ = """
import sys
import msgspec
from pathlib import Path
from supervisor.devices.amd import AmdSource
reading = AmdSource(Path(sys.argv[1]), asks_library=True).read()
print(msgspec.json.encode(reading).decode())
"""
pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="pyamdgpuinfo has wheels for Linux on x86-64 alone",
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(SOURCE, tmp_path_factory.mktemp("libdrm") / "amdgpu.so")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A root with one APU, as amdgpu shows it."""
    card = tmp_path / "root/sys/class/drm/card0/device"
    card.mkdir(parents=True)
    for name, text in {
        "vendor": "0x1002",
        "device": "0x1586",
        "uevent": "PCI_SLOT_NAME=0000:c5:00.0",
        "mem_info_vram_total": str(512 * MIB),
        "mem_info_vram_used": str(100 * MIB),
        "mem_info_gtt_total": str(62 * GIB),
        "mem_info_gtt_used": "0",
    }.items():
        (card / name).write_text(f"{text}\n")
    return tmp_path / "root"


def nodes(folder: Path) -> Path:
    """A /dev/dri with that card."""
    (folder / "by-path").mkdir(parents=True)
    (folder / "renderD128").touch()
    (folder / "by-path" / "pci-0000:c5:00.0-render").symlink_to("../renderD128")
    return folder


def read(library: Path, sysfs: Path, dri: Path) -> dict[str, list[dict[str, object]]]:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(sysfs)],
        env={"LD_PRELOAD": str(library), "FAKE_DRI": str(dri), "PATH": os.defpath},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
    return found


def test_the_librarys_name_and_the_kernels_bytes_make_one_card(
    library: Path, sysfs: Path, tmp_path: Path
) -> None:
    reading = read(library, sysfs, nodes(tmp_path / "dri"))

    (card,) = reading["sightings"]
    assert card["name"] == "AMD Radeon 8060S Graphics"
    assert card["kind"] == "integrated"
    assert card["total_bytes"] == 62 * GIB + 512 * MIB
    assert card["free_bytes"] == 62 * GIB + 412 * MIB
    assert reading["notes"] == []


def test_a_library_that_finds_no_device_file_is_a_note_beside_the_kernels_bytes(
    library: Path, sysfs: Path, tmp_path: Path
) -> None:
    reading = read(library, sysfs, tmp_path / "nothing")

    assert reading["sightings"][0]["total_bytes"] == 62 * GIB + 512 * MIB
    note = reading["notes"][0]["text"]
    assert str(note).startswith("pyamdgpuinfo: ")
