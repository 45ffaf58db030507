"""The host's memory and processor, from /proc and /sys, or psutil where there is neither."""

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from planners.hardware import Host, NumaNode
from supervisor.devices.cgroup import cpu_quota, memory_bounds
from supervisor.devices.datasheet import bandwidth_bytes_per_s
from supervisor.devices.kernel_files import ROOT, text_of

Cpu = Mapping[str, str]
"""One block of /proc/cpuinfo."""
_TILES = "amx_int8"
"""Of its flags, in Linux' words."""


class HostSource:
    """Reads the host under `root`, which tests point at a recorded tree."""

    name = "host"

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def read(self) -> Host:
        """The host at this moment. May block."""
        total_bytes, available_bytes = _meminfo(self._root) or _psutil_memory()
        bounds = memory_bounds(self._root)
        limit_bytes = min((b.limit_bytes for b in bounds), default=None)
        if limit_bytes is not None and limit_bytes >= total_bytes:
            limit_bytes = None  # v1 spells "no limit" as a number near 2^63
        headrooms = (max(0, b.limit_bytes - b.used_bytes) for b in bounds)
        cpus = _cpuinfo(self._root)
        cores, physical = _cores(self._root, cpus)
        cpu_name = _cpu_name(cpus)
        return Host(
            total_bytes=total_bytes if limit_bytes is None else limit_bytes,
            available_bytes=min((available_bytes, *headrooms)),
            cgroup_limit_bytes=limit_bytes,
            n_cores=cores,
            n_physical_cores=physical,
            cpu_name=cpu_name,
            psi_some_avg10=_pressure(self._root),
            numa_nodes=tuple(_numa_nodes(self._root)),
            bandwidth_bytes_per_s=bandwidth_bytes_per_s(cpu_name),
            has_tiles=any(_TILES in cpu.get("flags", "").split() for cpu in cpus[:1]),
        )


def cpu_identity(root: Path = ROOT) -> str:
    """16 hex digits that change with what this CPU can execute."""
    facts = [
        line
        for block in _cpuinfo(root)[:1]
        for line in map(str, sorted(block.items()))
        if re.search(r"model name|flags|Features|CPU (implementer|part)|isa", line)
    ]
    told = facts or [platform.machine(), platform.processor()]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def _meminfo(root: Path) -> tuple[int, int] | None:
    """(MemTotal, MemAvailable) in bytes: never MemFree, which leaves the page cache out."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text_of(root / "proc/meminfo"), re.MULTILINE))
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    return int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024


def _psutil_memory() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.total, memory.available


def _pressure(root: Path) -> float | None:
    match = re.search(r"^some avg10=([\d.]+)", text_of(root / "proc/pressure/memory"), re.MULTILINE)
    return float(match[1]) if match else None


def _numa_nodes(root: Path) -> Iterator[NumaNode]:
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    for folder in sorted(folders, key=lambda folder: int(folder.name[4:])):
        total = re.search(r"MemTotal:\s+(\d+) kB", text_of(folder / "meminfo"))
        if total is not None:
            cpus = set(_numbers(text_of(folder / "cpulist")))
            yield NumaNode(int(folder.name[4:]), int(total[1]) * 1024, len(cpus))


def _cores(root: Path, cpus: Sequence[Cpu]) -> tuple[int, int]:
    """(logical, physical) cores that this process may use, each at least 1."""
    allowed = _allowed_cpus(root)
    physical = _physical_cores(cpus, allowed)
    n_allowed = len(allowed) if allowed else os.cpu_count() or 1
    quota = cpu_quota(root)
    n_cores = n_allowed if quota is None else min(n_allowed, max(1, int(quota)))
    return n_cores, max(1, min(physical or n_cores, n_cores))


def _allowed_cpus(root: Path) -> frozenset[int]:
    status = text_of(root / "proc/self/status")
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    return frozenset(_numbers(match[1])) if match else frozenset()


def _numbers(ranges: str) -> Iterator[int]:
    """The numbers of a kernel list: "0-3,8" → 0 1 2 3 8."""
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges):
        yield from range(int(first), int(last or first) + 1)


def _physical_cores(cpus: Sequence[Cpu], allowed: frozenset[int]) -> int:
    """Distinct cores among the allowed CPUs; 0 where cpuinfo does not tell (ARM)."""
    cores = {
        (cpu.get("physical id", "0"), cpu["core id"])
        for cpu in cpus
        if "core id" in cpu and (not allowed or int(cpu.get("processor", "0")) in allowed)
    }
    return len(cores)


def _cpu_name(cpus: Sequence[Cpu]) -> str:
    for cpu in cpus:
        for key in ("model name", "Hardware", "cpu model", "cpu"):
            if key in cpu:
                return cpu[key]
    return platform.processor() or platform.machine() or "unknown"


def _cpuinfo(root: Path) -> list[Cpu]:
    blocks = text_of(root / "proc/cpuinfo").strip().split("\n\n")
    pairs = ([line.partition(":") for line in block.splitlines()] for block in blocks)
    return [{key.strip(): value.strip() for key, _, value in lines if value} for lines in pairs]
