"""Whether this machine has anything of NVIDIA's: most have not, and pynvml alone takes 1.7 MB."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.devices.kernel_files import ROOT, text_of
from supervisor.devices.sighting import Reading

LIBRARY = "libnvidia-ml.so.1"
_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"  # PCI ids: NVIDIA; display controllers


class NvidiaIfThere:
    """supervisor.devices.nvidia's source, loaded at the first sight of a card or a driver."""

    name = "nvml"

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._read: Callable[[], Reading] | None = None

    def read(self) -> Reading:
        """What NVML lists; nothing where there is neither a card nor its library."""
        if self._read is None:
            if not (has_card(self._root) or _has_library()):
                return Reading()
            from supervisor.devices.nvidia import NvidiaSource

            self._read = NvidiaSource(self._root).read
        return self._read()


def has_card(root: Path) -> bool:
    """True when the PCI bus shows an NVIDIA display controller, driver or not, or WSL lends one."""
    return bool(cards_on_bus(root)) or is_wsl(root)


def is_wsl(root: Path) -> bool:
    """True in a Linux under Windows that was lent a GPU: no PCI bus shows it there."""
    is_microsofts = "microsoft" in text_of(root / "proc/sys/kernel/osrelease").lower()
    return is_microsofts and (root / "dev/dxg").exists()


def cards_on_bus(root: Path) -> frozenset[str]:
    """PCI addresses of NVIDIA's display controllers."""
    return frozenset(_cards_on_bus(root))


def _cards_on_bus(root: Path) -> Iterator[str]:
    for device in (root / "sys/bus/pci/devices").glob("*"):
        is_nvidias = text_of(device / "vendor").strip() == _VENDOR
        if is_nvidias and text_of(device / "class").startswith(_DISPLAY_CLASS):
            yield device.name


def _has_library() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
