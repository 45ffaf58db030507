"""The limits that control groups set on us, v1, v2 and both at once, over all ancestors.

A group's files lie at mount point + (own path − the mount's root). In a container the path may
name a group of the host that the container cannot see: then the mount point itself is our group.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from supervisor.devices.kernel_files import text_of

_NO_LIMIT_BYTES = 1 << 60  # v1 writes 2^63 rounded down to a page


class MemoryBound(Struct, frozen=True):
    """One group's limit, and what counts against it and cannot be reclaimed."""

    limit_bytes: int
    used_bytes: int


def memory_bounds(root: Path) -> tuple[MemoryBound, ...]:
    """Every limit on this process's memory, from its own group up to the top."""
    bounds = (
        bound
        for version, group in _groups(root, "memory")
        if (bound := (_v2_bound(group) if version == 2 else _v1_bound(group))) is not None
    )
    return tuple(bounds)


def cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time that this process may use, or None where no group limits it."""
    quotas = [
        quota
        for version, group in _groups(root, "cpu")
        if (quota := (_v2_quota(group) if version == 2 else _v1_quota(group))) is not None
    ]
    return min(quotas, default=None)


def _v2_bound(group: Path) -> MemoryBound | None:
    # memory.high counts as a limit: past it the kernel throttles a process until it hardly runs.
    told = (_number(group / name) for name in ("memory.max", "memory.high"))
    limits = [limit for limit in told if limit is not None]
    used = _number(group / "memory.current")
    if not limits or used is None:
        return None
    stat = _stat(group)
    # Both lists of the page cache: a model that children have mapped stands on the active one, and
    # what plans expect of it is counted by themselves.
    cached = stat.get("inactive_file", 0) + stat.get("active_file", 0)
    reclaimable = cached + stat.get("slab_reclaimable", 0)
    return MemoryBound(limit_bytes=min(limits), used_bytes=max(0, used - reclaimable))


def _v1_bound(group: Path) -> MemoryBound | None:
    limit = _number(group / "memory.limit_in_bytes")
    used = _number(group / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= _NO_LIMIT_BYTES:
        return None
    stat = _stat(group)  # total_: children included, as in usage; v1 tells nothing of slab
    reclaimable = stat.get("total_inactive_file", 0) + stat.get("total_active_file", 0)
    return MemoryBound(limit_bytes=limit, used_bytes=max(0, used - reclaimable))


def _v2_quota(group: Path) -> float | None:
    match = re.fullmatch(r"(\d+) (\d+)\s*", text_of(group / "cpu.max"))
    return int(match[1]) / int(match[2]) if match and int(match[2]) else None


def _v1_quota(group: Path) -> float | None:
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of our group and its ancestors, in every hierarchy of the controller."""
    paths = _own_paths(root)
    for version, mount_root, mount_point in _mounts(root, controller):
        own = paths.get("" if version == 2 else controller)
        if own is None:
            continue
        top = root / mount_point.lstrip("/")
        inside = _inside(own, mount_root)
        for depth in range(len(inside.parts), -1, -1):
            group = top.joinpath(*inside.parts[:depth])
            if group.is_dir():
                yield version, group


def _own_paths(root: Path) -> dict[str, str]:
    """Controller → our path in its hierarchy; v2's under ""."""
    lines = (line.split(":", 2) for line in text_of(root / "proc/self/cgroup").splitlines())
    return {c: parts[2] for parts in lines if len(parts) == 3 for c in parts[1].split(",")}


def _mounts(root: Path, controller: str) -> Iterator[tuple[int, str, str]]:
    """(version, root of the mount, mount point) of hierarchies that may hold the controller."""
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        fields, kind = mount.split(), filesystem.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            yield 2, fields[3], fields[4]
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            yield 1, fields[3], fields[4]


def _inside(own: str, mount_root: str) -> PurePosixPath:
    path, top = PurePosixPath(own), PurePosixPath(mount_root)
    is_visible = path.is_relative_to(top) and ".." not in path.parts
    return path.relative_to(top) if is_visible else PurePosixPath()


def _stat(group: Path) -> dict[str, int]:
    pairs = re.findall(r"^(\w+) (\d+)$", text_of(group / "memory.stat"), re.MULTILINE)
    return {key: int(value) for key, value in pairs}


def _number(path: Path) -> int | None:
    """The number in a file; None for "max", for nonsense and where there is no such file."""
    text = text_of(path).strip()
    return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None
