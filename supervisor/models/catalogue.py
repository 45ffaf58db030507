"""The models on offer: GGUF files in the configured folders, named by their paths.

Owns what is known of files between scans. A scan is a sweep of stat calls; only what changed is
read again, in a thread of its own, and the outcome replaces the old one whole.
"""

import os.path
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import structlog
from msgspec import Struct
from msgspec.structs import replace

from planners.gguf import GgufError, GgufKind
from planners.model import (
    BrokenFile,
    BrokenKind,
    ModelId,
    ModelInfo,
    ModelSettings,
    ServedModel,
    folded,
)
from planners.settings import ModelRule
from supervisor.models.elsewhere import look_elsewhere
from supervisor.models.gguf_files import (
    CannotLook,
    DiskFailed,
    FileStat,
    ModelFile,
    Sweep,
    file_at,
    raise_if_passing,
    read_model,
    stat_of,
    sweep,
)
from supervisor.models.listing import Files, Listing, Offer, listed
from supervisor.models.places import Place
from supervisor.patience import NoAnswer, PatientReader
from supervisor.store.layout import inner_folders, is_store
from supervisor.store.names import BadStoreName, parse_name
from supervisor.store.shelf import Shelf, StoredModel

SCAN_S = 60.0  # a scan that takes longer hangs on a file system that does not answer
SETTLED_S = 60.0  # a truncated file that was written this recently may still grow
EMPTY = Listing(models={}, names={}, broken=())

log = structlog.get_logger(__name__)

_Named = tuple[ModelRule, ModelFile | BrokenFile]


class Catalogue:
    """Models by name. `scan` looks for changes; between scans nothing here changes."""

    def __init__(
        self,
        *,
        dirs: tuple[str, ...],
        rules: tuple[ModelRule, ...],
        defaults: ModelSettings,
        own_store: str | None = None,
        places: tuple[Place, ...] = (),
        scan_s: float = SCAN_S,
    ) -> None:
        self._offer = Offer(dirs, rules, defaults, own_store, places)
        self._listing = EMPTY
        self._is_stalled = self._is_blind = False
        self._library = _Library()
        self._reader = PatientReader("catalogue", self._read, limit_s=scan_s)
        self._scan_s = scan_s

    @property
    def models(self) -> Mapping[ModelId, ServedModel]:
        """Every model, by its name, as of the last scan."""
        return self._listing.models

    @property
    def broken(self) -> tuple[BrokenFile, ...]:
        """Files that look like models and are none, with the reason, by path."""
        return self._listing.broken

    def why_broken(self, names: Iterable[ModelId]) -> dict[ModelId, str]:
        """What is wrong with the files of those names that would be models' but for that."""
        asked = frozenset(names)
        broken = ((ModelId(n), file.reason) for file in self.broken for n in file.names)
        return {name: reason for name, reason in broken if name in asked}

    def resolve(self, name: str) -> ServedModel | None:
        """The model of that name or alias; case does not count and ":latest" is optional.

        Of a store's models the whole name is one too: registry.ollama.ai/library/smollm2:135m.
        """
        exact = self._listing.models.get(ModelId(name))
        if exact is not None:
            return exact
        model_id = self._listing.names.get(folded(name)) or self._stored_as(name)
        return None if model_id is None else self._listing.models[model_id]

    def _stored_as(self, name: str) -> ModelId | None:
        try:
            return self._listing.names.get(folded(parse_name(name).short))
        except BadStoreName:
            return None

    def reconfigure(
        self,
        *,
        dirs: tuple[str, ...],
        rules: tuple[ModelRule, ...],
        defaults: ModelSettings,
        places: tuple[Place, ...] = (),
    ) -> None:
        """What the next scan goes by."""
        self._offer = Offer(dirs, rules, defaults, self._offer.own_store, places)

    async def scan(self) -> bool:
        """Look at the folders again; True where a model or a broken file came, went or changed."""
        try:
            offer, listing = await self._reader.read()
            while offer is not self._offer:  # it was under way when the offer changed
                offer, listing = await self._reader.read()
        except NoAnswer:
            if not self._is_stalled:  # a disk may hang for days, and is looked at all the while
                log.warning("catalogue.stalled", waited_s=self._scan_s, dirs=self._offer.dirs)
            self._is_stalled = True
            return False
        except CannotLook as exc:  # what was offered stays: a failed look is no absence
            if not self._is_blind:
                log.warning("catalogue.blind", reason=str(exc))
            self._is_stalled, self._is_blind = False, True
            return False
        self._is_stalled = self._is_blind = False
        before, self._listing = self._listing, listing
        _log_changes(before, listing)
        return listing != before

    async def look_again(self) -> bool:
        """`scan`, of the folders as they are now: one that is under way may have passed them."""
        self._offer = replace(self._offer)
        return await self.scan()

    def _read(self) -> tuple[Offer, Listing]:
        """What the offer in force comes to, and that offer. Blocking, in the reader's thread."""
        offer = self._offer
        return offer, self._library.listing(offer)


def _log_changes(before: Listing, after: Listing) -> None:
    if before.models != after.models:
        log.info("catalogue.changed", n_models=len(after.models), n_broken=len(after.broken))
    known = frozenset(before.broken)  # a folder may hold thousands
    for broken in after.broken:
        if broken not in known:
            log.warning("model.broken", path=broken.path, reason=broken.reason)


class _Read(Struct, frozen=True):
    """What a file turned out to be."""

    key: str
    info: ModelInfo | BrokenFile
    is_final: bool
    """False where the same file may read differently next time."""


class _Library:
    """What files turned out to be, kept while they stay so. Lives in the reading thread.

    What a disk that does not answer held when it last did is held to be there still.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Read] = {}
        self._swept: tuple[ModelFile, ...] = ()
        self._elsewhere: tuple[ModelFile, ...] = ()
        self._named: dict[tuple[str, str], ModelFile | BrokenFile] = {}
        self._companions: dict[str, FileStat | str] = {}
        self._shelf = Shelf()
        self._last: tuple[Offer, Files, Listing] | None = None

    def listing(self, offer: Offer) -> Listing:
        """What is on offer now. Blocking. Raises CannotLook."""
        files = self._files(offer)
        if self._last is None or self._last[0] is not offer or self._last[1] != files:
            self._last = (offer, files, listed(offer, files))
        return self._last[2]

    def _files(self, offer: Offer) -> Files:
        """Whatever may be a model, swept and read; what was read before is not read again."""
        stores = _stores(offer)
        found = sweep(offer.dirs, but_for=inner_folders(stores))
        self._swept = _with_unseen(found, self._swept, dirs=offer.dirs)
        others = look_elsewhere(_not_in(offer.dirs, offer.places))
        folders = [place.folder for place in offer.places]
        seen = _with_unseen(others.sweep, self._elsewhere, dirs=folders)
        self._elsewhere = _but_for(seen, self._swept)
        lent = tuple(folder for folder in others.stores if is_store(folder))
        named = self._by_rules(offer)
        in_stores = self._shelf.look((*stores, *lent))
        stored = tuple(one for one in in_stores if isinstance(one, StoredModel))
        self._read_all(offer, named, stored)
        return Files(
            found=self._swept,
            named=named,
            infos={path: read.info for path, read in self._known.items()},
            companions={path: self._stat_of(path) for path in offer.companions()},
            broken=(
                *found.broken,
                *others.sweep.broken,
                *(one for one in in_stores if isinstance(one, BrokenFile)),
            ),
            stored=stored,
            elsewhere=self._elsewhere,
            lent=frozenset(lent),
        )

    def _by_rules(self, offer: Offer) -> tuple[_Named, ...]:
        """Files that the operator's rules name."""
        return tuple(
            (rule, self._file_at(rule.path, rule.name))
            for rule in offer.rules
            if rule.path is not None
        )

    def _read_all(
        self, offer: Offer, named: Sequence[_Named], stored: Sequence[StoredModel]
    ) -> None:
        """Know the header of each file, those of companions too, and of no others."""
        wanted = [*self._swept, *self._elsewhere, *_files_of(stored)]
        wanted += [file for _, file in named if isinstance(file, ModelFile)]
        beside = (self._file_at(path, path) for path in offer.read_companions())
        wanted += [file for file in beside if isinstance(file, ModelFile)]
        self._known = {file.path: self._read(file) for file in wanted}

    def _file_at(self, path: str, name: str) -> ModelFile | BrokenFile:
        try:
            file = file_at(path, name=name)
        except DiskFailed as exc:
            return self._named.get((path, name)) or BrokenFile(path, str(exc))
        self._named[path, name] = file
        return file

    def _stat_of(self, path: str) -> FileStat | str:
        try:
            found = stat_of(path)
        except DiskFailed as exc:
            return self._companions.get(path) or str(exc)
        self._companions[path] = found
        return found

    def _read(self, file: ModelFile) -> _Read:
        known = self._known.get(file.path)
        if known is not None and known.is_final and known.key == file.key:
            return known
        try:
            return _Read(file.key, read_model(file), is_final=True)
        except GgufError as exc:
            is_cut = exc.kind is GgufKind.TRUNCATED
            may_grow = is_cut and _age_s(file) < SETTLED_S
            hint = "; it was written just now and may still grow" if may_grow else ""
            kind = BrokenKind.INCOMPLETE if is_cut else BrokenKind.FILE
            broken = BrokenFile(file.path, f"{exc}{hint}", kind=kind)
            return _Read(file.key, broken, is_final=not may_grow)
        except OSError as exc:
            with suppress(DiskFailed):  # a bad sector is its file's alone
                raise_if_passing(exc, path=file.path)
            reason = f"cannot be read: {exc.strerror or exc}"
            is_denied = isinstance(exc, PermissionError)
            kind = BrokenKind.UNREADABLE if is_denied else BrokenKind.FILE
            return _Read(file.key, BrokenFile(file.path, reason, kind=kind), is_final=False)


def _stores(offer: Offer) -> tuple[str, ...]:
    """The stores on offer, our own last; which of the folders are some, may change."""
    own = (offer.own_store,) if offer.own_store is not None else ()
    others = (folder for folder in offer.dirs if folder not in own)
    return tuple(folder for folder in (*others, *own) if is_store(folder))


def _not_in(dirs: Iterable[str], places: Iterable[Place]) -> Iterator[Place]:
    """The places that are not searched as folders of the configuration anyway."""
    told = tuple(map(os.path.realpath, dirs))
    for place in places:
        if not any(_is_below(os.path.realpath(place.folder), folder) for folder in told):
            yield place


def _but_for(files: Iterable[ModelFile], known: Iterable[ModelFile]) -> tuple[ModelFile, ...]:
    """Each file once, whatever links lead to it, and none of `known`."""
    keys = {file.parts[0].key for file in known}
    found = []
    for file in files:
        if file.parts[0].key not in keys:
            keys.add(file.parts[0].key)
            found.append(file)
    return tuple(found)


def _files_of(stored: Iterable[StoredModel]) -> Iterator[ModelFile]:
    """The GGUF files of stored models whose facts count."""
    for model in stored:
        yield model.file
        for companion in (model.projector, model.draft):
            if companion is not None:
                yield ModelFile(companion.path, (companion,))


def _with_unseen(
    found: Sweep, before: Iterable[ModelFile], *, dirs: Sequence[str]
) -> tuple[ModelFile, ...]:
    """The files of a sweep, and those of the one before that it could not look at, by folder."""
    if not found.unseen:
        return found.files
    there = {file.path for file in found.files}
    unseen = (file for file in before if file.path not in there and _is_of(file, found.unseen))

    def place(file: ModelFile) -> int:
        return next((n for n, folder in enumerate(dirs) if _is_below(file.path, folder)), len(dirs))

    return tuple(sorted((*found.files, *unseen), key=place))


def _is_of(file: ModelFile, paths: Iterable[str]) -> bool:
    return any(_is_below(part.path, path) for path in paths for part in file.parts)


def _is_below(path: str, other: str) -> bool:
    return path == other or path.startswith(other.rstrip("/") + "/")


def _age_s(file: ModelFile) -> float:
    return time.time() - file.modified_ns / 1e9
