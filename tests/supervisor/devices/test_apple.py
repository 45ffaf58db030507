import pytest

from planners.hardware import DeviceKind, Note, NoteKind
from planners.sizes import GIB, MIB
from supervisor.devices.apple import parse_sysctl
from supervisor.devices.sighting import Reading


def sysctl(memory_bytes: int, wired_mib: int | None = 0) -> str:
    wired = "" if wired_mib is None else f"iogpu.wired_limit_mb: {wired_mib}\n"
    return f"hw.memsize: {memory_bytes}\n{wired}machdep.cpu.brand_string: Apple M2 Max\n"


@pytest.mark.parametrize(
    ("text", "total_bytes"),
    [
        (sysctl(16 * GIB), 16 * GIB * 2 // 3),
        (sysctl(64 * GIB), 48 * GIB),
        (sysctl(64 * GIB, wired_mib=57344), 57344 * MIB),
        (sysctl(64 * GIB, wired_mib=None), 48 * GIB),
    ],
    ids=["small", "large", "raised", "older-system"],
)
def test_the_gpus_share_of_memory_is_the_systems_or_the_owners(text: str, total_bytes: int) -> None:
    (gpu,) = parse_sysctl(text).sightings

    assert gpu.total_bytes == total_bytes
    assert gpu.free_bytes is None
    assert gpu.name == "Apple M2 Max"
    assert gpu.kind is DeviceKind.INTEGRATED


def test_an_answer_without_memory_is_a_note() -> None:
    assert parse_sysctl("sysctl: unknown oid") == Reading(
        notes=(Note(NoteKind.DRIVER, "sysctl: hw.memsize is missing"),)
    )
