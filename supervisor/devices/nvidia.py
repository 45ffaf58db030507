"""NVIDIA's cards through NVML: the only module that knows pynvml, which comes without types.

NVML names a card by PCI address and knows nothing of CUDA's numbers; supervisor.devices.identity
joins the two.
"""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from planners.hardware import DeviceKind, Note, NoteKind
from supervisor.devices.kernel_files import ROOT
from supervisor.devices.nvidia_presence import LIBRARY, cards_on_bus, has_card, is_wsl
from supervisor.devices.pci import link_bytes_per_s, numa_node
from supervisor.devices.sighting import Reading, Sighting, kind_by_name

try:
    import pynvml
except ImportError:  # a distribution may package us without it
    pynvml = None

_UNTOLD: tuple[type[Exception], ...] = (
    ()
    if pynvml is None
    else (
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_ArgumentVersionMismatch,
    )
)
"""What NVML answers where this card or this driver has no such figure."""


class NvidiaSource:
    """Every card NVML lists. NVML stays open between readings: idle cards start up slowly."""

    name = "nvml"

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._opened_for: frozenset[str] | None = None

    def read(self) -> Reading:
        """The cards, or a note that says why there is no reading while a card is there."""
        if pynvml is None:
            return self._unread("the nvidia-ml-py package is not installed")
        try:
            self._open()
            n_cards = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as exc:
            self._opened_for = None  # a driver that was replaced or lost needs a new start
            why, is_fault = _told(exc, self._root)
            return self._unread(why, is_fault=is_fault)
        readings = [self._card(index) for index in range(n_cards)]
        return Reading(
            tuple(sighting for reading in readings for sighting in reading.sightings),
            tuple(note for reading in readings for note in reading.notes),
        )

    def _open(self) -> None:
        """Start NVML, anew where cards came or went: it lists those that its start found."""
        there = cards_on_bus(self._root)
        if self._opened_for is not None and self._opened_for != there:
            self._opened_for = None
            pynvml.nvmlShutdown()
        if self._opened_for is None:
            pynvml.nvmlInit()
            self._opened_for = there

    def _card(self, index: int) -> Reading:
        """One card, or its MIG slices: CUDA sees those in its stead. A lost one costs no other."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            slices = _mig_slices(handle)
            address = pci_address(pynvml.nvmlDeviceGetPciInfo(handle).busId)
            if slices:
                node = numa_node(self._root, address)
                return Reading(tuple(replace(_sighting(each), numa_node=node) for each in slices))
            whole = replace(
                _sighting(handle),
                pci=address,
                numa_node=numa_node(self._root, address),
                link_bytes_per_s=link_bytes_per_s(self._root, address),
                bandwidth_bytes_per_s=_bandwidth_bytes_per_s(handle),
                compute_flops=_flops(handle),
            )
        except pynvml.NVMLError as exc:
            return Reading(notes=(_note(f"card {index}: {exc}", NoteKind.FAULT),))
        return Reading((whole,))

    def _unread(self, why: str, *, is_fault: bool = False) -> Reading:
        """No reading. On a machine without such a card a want is no news, and no fault one."""
        if has_card(self._root):
            return Reading(notes=(_note(why, NoteKind.FAULT if is_fault else NoteKind.DRIVER),))
        return Reading(notes=(_note(why),) if is_fault else ())


def _note(why: str, kind: NoteKind = NoteKind.DRIVER) -> Note:
    return Note(kind, f"NVML: {why}")


def _told(exc: Any, root: Path) -> tuple[str, bool]:
    """What keeps NVML from starting, with its remedy, and whether it is there and fails."""
    if isinstance(exc, pynvml.NVMLError_LibraryNotFound):
        if is_wsl(root):
            return f"{LIBRARY} is not found; on WSL it comes with Windows' driver", False
        return f"{LIBRARY} is not installed (it comes with the driver)", False
    if isinstance(exc, pynvml.NVMLError_LibRmVersionMismatch):
        said = str(exc).rstrip(".")
        return f"{said}: the driver was replaced while it ran; restart the machine", True
    if isinstance(exc, pynvml.NVMLError_DriverNotLoaded):
        return f"{exc}: load it with modprobe nvidia, or install NVIDIA's driver", False
    return str(exc), True


def _sighting(handle: Any) -> Sighting:
    name = str(pynvml.nvmlDeviceGetName(handle))
    memory = _memory(handle)
    kind = kind_by_name(name)
    return Sighting(
        source=NvidiaSource.name,
        name=name,
        kind=DeviceKind.DISCRETE if kind is DeviceKind.UNKNOWN else kind,
        total_bytes=memory[0] if memory else None,
        free_bytes=memory[1] if memory else None,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
    )


def _memory(handle: Any) -> tuple[int, int] | None:
    """(total, free) bytes; None on unified-memory machines, where NVML has no such figure."""
    # v2 tells reserved memory apart from used; v1 is all that old drivers have.
    for version in (pynvml.nvmlMemory_v2, None):
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version)
        except _UNTOLD:
            continue
        return (int(memory.total), int(memory.free)) if memory.total else None
    return None


def _bandwidth_bytes_per_s(handle: Any) -> float | None:
    """Peak of the card's memory: two transfers a clock (GDDR6 and HBM alike) times the bus.

    RTX 4090: 2 × 10501 MHz × 384 bit / 8 = 1008 GB/s, as its data sheet says.
    """
    try:
        clock_mhz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)
        bus_bits = pynvml.nvmlDeviceGetMemoryBusWidth(handle)
    except _UNTOLD:
        return None
    return 2 * clock_mhz * 1e6 * bus_bits / 8 or None


def _flops(handle: Any) -> float | None:
    """Peak single-precision operations/s: a multiplication and an addition per core and clock."""
    try:
        clock_mhz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        n_cores = pynvml.nvmlDeviceGetNumGpuCores(handle)
    except _UNTOLD:
        return None
    return 2 * clock_mhz * 1e6 * n_cores or None


def _mig_slices(handle: Any) -> list[Any]:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        if current != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except _UNTOLD:
        return []
    slices = []
    for index in range(most):
        try:
            slices.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except pynvml.NVMLError_NotFound:  # places that no slice takes
            continue
    return slices


def pci_address(bus_id: str | bytes) -> str:
    """ "0000:01:00.0" as the kernel writes it, from NVML's "00000000:01:00.0"."""
    text = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id).lower()
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"
