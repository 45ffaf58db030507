"""AMD's cards: bytes from the kernel's amdgpu driver, names from pyamdgpuinfo if it is there.

The only module that knows pyamdgpuinfo, which comes without types and under GPL-3, as an extra.
"""

from collections.abc import Iterator
from pathlib import Path

from planners.hardware import DeviceKind
from supervisor.devices.kernel_files import ROOT, text_of
from supervisor.devices.sighting import Reading, Sighting, kind_by_name

try:
    import pyamdgpuinfo
except ImportError:
    pyamdgpuinfo = None

_VENDOR = "0x1002"  # PCI id


class AmdSource:
    """Every card that amdgpu drives, from /sys under `root`."""

    name = "amdgpu"

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def read(self) -> Reading:
        """The cards in PCI order. Needs no library and no permission beyond reading /sys."""
        folders = sorted(_folders(self._root), key=_pci)
        if not folders:
            return Reading()
        names, notes = _names() if self._root == ROOT else ({}, ())
        return Reading(
            tuple(_card(folder, names.get(_pci(folder), "")) for folder in folders), notes
        )


def _folders(root: Path) -> Iterator[Path]:
    for device in (root / "sys/class/drm").glob("card*/device"):
        is_card = device.parent.name.removeprefix("card").isdigit()  # not a connector: card0-DP-1
        if is_card and text_of(device / "vendor").strip() == _VENDOR:
            yield device


def _card(folder: Path, name: str) -> Sighting:
    kind = kind_by_name(name)
    total, used = (_bytes(folder / f"mem_info_vram_{what}") for what in ("total", "used"))
    if kind is DeviceKind.INTEGRATED:
        # VRAM is only the firmware's carve-out; the GTT lends an APU host memory just as fast.
        total = _sum(total, _bytes(folder / "mem_info_gtt_total"))
        used = _sum(used, _bytes(folder / "mem_info_gtt_used"))
    return Sighting(
        source=AmdSource.name,
        name=name,
        kind=kind,
        total_bytes=total,
        free_bytes=None if total is None or used is None else max(0, total - used),
        pci=_pci(folder),
    )


def _pci(folder: Path) -> str:
    """The address, from uevent's "PCI_SLOT_NAME=0000:03:00.0"."""
    pairs = (line.partition("=") for line in text_of(folder / "uevent").splitlines())
    return {key: value for key, _, value in pairs}.get("PCI_SLOT_NAME", "").lower()


def _names() -> tuple[dict[str, str], tuple[str, ...]]:
    """PCI address → marketing name."""
    if pyamdgpuinfo is None:
        return {}, ()
    try:
        cards = [pyamdgpuinfo.get_gpu(n) for n in range(pyamdgpuinfo.detect_gpus())]
    except (OSError, RuntimeError) as exc:  # what it raises: no permission, a card that left
        return {}, (f"pyamdgpuinfo: {exc}",)
    return {str(c.pci_slot).lower(): str(c.name) for c in cards if c.pci_slot and c.name}, ()


def _bytes(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
