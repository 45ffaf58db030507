"""NVIDIA's cards through NVML: the only module that knows pynvml, which comes without types.

NVML names a card by PCI address and knows nothing of CUDA's numbers; supervisor.devices.identity
joins the two.
"""

from pathlib import Path
from typing import Any

from planners.hardware import DeviceKind
from supervisor.devices.kernel_files import ROOT, text_of
from supervisor.devices.sighting import Reading, Sighting, kind_by_name

try:
    import pynvml
except ImportError:  # a distribution may package us without it
    pynvml = None

_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"  # PCI ids: NVIDIA; display controllers


class NvidiaSource:
    """Every card NVML lists. NVML stays open between readings: idle cards start up slowly."""

    name = "nvml"

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._ready = False

    def read(self) -> Reading:
        """The cards, or a note that says why there is no reading while a card is there."""
        if pynvml is None:
            return self._unread("the nvidia-ml-py package is not installed")
        try:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
            handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(_count())]
        except pynvml.NVMLError_LibraryNotFound:
            return self._unread("libnvidia-ml.so.1 is not installed (it comes with the driver)")
        except pynvml.NVMLError as exc:
            self._ready = False  # a driver that was replaced or lost needs a new start
            return self._unread(
                str(exc), always=not isinstance(exc, pynvml.NVMLError_DriverNotLoaded)
            )
        sightings: list[Sighting] = []
        notes: list[str] = []
        for index, handle in enumerate(handles):
            try:
                sightings.extend(_cards(handle))
            except pynvml.NVMLError as exc:
                notes.append(f"NVML: card {index}: {exc}")
        return Reading(tuple(sightings), tuple(notes))

    def _unread(self, why: str, *, always: bool = False) -> Reading:
        """No reading. On a machine without such a card that is no news, so no note."""
        return Reading(notes=(f"NVML: {why}",) if always or has_card(self._root) else ())


def has_card(root: Path) -> bool:
    """True when the PCI bus shows an NVIDIA display controller, driver or not."""
    return any(
        text_of(device / "vendor").strip() == _VENDOR
        and text_of(device / "class").startswith(_DISPLAY_CLASS)
        for device in (root / "sys/bus/pci/devices").glob("*")
    )


def _count() -> int:
    return int(pynvml.nvmlDeviceGetCount())


def _cards(handle: Any) -> list[Sighting]:
    """The card as one device, or its MIG slices: CUDA sees those in its stead."""
    slices = _mig_slices(handle)
    pci = None if slices else pci_address(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    return [_card(each, pci=pci) for each in slices or [handle]]


def _card(handle: Any, *, pci: str | None) -> Sighting:
    name = str(pynvml.nvmlDeviceGetName(handle))
    memory = _memory(handle)
    kind = kind_by_name(name)
    return Sighting(
        source=NvidiaSource.name,
        name=name,
        kind=DeviceKind.DISCRETE if kind is DeviceKind.UNKNOWN else kind,
        total_bytes=memory[0] if memory else None,
        free_bytes=memory[1] if memory else None,
        pci=pci,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
    )


def _memory(handle: Any) -> tuple[int, int] | None:
    """(total, free) bytes; None on unified-memory machines, where NVML has no such figure."""
    # v2 tells reserved memory apart from used; v1 is all that old drivers have.
    for version in (pynvml.nvmlMemory_v2, None):
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version)
        except (
            pynvml.NVMLError_FunctionNotFound,
            pynvml.NVMLError_NotSupported,
            pynvml.NVMLError_ArgumentVersionMismatch,
        ):
            continue
        return int(memory.total), int(memory.free)
    return None


def _mig_slices(handle: Any) -> list[Any]:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
        if current != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        most = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
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
