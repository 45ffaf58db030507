"""What the machine is, as planners see it: one frozen snapshot, made by supervisor.probe.

Unknown is None, never zero.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NewType

DeviceId = NewType("DeviceId", str)
"""Stable name of one physical device: "pci:0000:01:00.0", "uuid:GPU-…", else "vulkan:Vulkan0"."""

HOST = DeviceId("host")
"""The host's memory, as the key of a byte count."""


class DeviceKind(Enum):
    """What a device is to placement."""

    DISCRETE = "discrete"
    INTEGRATED = "integrated"  # its memory is the host's
    SOFTWARE = "software"  # a CPU posing as a GPU, such as llvmpipe: never chosen unless told
    REMOTE = "remote"  # a ggml-rpc-server
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Device:
    """One physical device, under one identity over all backends that see it."""

    device_id: DeviceId
    kind: DeviceKind
    name: str
    """As the vendor calls it, e.g. "NVIDIA GeForce RTX 4090"."""
    engine_names: tuple[tuple[str, str], ...]
    """(backend, name) pairs: what `--device` calls it in each, e.g. ("vulkan", "Vulkan0")."""
    total_bytes: int | None
    free_bytes: int | None
    limit_bytes: int | None = None
    """How much of it the operator lets us use; None means all of it."""
    reserve_bytes: int = 0
    """What must stay free on it for others."""
    use: bool = True
    """False when the operator keeps us off it."""

    def engine_name(self, backend: str) -> str | None:
        """What `backend` calls this device, or None where it does not see it."""
        return dict(self.engine_names).get(backend)


@dataclass(frozen=True, slots=True)
class Host:
    """The host's memory and processor, after control-group limits."""

    total_bytes: int
    available_bytes: int
    """What can be had now: MemAvailable, cut to the tightest control group's headroom."""
    cgroup_limit_bytes: int | None
    """The least limit over all ancestors; None where none is set."""
    n_cores: int
    """Cores that may be used (affinity and quota), at least 1."""
    n_physical_cores: int
    cpu_name: str
    limit_bytes: int | None = None
    """How much of it the operator lets us use; None means all of it."""
    reserve_bytes: int = 0
    psi_some_avg10: float | None = None
    """Memory pressure: percent of the last 10 s in which some task stalled; None where unknown."""


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """The machine at one moment."""

    host: Host
    devices: tuple[Device, ...]
    notes: tuple[str, ...] = ()
    """What could not be read and why, for people: "NVML: driver/library version mismatch"."""
