"""Models that other programs keep on this machine: found in their folders, named after origin.

A GGUF file of Hugging Face is hf.co/ORG/REPO:QUANT, whichever program fetched it. Blocking, and
lives in the catalogue's thread. Reads names alone; nothing is ever written.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from planners.model import BrokenFile, BrokenKind
from planners.quantisation import quantisation_of, usual
from supervisor.kept_file import read_kept
from supervisor.models.gguf_files import ModelFile, Sweep, raise_if_passing, sweep
from supervisor.models.places import Place, Program
from supervisor.models.projectors import is_projector_name
from supervisor.store.hubs import SHORT_HOST

_REPOSITORY = re.compile(r"models--(?P<org>.+?)--(?P<repo>.+)")
_FETCHED = re.compile(r"manifest=(?P<org>[^=]+)=(?P<repo>[^=]+)=[^=]*\.json")
_NO_TAG = re.compile(r"[^A-Za-z0-9_.\-]")
MAX_TAG = 80


class Elsewhere(Struct, frozen=True):
    """What lies in the folders of other programs."""

    sweep: Sweep
    stores: tuple[str, ...]
    """Those that are laid out as Ollama's."""


class _Group(Struct, frozen=True):
    """Files of one repository."""

    org: str
    repo: str
    files: tuple[ModelFile, ...]


def look_elsewhere(places: Iterable[Place]) -> Elsewhere:
    """Every model there. What is not there at all is no fault. Raises CannotLook."""
    files: list[ModelFile] = []
    broken: list[BrokenFile] = []
    unseen: list[str] = []
    stores: list[str] = []
    for place in places:
        try:
            names = sorted(os.listdir(place.folder))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as exc:
            broken.append(_unsearched(place.folder, exc))
            continue
        if place.program is Program.OLLAMA:
            stores.append(place.folder)
            continue
        for found in _sweeps(place, names):
            files += found.files
            broken += found.broken
            unseen += found.unseen
    return Elsewhere(Sweep(tuple(files), tuple(broken), tuple(unseen)), tuple(stores))


def _unsearched(folder: str, exc: OSError) -> BrokenFile:
    raise_if_passing(exc, path=folder)
    reason = (
        f"cannot be searched: {(exc.strerror or str(exc)).lower()}; let the daemon's user read it,"
        " or leave that program out of models.find"
    )
    return BrokenFile(folder, reason, kind=BrokenKind.FOLDER)


def _sweeps(place: Place, names: Sequence[str]) -> Iterator[Sweep]:
    """What is in the folder, whose entries are `names`, under the names that it is offered by."""
    match place.program:
        case Program.HUGGING_FACE:
            for name in names:
                if (found := _REPOSITORY.fullmatch(name)) is not None:
                    folder = os.path.join(place.folder, name)
                    yield _snapshots(folder, org=found["org"], repo=found["repo"])
        case Program.LM_STUDIO:
            found_there = sweep((place.folder,))
            yield replace(found_there, files=tuple(_by_folders(found_there.files)))
        case _:
            found_there = sweep((place.folder,))
            fetched = [m for name in names if (m := _FETCHED.fullmatch(name)) is not None]
            origins = [(m["org"], m["repo"]) for m in fetched]
            yield replace(found_there, files=tuple(_by_prefix(found_there.files, origins)))


def _snapshots(folder: str, *, org: str, repo: str) -> Sweep:
    """A repository of Hugging Face's cache: its newest revision, and what only others have."""
    files: dict[str, ModelFile] = {}
    broken: list[BrokenFile] = []
    unseen: list[str] = []
    for snapshot in _revisions(folder):
        # The cache has links to files alone: one that led upwards would have all of it once more.
        found = sweep((snapshot,), follows_folders=False)
        for file in found.files:
            files.setdefault(file.name, file)
        broken += found.broken
        unseen += found.unseen
    named = _named(_Group(org, repo, tuple(files.values())))
    return Sweep(tuple(named), tuple(broken), tuple(unseen))


def _revisions(folder: str) -> list[str]:
    """The snapshots' folders: that of `main` first, then the youngest. Raises CannotLook."""
    try:
        main = read_kept(Path(folder, "refs", "main"), most_bytes=64).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    snapshots = os.path.join(folder, "snapshots")
    try:
        with os.scandir(snapshots) as listing:
            entries = [entry for entry in listing if entry.is_dir()]
        by_age = sorted(entries, key=lambda e: (e.name != main, -e.stat().st_mtime_ns, e.name))
    except OSError as exc:
        raise_if_passing(exc, path=snapshots)
        return []  # of a repository that is just begun, or going
    return [entry.path for entry in by_age]


def _by_folders(files: Iterable[ModelFile]) -> Iterator[ModelFile]:
    """LM Studio's PUBLISHER/REPOSITORY/FILE; what lies otherwise keeps its path for a name."""
    groups: dict[tuple[str, str], list[ModelFile]] = {}
    for file in files:
        parts = file.name.split("/")
        if len(parts) < 3:
            yield file
        else:
            groups.setdefault((parts[0], parts[1]), []).append(file)
    for (org, repo), found in groups.items():
        yield from _named(_Group(org, repo, tuple(found)))


def _by_prefix(
    files: Iterable[ModelFile], origins: Iterable[tuple[str, str]]
) -> Iterator[ModelFile]:
    """llama.cpp's ORG_REPO_FILE, where a note beside it says which part is which."""
    left = list(files)
    for org, repo in dict.fromkeys(origins):
        prefix = f"{org}_{repo}_"
        found = tuple(file for file in left if file.name.startswith(prefix))
        left = [file for file in left if not file.name.startswith(prefix)]
        yield from _named(_Group(org, repo, found))
    yield from left


def _named(group: _Group) -> Iterator[ModelFile]:
    """The files by the names that they are offered under; the usual one by the repository's too."""
    base = f"{SHORT_HOST}/{group.org}/{group.repo}"
    tags: dict[str, ModelFile] = {}
    for file in group.files:
        if is_projector_name(file.stem):
            yield replace(file, name=f"{base}/{file.stem}")
            continue
        names = (quantisation_of(file.stem), file.stem, file.name)
        told = (_NO_TAG.sub("-", name)[-MAX_TAG:] for name in names if name)
        tags[next((tag for tag in told if tag not in tags), file.name)] = file
    if not tags:
        return
    first = usual(tags)
    for tag, file in tags.items():
        yield replace(file, name=f"{base}:{tag}", aliases=(base,) if tag == first else ())
