"""A control group with a memory limit, for processes that are to run out of it and nobody else."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MEMORY_V1 = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup")
EMPTY_S = 20.0  # for its processes to be gone
LOOK_S = 0.1  # cadence of looking


class NoGroup(Exception):
    """This system grants us none: it takes root, or a delegated group."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """One of either version."""

    folder: Path
    outside: Path
    """The group that we are in."""

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Whoever is started in this block belongs to it, and stays when the block ends."""
        _join(self.folder)
        try:
            yield
        finally:
            _join(self.outside)

    @property
    def oom_kills(self) -> int:
        """Processes in it that the kernel killed for memory."""
        told: dict[str, str] = {}
        for name in ("memory.events", "memory.oom_control"):
            if (path := self.folder / name).exists():
                told |= dict(line.split() for line in path.read_text().splitlines())
        return int(told.get("oom_kill", 0))

    @property
    def used_bytes(self) -> int:
        """By all in it, what can be dropped left out."""
        is_v2 = (self.folder / "memory.current").exists()
        used = self.folder / ("memory.current" if is_v2 else "memory.usage_in_bytes")
        lines = (self.folder / "memory.stat").read_text().splitlines()
        stat = {key: int(value) for key, value in (line.split() for line in lines)}
        prefix = "" if is_v2 else "total_"
        cached = stat[f"{prefix}inactive_file"] + stat[f"{prefix}active_file"]
        return int(used.read_text()) - cached


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """One below our own, removed at the end. Raises NoGroup."""
    own, name = _own()
    folder = own / f"ios-bench-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as exc:
        raise NoGroup(str(exc)) from exc
    try:
        try:
            (folder / name).write_text(str(limit_bytes))
        except OSError as exc:
            raise NoGroup(f"{folder / name}: {exc}") from exc
        yield MemoryGroup(folder, own)
    finally:
        _remove(folder)


def _own() -> tuple[Path, str]:
    """Our group's folder, and the file in it that limits memory."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = {controller: path for _, names, path in lines for controller in names.split(",")}
    if MEMORY_V1.is_dir() and "memory" in paths:
        return _seen(MEMORY_V1, paths["memory"]), "memory.limit_in_bytes"
    return _seen(UNIFIED, paths.get("", "/")), "memory.max"


def _seen(top: Path, path: str) -> Path:
    """In a container the path may be one of the host that is not seen here."""
    own = top / path.lstrip("/")
    return own if own.is_dir() else top


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _remove(folder: Path) -> None:
    until_s = time.monotonic() + EMPTY_S
    while folder.is_dir():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(LOOK_S)
