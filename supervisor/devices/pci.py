"""What the kernel says of a PCI device's way to the host, whoever made the card."""

import re
from collections.abc import Iterator
from pathlib import Path

from supervisor.devices.kernel_files import text_of

# GT/s → bytes/s of one lane, one way, after line coding: 8b/10b up to 5, 128b/130b up to 32, and
# from 64 on PCIe's fixed-size packets (PCI Express Base Specification 6.0, table 1-2).
_LANE_BYTES_PER_S = {
    2.5: 0.25e9,
    5.0: 0.5e9,
    8.0: 8e9 * 128 / 130 / 8,
    16.0: 16e9 * 128 / 130 / 8,
    32.0: 32e9 * 128 / 130 / 8,
    64.0: 64e9 * 242 / 256 / 8,
}
_MOST_LANES = 32


def link_bytes_per_s(root: Path, address: str) -> float | None:
    """Bytes/s one way between the device and the host; None where the kernel does not tell.

    The slowest hop counts. Its speed is the highest it can do, since links slow down at idle; its
    width is the one in use, which does not change at idle and shows a card in too short a slot.
    """
    hops = [rate for folder in _path(root, address) if (rate := _hop(folder)) is not None]
    return min(hops, default=None)


def numa_node(root: Path, address: str) -> int | None:
    """The memory node that the device hangs on; None where there is none (the kernel says -1)."""
    text = text_of(_device(root, address) / "numa_node").strip()
    return int(text) if text.isdecimal() else None


def _device(root: Path, address: str) -> Path:
    return root / "sys/bus/pci/devices" / address


def _path(root: Path, address: str) -> Iterator[Path]:
    """The device and the bridges above it: a bus's folder lies inside of its bridge's."""
    folder = _device(root, address).resolve()
    while re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", folder.name):
        yield folder
        folder = folder.parent


def _hop(folder: Path) -> float | None:
    speed = re.match(r"([\d.]+) GT/s", text_of(folder / "max_link_speed"))
    lane = _LANE_BYTES_PER_S.get(float(speed[1])) if speed else None
    width = _lanes(folder / "current_link_width") or _lanes(folder / "max_link_width")
    return None if lane is None or width is None else lane * width


def _lanes(path: Path) -> int | None:
    """A link's lanes; a port with nothing behind it says 0, some integrated ones say 255."""
    text = text_of(path).strip()
    return int(text) if text.isdecimal() and 0 < int(text) <= _MOST_LANES else None
