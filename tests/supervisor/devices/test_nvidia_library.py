"""The real pynvml over a libnvidia-ml.so.1 built from tests/fakes/nvml, in a child process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planners.sizes import MIB
from tests.fakes.c_libraries import built

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "tests" / "fakes" / "nvml" / "nvml.c"
FIXTURES = ROOT / "tests" / "fixtures" / "hardware"
READ = """
import sys
import msgspec
from pathlib import Path
from supervisor.devices.nvidia_presence import NvidiaIfThere
reading = NvidiaIfThere(Path(sys.argv[1])).read()
print(msgspec.json.encode(reading).decode())
"""
PROBE = """
import asyncio, sys
from pathlib import Path
from supervisor.devices.nvidia_presence import NvidiaIfThere
from supervisor.probe import HardwareProbe
from tests.fakes.machines import RULES
root = Path(sys.argv[1])
probe = HardwareProbe((), RULES, root=root, sources=(NvidiaIfThere(root),), read_s=0.3)
profile = asyncio.run(probe.profile())
print(profile.notes[0], profile.host.total_bytes > 0)
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fresh libnvidia-ml.so.1."""
    folder = tmp_path_factory.mktemp("nvml")
    return built(SOURCE, folder / "libnvidia-ml.so.1").parent


@pytest.fixture
def told(library: Path) -> Callable[..., str]:
    """What a Python program prints on a machine of the fake library."""

    def run(program: str, machine: str, *, root: Path = FIXTURES / "vm-cgroup-v1") -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, str(root)],
            env={"LD_LIBRARY_PATH": str(library), "FAKE_NVML": machine, "PATH": os.defpath},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def read(told: Callable[..., str]) -> Callable[..., Any]:
    """One reading of NvidiaSource."""
    return lambda machine, **where: json.loads(told(READ, machine, **where))


def test_two_unequal_cards_are_read_with_memory_bandwidth_and_compute(
    read: Callable[..., Any],
) -> None:
    reading = read("two-cards")

    large, small = reading["sightings"]
    assert (large["name"], large["pci"]) == ("NVIDIA GeForce RTX 4090", "0000:41:00.0")
    assert (large["total_bytes"], large["free_bytes"]) == (24564 * MIB, (24564 - 445 - 1000) * MIB)
    assert large["bandwidth_bytes_per_s"] == pytest.approx(1008e9, rel=0.001)  # data sheet
    assert large["compute_flops"] == pytest.approx(101.7e12, rel=0.01)  # at its highest clock
    assert (small["pci"], small["free_bytes"]) == ("0000:01:00.0", (12288 - 300) * MIB)
    assert reading["notes"] == []


def test_a_driver_without_memory_v2_is_read_by_the_first_form(read: Callable[..., Any]) -> None:
    large, _ = read("no-memory-v2")["sightings"]

    assert large["total_bytes"] == 24564 * MIB
    assert large["free_bytes"] == (24564 - 445 - 1000) * MIB


def test_a_card_cut_into_slices_is_its_slices(read: Callable[..., Any]) -> None:
    reading = read("mig")

    assert [(s["uuid"], s["pci"], s["total_bytes"]) for s in reading["sightings"]] == [
        ("MIG-aaaa", None, 40448 * MIB),
        ("MIG-bbbb", None, 9984 * MIB),
    ]


def test_memory_that_is_the_hosts_is_unknown_and_not_zero(read: Callable[..., Any]) -> None:
    (card,) = read("unified")["sightings"]

    assert (card["total_bytes"], card["free_bytes"]) == (None, None)
    assert card["kind"] == "integrated"
    assert card["pci"] == "000f:01:00.0"


def test_a_card_that_fell_off_the_bus_costs_no_other(read: Callable[..., Any]) -> None:
    reading = read("lost")

    assert [s["name"] for s in reading["sightings"]] == ["NVIDIA GeForce RTX 4090"]
    assert [note["text"] for note in reading["notes"]] == ["NVML: card 1: GPU is lost"]


def test_a_library_that_does_not_match_its_driver_is_a_note_with_the_remedy(
    read: Callable[..., Any],
) -> None:
    reading = read("mismatch")

    assert reading["sightings"] == []
    note = reading["notes"][0]["text"]
    assert note.startswith("NVML: RM has detected an NVML/RM version mismatch: the driver")
    assert note.endswith("restart the machine")


@pytest.mark.parametrize(("machine", "kind"), [("mismatch", "fault"), ("not-loaded", "driver")])
def test_a_driver_that_is_there_and_fails_is_a_fault_and_one_that_is_not_there_a_want(
    read: Callable[..., Any], machine: str, kind: str
) -> None:
    with_card = read(machine, root=FIXTURES / "nvidia-without-driver")

    assert [note["kind"] for note in with_card["notes"]] == [kind]


def test_a_library_that_fails_where_there_is_no_card_is_no_fault(
    read: Callable[..., Any],
) -> None:
    assert [note["kind"] for note in read("mismatch")["notes"]] == ["driver"]


def test_a_driver_that_is_not_loaded_is_news_only_where_there_is_a_card(
    read: Callable[..., Any],
) -> None:
    without = read("not-loaded")
    with_card = read("not-loaded", root=FIXTURES / "nvidia-without-driver")

    assert without["notes"] == []
    assert "modprobe nvidia" in with_card["notes"][0]["text"]


def test_a_driver_that_hangs_is_cut_and_the_program_ends(told: Callable[..., str]) -> None:
    begun_s = time.monotonic()

    said = told(PROBE, "hang")

    assert said.strip() == "nvml: no answer within 0.3 s; its driver or disk may hang True"
    assert time.monotonic() - begun_s < 15  # a start of Python; the hang itself has no end


def test_wsl_without_the_library_says_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.6.87.2-microsoft-standard-WSL2\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()

    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)],
        env={"PATH": os.defpath},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    note = json.loads(done.stdout)["notes"][0]["text"]
    assert note.endswith("on WSL it comes with Windows' driver")
