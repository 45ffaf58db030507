"""One device as one source sees it, and the shape that every source has."""

from typing import Protocol

from msgspec import Struct

from planners.hardware import DeviceId, DeviceKind, Note


class Sighting(Struct, frozen=True):
    """A device in the eyes of one source. What that source cannot tell is None."""

    source: str
    """"nvml", "amdgpu", "apple", or the engine's backend."""
    name: str
    """As that source calls it; "" where it has no name."""
    kind: DeviceKind
    total_bytes: int | None
    free_bytes: int | None
    pci: str | None = None
    """"0000:01:00.0", lower case."""
    uuid: str | None = None
    engine_name: str | None = None
    """What `--device` calls it; only engines know."""
    carved_out: tuple[int, int] | None = None
    """(total, free) bytes that the firmware set aside for an integrated GPU, part of its own."""
    lent: tuple[int, int] | None = None
    """(total, free) bytes of the host's that it has too, should it turn out to be integrated."""
    bandwidth_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    compute_flops: float | None = None
    numa_node: int | None = None

    @property
    def device_id(self) -> DeviceId | None:
        """The card's identity by its address; None where this source tells none."""
        if self.pci:
            return DeviceId(f"pci:{self.pci}")
        return DeviceId(f"uuid:{self.uuid}") if self.uuid else None


class Reading(Struct, frozen=True):
    """What one source found, and what it could not read."""

    sightings: tuple[Sighting, ...] = ()
    notes: tuple[Note, ...] = ()


class DeviceSource(Protocol):
    """One way to look at the machine's devices."""

    name: str

    def read(self) -> Reading:
        """What is there now. May block or hang: supervisor.patience runs it."""
        ...


SOFTWARE = ("llvmpipe", "lavapipe", "swiftshader", "softpipe")
"""CPUs that pose as GPUs."""
_INTEGRATED = (
    "radeon graphics", "radeon(tm) graphics", "radeon vega", "780m", "760m", "740m", "680m", "660m",
    "880m", "890m", "8050s", "8060s", "uhd graphics", "hd graphics", "iris", "arc(tm) graphics",
    "arc graphics", "arc(tm) 1", "intel(r) graphics", "apple", "tegra", "orin", "thor", "gb10",
    "adreno", "mali",
)  # fmt: skip
_DISCRETE = (
    "nvidia",
    "geforce",
    "quadro",
    "tesla",
    "radeon rx",
    "radeon pro",
    "instinct",
    "arc(tm) a",
    "arc(tm) b",
    "arc(tm) pro",
)


def kind_by_name(name: str) -> DeviceKind:
    """What a device is, by what its drivers call it: no source of ours says it in any other way."""
    lower = name.lower()
    if any(word in lower for word in SOFTWARE):
        return DeviceKind.SOFTWARE
    if any(word in lower for word in _INTEGRATED):
        return DeviceKind.INTEGRATED
    if any(word in lower for word in _DISCRETE):
        return DeviceKind.DISCRETE
    return DeviceKind.UNKNOWN
