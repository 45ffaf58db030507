"""What the machine is, as planners see it: one frozen snapshot, made by supervisor.probe.

Unknown is None, never zero.
"""

from enum import Enum
from typing import NewType

from msgspec import Struct

DeviceId = NewType("DeviceId", str)
"""Stable name of one physical device: "pci:0000:01:00.0", "uuid:GPU-…", else "vulkan:Vulkan0"."""

HOST = DeviceId("host")
"""The host's memory, as the key of a byte count."""


def has_address(device_id: DeviceId) -> bool:
    """True where an identity is the card's own, not what an engine calls it at this moment."""
    return device_id.startswith(("pci:", "uuid:"))


class DeviceKind(Enum):
    """What a device is to placement."""

    DISCRETE = "discrete"
    INTEGRATED = "integrated"  # its memory is the host's
    SOFTWARE = "software"  # a CPU posing as a GPU, such as llvmpipe: never chosen unless told
    REMOTE = "remote"  # a ggml-rpc-server
    UNKNOWN = "unknown"


class Device(Struct, frozen=True):
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
    is_carved_out: bool = False
    """True for an integrated GPU whose bytes are only those that the firmware set aside for it,
    which are no part of the host's memory."""
    bandwidth_bytes_per_s: float | None = None
    """Of its memory, by its clock and bus or by its maker's data sheet."""
    link_bytes_per_s: float | None = None
    """One way to the host, by the slowest hop at full speed; None where it is no PCIe card."""
    compute_flops: float | None = None
    """Peak single-precision operations per second, matrix units left out."""
    numa_node: int | None = None
    """The node it hangs on; None where there is one node, or nobody tells."""

    @property
    def shares_host(self) -> bool:
        """True where its bytes are the host's too, so that both must be counted from one pool."""
        return (
            self.kind is DeviceKind.SOFTWARE
            or (self.kind is DeviceKind.INTEGRATED and not self.is_carved_out)
            or self.is_loopback
        )

    @property
    def is_loopback(self) -> bool:
        """True for a ggml-rpc-server of this very machine, "rpc:127.0.0.1:50052"."""
        return self.device_id.startswith(("rpc:127.", "rpc:localhost:", "rpc:[::1]:"))

    @property
    def has_address(self) -> bool:
        """True where its identity is its own, not what an engine calls it at this moment."""
        return has_address(self.device_id)

    @property
    def is_slice(self) -> bool:
        """True for a part of an NVIDIA card that MIG cut up."""
        return self.device_id.startswith("uuid:MIG-")

    @property
    def pci(self) -> str | None:
        """Its PCI address, "0000:01:00.0"; None where it has none or nobody tells."""
        bus, _, address = self.device_id.partition(":")
        return address if bus == "pci" else None

    def engine_name(self, backend: str) -> str | None:
        """What `backend` calls this device, or None where it does not see it."""
        return dict(self.engine_names).get(backend)


class NumaNode(Struct, frozen=True):
    """One node's share of the host's memory and processors."""

    node: int
    total_bytes: int
    n_cpus: int


class Host(Struct, frozen=True):
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
    numa_nodes: tuple[NumaNode, ...] = ()
    """By number; () where the system does not tell."""
    bandwidth_bytes_per_s: float | None = None
    """Of its memory, by its maker's data sheet."""
    wake_s: float | None = None
    """From one thread waking another to that one running on another CPU, measured."""
    has_tiles: bool = False
    """Whether its cores multiply blocks of 8-bit integers at once (AMX)."""


class Storage(Struct, frozen=True):
    """A folder of models and the disk below it."""

    folder: str
    free_bytes: int | None
    read_bytes_per_s: float | None
    """Measured past the page cache; None where there is no model to read, or none yet was."""


class Absence(Struct, frozen=True):
    """A device that is wanted and not there."""

    name: str
    """Its id where it was here before, else the name that the configuration gives it."""
    reason: str
    """One sentence: since when, and what the sources say."""


class NoteKind(Enum):
    """What a note is about."""

    DRIVER = "driver"  # a vendor's driver or library is not there, or says nonsense
    FAULT = "fault"  # one that is there fails: its cards cannot be relied on
    ENGINE = "engine"  # an engine does not list its devices
    SERVER = "server"  # a ggml-rpc-server cannot be used
    DEVICE = "device"  # a device that was read well has a catch
    RULE = "rule"  # a rule of the configuration names no device


class Note(Struct, frozen=True):
    """What could not be read and why, or what else an operator should know; for people."""

    kind: NoteKind
    text: str
    device_id: DeviceId | None = None
    """The device it is about, where it is about one."""

    def __str__(self) -> str:
        return self.text


class HardwareProfile(Struct, frozen=True):
    """The machine at one moment."""

    host: Host
    devices: tuple[Device, ...]
    notes: tuple[Note, ...] = ()
    """Such as "NVML: driver/library version mismatch"."""
    storage: tuple[Storage, ...] = ()
    absent: tuple[Absence, ...] = ()
    """Wanted devices that are missing; any makes the machine DEGRADED."""
