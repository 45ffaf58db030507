"""What this machine has for its cards: drivers in the kernel, device files, libraries.

Facts for `inferenceosctl doctor`, which judges them; nothing here is needed to run a model.
"""

import ctypes.util
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from supervisor.devices.kernel_files import ROOT, text_of

VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # PCI ids
_DISPLAY_CLASS = "0x03"
_NODES = ("dev/dri/renderD*", "dev/kfd", "dev/nvidiactl", "dev/nvidia[0-9]*", "dev/dxg")
_BOTH = stat.S_IROTH | stat.S_IWOTH  # to read and to write, as the rights of all others tell it
_ICDS = ("usr/share/vulkan/icd.d/*.json", "etc/vulkan/icd.d/*.json")


class Card(Struct, frozen=True):
    """A display controller on the PCI bus."""

    address: str
    vendor: str
    driver: str | None
    """The kernel's driver that is bound to it; None where none is."""


class Node(Struct, frozen=True):
    """A device file through which a process reaches its card."""

    path: str
    may_use: bool
    """The user in question may read and write it."""
    group: str
    """Whose members may, by name, or by number where it has none; "" where it takes root."""


class Person(Struct, frozen=True):
    """Whose rights count: the daemon's where one runs, else ours."""

    uid: int
    gids: frozenset[int]


class Drivers(Struct, frozen=True):
    """All that is known."""

    cards: tuple[Card, ...]
    nodes: tuple[Node, ...]
    has_vulkan_loader: bool
    vulkan_drivers: tuple[str, ...]
    """Names of the files that tell Vulkan's loader its drivers."""


def read_drivers(person: Person, *, root: Path = ROOT) -> Drivers:
    """The facts under `root`; blocks for some milliseconds."""
    return Drivers(
        cards=tuple(_cards(root)),
        nodes=tuple(_nodes(root, person)),
        has_vulkan_loader=ctypes.util.find_library("vulkan") is not None,
        vulkan_drivers=tuple(icd.stem for pattern in _ICDS for icd in sorted(root.glob(pattern))),
    )


def person_of(pid: int | None) -> Person:
    """Who runs process `pid`; we, where it is None or gone."""
    status = "" if pid is None else text_of(Path(f"/proc/{pid}/status"))
    told = {name: rest.split() for name, _, rest in (s.partition(":") for s in status.splitlines())}
    if "Uid" not in told or "Gid" not in told:
        return Person(os.geteuid(), frozenset((os.getegid(), *os.getgroups())))
    gids = (told["Gid"][1], *told.get("Groups", ()))
    return Person(int(told["Uid"][1]), frozenset(map(int, gids)))


def _cards(root: Path) -> Iterator[Card]:
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor = VENDORS.get(text_of(device / "vendor").strip())
        if vendor is not None and text_of(device / "class").startswith(_DISPLAY_CLASS):
            driver = device / "driver"
            yield Card(device.name, vendor, driver.resolve().name if driver.exists() else None)


def _nodes(root: Path, person: Person) -> Iterator[Node]:
    for path in sorted(path for pattern in _NODES for path in root.glob(pattern)):
        try:
            found = path.stat()
        except OSError:
            continue
        is_shared = found.st_gid != 0 and found.st_mode >> 3 & _BOTH == _BOTH
        group = _group(found.st_gid) if is_shared else ""
        yield Node(f"/{path.relative_to(root)}", _may_use(path, found, person), group)


def _may_use(path: Path, found: os.stat_result, person: Person) -> bool:
    if person.uid == os.geteuid():
        return os.access(path, os.R_OK | os.W_OK)  # access lists count too, which modes do not show
    if person.uid == 0:
        return True
    if found.st_uid == person.uid:
        return found.st_mode >> 6 & _BOTH == _BOTH
    if found.st_gid in person.gids:
        return found.st_mode >> 3 & _BOTH == _BOTH
    return found.st_mode & _BOTH == _BOTH


def _group(gid: int) -> str:
    lines = text_of(Path("/etc/group")).splitlines()
    names = {parts[2]: parts[0] for parts in (line.split(":") for line in lines) if len(parts) > 2}
    return names.get(str(gid), str(gid))
