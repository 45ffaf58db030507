"""AMD's cards: bytes from the kernel's amdgpu driver, names from pyamdgpuinfo if it is there.

The only module that knows pyamdgpuinfo, which comes without types and under GPL-3, as an extra.
"""

from collections.abc import Iterator
from pathlib import Path

from planners.hardware import DeviceKind, Note, NoteKind
from supervisor.devices.kernel_files import ROOT, text_of
from supervisor.devices.pci import link_bytes_per_s, numa_node
from supervisor.devices.sighting import Reading, Sighting, kind_by_name

_VENDOR = "0x1002"  # PCI id
_APUS = frozenset({
    "0x15dd", "0x15d8",  # Raven, Picasso
    "0x1636", "0x1638", "0x164c",  # Renoir, Cezanne, Lucienne
    "0x163f", "0x1435",  # Van Gogh
    "0x164d", "0x1681", "0x164e", "0x13c0",  # Rembrandt, Raphael, Granite Ridge
    "0x1506", "0x15bf", "0x15c8", "0x1900", "0x1901",  # Mendocino, Phoenix, Hawk Point
    "0x150e", "0x1114", "0x1586",  # Strix Point, Krackan Point, Strix Halo
})  # fmt: skip
"""Device ids of processors with graphics, by the PCI ID database (pci.ids) and Mesa's RADV."""


class AmdSource:
    """Every card that amdgpu drives, from /sys under `root`."""

    name = "amdgpu"

    def __init__(self, root: Path = ROOT, *, asks_library: bool | None = None) -> None:
        self._root = root
        # It knows this machine's cards alone, never those of a recorded tree.
        self._asks_library = root == ROOT if asks_library is None else asks_library

    def read(self) -> Reading:
        """The cards in PCI order. Needs no library and no permission beyond reading /sys."""
        folders = sorted(_folders(self._root), key=_pci)
        if not folders:
            return Reading()
        names, notes = _names() if self._asks_library else ({}, ())
        return Reading(
            tuple(_card(folder, names.get(_pci(folder), ""), self._root) for folder in folders),
            notes,
        )


def _folders(root: Path) -> Iterator[Path]:
    for device in (root / "sys/class/drm").glob("card*/device"):
        is_card = device.parent.name.removeprefix("card").isdigit()  # not a connector: card0-DP-1
        if is_card and text_of(device / "vendor").strip() == _VENDOR:
            yield device


def _card(folder: Path, name: str, root: Path) -> Sighting:
    vram = _pool(folder, "vram")
    address = _pci(folder)
    kind = _kind(folder, name)
    is_integrated = kind is DeviceKind.INTEGRATED
    # VRAM is only the firmware's carve-out; the GTT lends an APU host memory just as fast.
    gtt = _pool(folder, "gtt")
    memory = _both(vram, gtt) if is_integrated else vram
    return Sighting(
        source=AmdSource.name,
        name=name,
        kind=kind,
        total_bytes=memory[0] if memory else None,
        free_bytes=memory[1] if memory else None,
        pci=address,
        carved_out=None if kind is DeviceKind.DISCRETE else vram,
        lent=gtt if kind is DeviceKind.UNKNOWN else None,  # an APU newer than _APUS, perhaps
        link_bytes_per_s=None if is_integrated else link_bytes_per_s(root, address),
        numa_node=numa_node(root, address),
    )


def _kind(folder: Path, name: str) -> DeviceKind:
    """By PCI id where it is an APU's, since the kernel gives no name; else by name."""
    if text_of(folder / "device").strip().lower() in _APUS:
        return DeviceKind.INTEGRATED
    return kind_by_name(name)


def _pool(folder: Path, name: str) -> tuple[int, int] | None:
    """(total, free) bytes of "vram" or "gtt"."""
    total = _bytes(folder / f"mem_info_{name}_total")
    used = _bytes(folder / f"mem_info_{name}_used")
    return None if total is None or used is None else (total, max(0, total - used))


def _both(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if one is None or other is None else (one[0] + other[0], one[1] + other[1])


def _pci(folder: Path) -> str:
    """The address, from uevent's "PCI_SLOT_NAME=0000:03:00.0"."""
    pairs = (line.partition("=") for line in text_of(folder / "uevent").splitlines())
    return {key: value for key, _, value in pairs}.get("PCI_SLOT_NAME", "").lower()


def _names() -> tuple[dict[str, str], tuple[Note, ...]]:
    """PCI address → marketing name."""
    try:
        import pyamdgpuinfo  # late: only where amdgpu drives a card
    except ImportError:
        return {}, ()
    try:
        cards = [pyamdgpuinfo.get_gpu(n) for n in range(pyamdgpuinfo.detect_gpus())]
    except (OSError, RuntimeError) as exc:  # what it raises: no permission, a card that left
        return {}, (Note(NoteKind.DRIVER, f"pyamdgpuinfo: {exc}"),)
    return {str(c.pci_slot).lower(): str(c.name) for c in cards if c.pci_slot and c.name}, ()


def _bytes(path: Path) -> int | None:
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None
