"""What a repository of a Hugging Face hub holds, and which of its files a name means. Pure."""

import os.path
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from planners.quantisation import quantisation_of, usual
from supervisor.errors import SupervisorError
from supervisor.models.gguf_names import SUFFIX, part_of, stem_of
from supervisor.models.projectors import Projectors, is_projector_name
from supervisor.store.digests import BadDigest, Digest, parse_digest
from supervisor.store.names import TAG

TEXT_FILES = ("template", "system", "params")
"""Files at a repository's top that are layers of the model, as the hub itself has it."""
_REVISION = re.compile(r"[0-9a-f]{40}")
_NO_MODELS = ("imatrix",)
MAX_PATH = 1000  # characters; git and the hub have none that is longer
MAX_GGUF = 2000  # files of one repository; the fullest hold some hundred parts of splits
MAX_SIZE_BYTES = (1 << 63) - 1  # no file is larger


class TooManyFiles(SupervisorError):
    """A repository that nobody would choose from."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(f"a list of {count} GGUF files, and at most {MAX_GGUF} are read")


class HubFile(msgspec.Struct, frozen=True):
    """One file of a repository."""

    path: str
    size_bytes: int
    """-1 where it is not told."""
    digest: Digest | None
    """None for one that lies in git itself: those are small."""
    git_id: str
    """SHA-1 of its git object, hex; "" where it is not told."""

    @property
    def stem(self) -> str:
        """Its own name, without .gguf."""
        return stem_of(self.path.rpartition("/")[2])

    @property
    def folder(self) -> str:
        """Where in the repository it lies; "" at the top."""
        return self.path.rpartition("/")[0]


class HubListing(msgspec.Struct, frozen=True):
    """A repository at one revision."""

    revision: str
    files: tuple[HubFile, ...]
    is_gated: bool = False
    """Whether its files are for accounts that accepted its terms."""

    @property
    def is_measured(self) -> bool:
        """Whether the sizes are told: a hub that does not know how leaves them out."""
        return all(file.size_bytes >= 0 for file in self.files)

    def texts(self) -> Iterator[HubFile]:
        """What goes with every model of it."""
        return (file for file in self.files if file.path in TEXT_FILES)


class Variant(msgspec.Struct, frozen=True):
    """One model of a repository: its file, or all parts of it."""

    label: str
    """Its quantisation; "" where its name tells none."""
    stem: str
    """Its name, without folder, part numbers and .gguf."""
    parts: tuple[HubFile, ...]
    projector: HubFile | None = None

    @property
    def path(self) -> str:
        """Of its first file."""
        return self.parts[0].path

    @property
    def size_bytes(self) -> int:
        """Of all parts, without the projector."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def is_measured(self) -> bool:
        """Whether the size of each part is told, and none is empty."""
        return all(part.size_bytes > 0 for part in self.parts)

    @property
    def tag(self) -> str:
        """What a name says after its colon to mean this one."""
        return self.label or self.stem


class _Lfs(msgspec.Struct):
    size: int = -1
    sha256: str = ""
    oid: str = ""


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str | None = None
    lfs: _Lfs | None = None


class _Repository(msgspec.Struct):
    siblings: list[_Sibling] = []
    sha: str | None = None
    gated: bool | str | None = None


class _Entry(msgspec.Struct):
    path: str
    type: str = "file"
    size: int = -1
    oid: str = ""
    lfs: _Lfs | None = None


_REPOSITORY = msgspec.json.Decoder(_Repository)
_TREE = msgspec.json.Decoder(list[_Entry])
CANNOT_READ = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_repository(data: bytes) -> HubListing:
    """What /api/models/REPO?blobs=true answers with. Raises one of CANNOT_READ."""
    told = _REPOSITORY.decode(data)
    files = (
        _file(s.rfilename, s.size, s.blobId or "", s.lfs)
        for s in told.siblings
        if len(s.rfilename) <= MAX_PATH
    )
    revision = told.sha if told.sha and _REVISION.fullmatch(told.sha) else "main"
    return HubListing(revision, tuple(files), is_gated=bool(told.gated))


def read_tree(data: bytes) -> tuple[HubFile, ...]:
    """What a page of /api/models/REPO/tree/REV?recursive=true holds. Likewise."""
    files = (e for e in _TREE.decode(data) if e.type == "file" and len(e.path) <= MAX_PATH)
    return tuple(_file(e.path, e.size, e.oid, e.lfs) for e in files)


def _file(path: str, size: int | None, git_id: str, lfs: _Lfs | None) -> HubFile:
    if lfs is None:
        return HubFile(path, _size_bytes(size), None, git_id)
    try:
        digest = parse_digest(f"sha256:{lfs.sha256 or lfs.oid}")
    except BadDigest:
        digest = None
    return HubFile(path, _size_bytes(size if lfs.size < 0 else lfs.size), digest, "")


def _size_bytes(told: int | None) -> int:
    """-1 where it is not told, or is none that a file can have."""
    return told if told is not None and 0 <= told <= MAX_SIZE_BYTES else -1


def variants(files: Iterable[HubFile]) -> tuple[Variant, ...]:
    """Every model among the files, each with its projector; parts that lack others are none.

    Raises TooManyFiles.
    """
    found = [file for file in files if file.path.lower().endswith(SUFFIX)]
    if len(found) > MAX_GGUF:
        raise TooManyFiles(len(found))
    projectors = [file for file in found if is_projector_name(file.stem)]
    models = [f for f in found if not is_projector_name(f.stem) and not _is_no_model(f)]
    whole = [*_put_together(models)]
    beside = _Beside(projectors, stems={stem for stem, _ in whole})
    return tuple(
        Variant(_label(stem, parts), stem, parts, beside.of(stem, parts[0]))
        for stem, parts in whole
    )


class Choice:
    """The models of a repository, each by what may mean it."""

    def __init__(self, offered: Iterable[Variant]) -> None:
        by_path = sorted(offered, key=lambda variant: (variant.path.count("/"), variant.path))
        self._labels: dict[str, Variant] = {}
        self._names: dict[str, Variant] = {}
        for variant in by_path:
            self._labels.setdefault(variant.label.lower(), variant)
            for name in _names(variant):
                self._names.setdefault(name, variant)

    def of(self, tag: str) -> Variant | None:
        """The one that `tag` means; None where none is meant.

        A tag is a quantisation or a file's name; "latest" is the usual one. Of several the first
        counts, by path.
        """
        if tag.lower() == TAG and self._labels:
            return self._labels[usual(each.label for each in self._labels.values()).lower()]
        asked = tag.lower().removesuffix(SUFFIX)
        return self._labels.get(asked) or self._names.get(asked)


def _names(variant: Variant) -> tuple[str, ...]:
    label = variant.label.lower().removeprefix("ud-")
    return (variant.stem.lower(), label, variant.parts[0].folder.lower())


def _is_no_model(file: HubFile) -> bool:
    return any(word in file.stem.lower() for word in _NO_MODELS)


def _label(stem: str, parts: Sequence[HubFile]) -> str:
    return quantisation_of(stem) or quantisation_of(os.path.basename(parts[0].folder))


def _put_together(files: Iterable[HubFile]) -> Iterator[tuple[str, tuple[HubFile, ...]]]:
    """(stem, parts) of every whole model."""
    split: dict[tuple[str, str, int], dict[int, HubFile]] = {}
    for file in files:
        part = part_of(file.stem)
        if part is None:
            yield file.stem, (file,)
        else:
            split.setdefault((file.folder, part.base, part.count), {})[part.number] = file
    for (_, base, count), parts in split.items():
        numbers = range(1, count + 1)
        if len(parts) == count and all(number in parts for number in numbers):
            yield base, tuple(parts[number] for number in numbers)


class _Beside:
    """The projectors of a repository, by the folders that they lie in."""

    def __init__(self, projectors: Iterable[HubFile], *, stems: Iterable[str]) -> None:
        self._files: dict[str, dict[str, HubFile]] = {}
        for file in projectors:
            self._files.setdefault(file.folder, {})[file.stem] = file
        self._whose = {
            folder: Projectors(near, models=stems) for folder, near in self._files.items()
        }

    def of(self, stem: str, first: HubFile) -> HubFile | None:
        """That of a model: the one in its folder, else at the top."""
        for folder in dict.fromkeys((first.folder, "")):
            whose = self._whose.get(folder)
            found = None if whose is None else whose.of(stem)
            if found is not None:
                return self._files[folder][found]
        return None
