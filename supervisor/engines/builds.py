"""The engines that scripts/build_backends.sh made here, and what was decided about them.

ENGINES/BACKEND/<build id>/bin/llama-server, and beside the builds
  current → id      the one to use, switched by whoever builds or by an operator
  proven  → id      the last one that served a real model here: what a newer one falls back on
  pinned  → id      an operator's: this one and no other, without a trial
  <build id>.failed why a build was rolled back: one line
Links are replaced in one rename, so a reader sees the old one or the new one.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar, assert_never

import msgspec

from planners.backends import DEFAULT_ORDER
from supervisor.errors import SupervisorError
from supervisor.kept_file import read_kept, replace_kept

BINARY = "llama-server"
MANIFEST = "manifest.json"
FAILED = ".failed"
MAX_REASON_BYTES = 2000


class Choice(Enum):
    """The links beside builds."""

    CURRENT = "current"
    PROVEN = "proven"
    PINNED = "pinned"


class Order(Enum):
    """What an operator decides about a build."""

    USE = "use"
    PIN = "pin"
    UNPIN = "unpin"
    REMOVE = "remove"


_LINKS = frozenset(choice.value for choice in Choice)


class NoSuchBuild(SupervisorError):
    """A build that was named and is not there."""

    def __init__(self, name: str, *, known: tuple[str, ...]) -> None:
        self.name, self.known = name, known
        there = ", ".join(known) if known else "none; scripts/build_backends.sh makes one"
        super().__init__(f"no build {name!r}; there are: {there}")


class Named(Protocol):
    """What is called by its id, and by its backend where two have the same."""

    @property
    def backend(self) -> str: ...

    @property
    def build_id(self) -> str: ...


N = TypeVar("N", bound=Named)


def named(name: str, builds: Iterable[N]) -> N:
    """The build of that id, or BACKEND/ID where two backends have it. Raises NoSuchBuild."""
    names = {f"{one.backend}/{one.build_id}": one for one in builds}
    for full_name, one in names.items():
        if name in (one.build_id, full_name):
            return one
    raise NoSuchBuild(name, known=tuple(names))


class BuildInUse(SupervisorError):
    """A build that cannot be removed."""

    def __init__(self, build_id: str, why: str) -> None:
        self.build_id, self.why = build_id, why
        super().__init__(f"{build_id} stays: {why}")


class BuildsUnwritable(SupervisorError):
    """The folder of builds cannot be changed by us."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(f"{path} cannot be changed: {why}; check whose it is, and its disk")


class Found(msgspec.Struct):
    """What a build showed where it was made."""

    version: str = "unknown"


class Manifest(msgspec.Struct):
    """What is shown of what a build says of itself; scripts/engine_manifest.py wrote more."""

    commit: str = ""
    built_at: str = ""
    found: Found = msgspec.field(default_factory=Found)


class Build(msgspec.Struct, frozen=True):
    """One build on disk."""

    backend: str
    build_id: str
    folder: Path
    is_current: bool
    is_proven: bool
    is_pinned: bool
    failed: str | None
    """Why it was rolled back; None where it was not."""

    def on_trial_since(self) -> float | None:
        """UTC seconds at which it was made the current one; None where it is not, or is pinned."""
        if not self.is_current or self.is_pinned:
            return None
        return _changed_at(self.folder.parent / Choice.CURRENT.value)

    @property
    def binary(self) -> Path:
        """Its llama-server."""
        return self.folder / "bin" / BINARY

    def manifest(self) -> Manifest:
        """What it says of itself; empty where it says nothing readable."""
        try:
            return msgspec.json.decode(read_kept(self.folder / MANIFEST), type=Manifest)
        except (OSError, msgspec.DecodeError):
            return Manifest()


def builds_folder(state_dir: Path) -> Path:
    """Where builds lie that nothing else names: what scripts/build_backends.sh takes, too."""
    return state_dir / "engines"


class Builds:
    """The folder of builds. All of it blocks on the disk for some stat calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, backend: str) -> tuple[Build, ...]:
        """The builds of a backend, newest first."""
        links = {choice: self._target(backend, choice) for choice in Choice}
        binaries = [
            (changed_at, path)
            for path in (self._folder / backend).glob(f"[!.]*/bin/{BINARY}")
            if path.parts[-3] not in _LINKS and (changed_at := _changed_at(path)) is not None
        ]
        binaries.sort(reverse=True)
        return tuple(self._build(backend, path.parents[1], links) for _, path in binaries)

    def all(self) -> tuple[Build, ...]:
        """Every build, by backend, newest first."""
        backends = sorted(path.name for path in self._folder.glob("[!.]*"))
        return tuple(build for backend in backends for build in self.of(backend))

    def candidates(self) -> Iterator[tuple[Build, ...]]:
        """Per backend what may be used, the best first: a pinned one alone, else the current one,
        the proven one and the others, newest first; none that was rolled back."""
        for backend in dict.fromkeys(build.backend for build in self.all()):
            builds = self.of(backend)
            pinned = tuple(build for build in builds if build.is_pinned)
            usable = [build for build in builds if build.failed is None]
            usable.sort(key=lambda build: (not build.is_current, not build.is_proven))
            yield pinned or tuple(usable)

    def choices(self) -> tuple[str, ...]:
        """Changes whenever another build is to be used; quickly told."""
        return tuple(
            f"{backend} {choice.value} {target}"
            for backend in DEFAULT_ORDER
            for choice in (Choice.CURRENT, Choice.PINNED)
            if (target := self._target(backend, choice)) is not None
        )

    def named(self, name: str) -> Build:
        """The build that `name` means. Raises NoSuchBuild."""
        return named(name, self.all())

    def obey(self, order: Order, name: str) -> Build:
        """Carry an order out on the build of that name: the build, as it was before.

        Raises NoSuchBuild, BuildInUse, BuildsUnwritable.
        """
        build = self.named(name)
        match order:
            case Order.USE:
                self.use(build)
            case Order.PIN:
                self.choose(build, Choice.PINNED)
            case Order.UNPIN:
                if build.is_pinned:
                    self.drop(build.backend, Choice.PINNED)
            case Order.REMOVE:
                self.remove(build)
            case _:
                assert_never(order)
        return build

    def choose(self, build: Build, choice: Choice) -> None:
        """Make a link point at a build. Raises BuildsUnwritable."""
        folder = self._folder / build.backend
        fresh = folder / f".{choice.value}-{os.getpid()}"
        with _changing(folder):
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(build.build_id)
            os.replace(fresh, folder / choice.value)

    def drop(self, backend: str, choice: Choice) -> None:
        """Remove a link, where there is one. Raises BuildsUnwritable."""
        link = self._folder / backend / choice.value
        with _changing(link):
            link.unlink(missing_ok=True)

    def use(self, build: Build) -> None:
        """Make it the current one, whatever was held against it. Raises BuildsUnwritable."""
        with _changing(self._failed(build)):
            self._failed(build).unlink(missing_ok=True)
        self.choose(build, Choice.CURRENT)

    def mark_failed(self, build: Build, reason: str) -> None:
        """Not to be used again unless an operator says so. Raises BuildsUnwritable."""
        with _changing(self._failed(build)):
            replace_kept(self._failed(build), reason.encode()[:MAX_REASON_BYTES])

    def remove(self, build: Build) -> None:
        """Delete a build. Raises BuildInUse, BuildsUnwritable."""
        for choice in Choice:
            if self._target(build.backend, choice) == build.build_id:
                raise BuildInUse(build.build_id, f"it is the {choice.value} one of {build.backend}")
        going = build.folder.with_name(f".removed-{build.build_id}")
        with _changing(build.folder):
            for left in build.folder.parent.glob(".removed-*"):  # of a removal that was killed
                shutil.rmtree(left)
            os.replace(build.folder, going)  # gone at once for who looks for engines
            shutil.rmtree(going)
            self._failed(build).unlink(missing_ok=True)

    def _build(self, backend: str, folder: Path, links: dict[Choice, str | None]) -> Build:
        def is_target(choice: Choice) -> bool:
            return links[choice] == folder.name

        return Build(
            backend=backend,
            build_id=folder.name,
            folder=folder,
            is_current=is_target(Choice.CURRENT),
            is_proven=is_target(Choice.PROVEN),
            is_pinned=is_target(Choice.PINNED),
            failed=self._why_failed(backend, folder.name),
        )

    def _target(self, backend: str, choice: Choice) -> str | None:
        try:
            return os.readlink(self._folder / backend / choice.value).rstrip("/").rsplit("/", 1)[-1]
        except OSError:
            return None

    def _why_failed(self, backend: str, build_id: str) -> str | None:
        try:
            told = read_kept(self._folder / backend / f"{build_id}{FAILED}")
        except OSError:
            return None
        return told.decode(errors="replace").strip() or "it was rolled back"

    def _failed(self, build: Build) -> Path:
        return self._folder / build.backend / f"{build.build_id}{FAILED}"


def _changed_at(path: Path) -> float | None:
    """UTC seconds, of a link itself; None where it went meanwhile."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return None


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Within: what the disk refuses is raised as BuildsUnwritable."""
    try:
        yield
    except OSError as exc:
        raise BuildsUnwritable(path, exc.strerror or str(exc)) from exc
