"""What trials found, by the content of the files and by CPU.

Two steps, since an engine may weigh a gigabyte: sizes, times and inodes give the content's hash,
the content gives the verdict. Only what was asked for in this round is kept.
"""

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import structlog

from supervisor.engines.trial import Abilities, TrialFailed
from supervisor.kept_file import read_kept, replace_kept
from supervisor.patience import NoAnswer, PatientReader

SCHEMA = 3
HASH_S = 120.0  # a gigabyte from a slow disk

Env = tuple[tuple[str, str], ...]

log = structlog.get_logger(__name__)


class Verdict(msgspec.Struct, frozen=True):
    """How a trial ended: what an engine can do, or the reason it can never run here."""

    able: Abilities | None = None
    reason: str | None = None


class EngineFiles(msgspec.Struct, frozen=True):
    """A llama-server and the libraries beside it."""

    content_id: str
    """SHA-256 over names and contents, hex."""
    libraries: tuple[str, ...]
    """File names, sorted."""


class _Memory(msgspec.Struct):
    schema: int = SCHEMA
    contents: dict[str, str] = msgspec.field(default_factory=dict)
    verdicts: dict[str, Verdict] = msgspec.field(default_factory=dict)


class EngineCache:
    """engines.json: read when made, written by `save`."""

    def __init__(self, path: Path, *, cpu: str) -> None:
        self._path, self._cpu = path, cpu
        self._known = _loaded(path)
        self._used = _Memory()

    async def files(self, binary: str) -> EngineFiles:
        """The identity of `binary` and of its libraries. Raises OSError, TrialFailed."""
        paths = _files_of(Path(binary))
        key = _stat_key(paths)
        content_id = self._known.contents.get(key) or await _hashed(paths, binary=binary)
        self._used.contents[key] = content_id
        libraries = tuple(path.name for path in paths if path != Path(binary))
        return EngineFiles(content_id=content_id, libraries=libraries)

    def verdict(self, files: EngineFiles, *, env: Env) -> Verdict | None:
        """What is known of these files on this CPU, or None."""
        key = self._key(files, env)
        verdict = self._known.verdicts.get(key)
        if verdict is not None:
            self._used.verdicts[key] = verdict
        return verdict

    def remember(self, files: EngineFiles, *, env: Env, verdict: Verdict) -> None:
        """Keep a verdict for the next start."""
        self._used.verdicts[self._key(files, env)] = verdict

    def save(self) -> None:
        """Replace the file in one step. Where that fails, the next start tries again, no more."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            told = msgspec.json.encode(self._used, order="deterministic")
            replace_kept(self._path, msgspec.json.format(told))
        except OSError as exc:
            log.warning("engine.verdicts_not_kept", path=str(self._path), why=str(exc))

    def _key(self, files: EngineFiles, env: Env) -> str:
        return hashlib.sha256(repr((files.content_id, self._cpu, env)).encode()).hexdigest()


def _loaded(path: Path) -> _Memory:
    try:
        memory = msgspec.json.decode(read_kept(path), type=_Memory)
    except FileNotFoundError:
        return _Memory()
    except (OSError, msgspec.DecodeError) as exc:
        log.warning("engine.verdicts_unreadable", path=str(path), why=str(exc))
        return _Memory()
    return memory if memory.schema == SCHEMA else _Memory()


def files_key(binary: str) -> str:
    """Changes when an engine's files do, by their sizes and times; "" where they are not there."""
    try:
        return _stat_key(_files_of(Path(binary)))
    except OSError:
        return ""


def _files_of(binary: Path) -> list[Path]:
    return sorted({binary, *_libraries(binary.parent)})


def _libraries(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if (".so" in entry.suffixes or entry.suffix == ".dylib") and entry.is_file():
            yield entry


def _stat_key(paths: list[Path]) -> str:
    facts = [(str(p), s.st_size, s.st_mtime_ns, s.st_ino) for p in paths for s in (p.stat(),)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


async def _hashed(paths: list[Path], *, binary: str) -> str:
    reader = PatientReader("engine", partial(_content_id, paths), limit_s=HASH_S)
    try:
        return await reader.read()
    except NoAnswer as exc:
        reason = f"could not be read within {HASH_S:g} s"
        raise TrialFailed(path=binary, reason=reason) from exc


def _content_id(paths: list[Path]) -> str:
    whole = hashlib.sha256()
    by_file: dict[str, str] = {}
    for path in paths:
        real = os.path.realpath(path)  # a library has up to three names
        if real not in by_file:
            with open(real, "rb") as file:
                by_file[real] = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.name}\0{by_file[real]}\n".encode())
    return whole.hexdigest()
