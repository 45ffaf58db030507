"""What is on offer: files, their facts and the operator's rules in, models by name out. Pure."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

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
from planners.templates.given import given_template
from supervisor.models.gguf_files import FileStat, ModelFile
from supervisor.models.gguf_names import SUFFIX, part_of, stem_of
from supervisor.models.places import Place
from supervisor.models.projectors import Projectors, is_projector_name
from supervisor.store.shelf import StoredModel

_MODEL_TYPES = (None, "model")
"""`general.type` of files that can be served; "imatrix" and others cannot."""


class Offer(Struct, frozen=True):
    """What the configuration says of models."""

    dirs: tuple[str, ...]
    rules: tuple[ModelRule, ...]
    defaults: ModelSettings
    own_store: str | None = None
    """The daemon's own store; the folders may hold stores of others."""
    places: tuple[Place, ...] = ()
    """Folders of other programs."""

    def read_companions(self) -> frozenset[str]:
        """Every draft model and projector that a rule names: their facts count."""
        settings = [rule.settings for rule in self.rules]
        paths = [path for one in settings for path in (one.draft_path, one.mmproj_path)]
        return frozenset(path for path in paths if path is not None)

    def companions(self) -> frozenset[str]:
        """Every projector, draft and adapter that a rule names."""
        return frozenset(path for rule in self.rules for _, path in _companions(rule.settings))


class Files(Struct, frozen=True):
    """What the disk holds, as far as an offer is concerned."""

    found: tuple[ModelFile, ...]
    """In the folders."""
    named: tuple[tuple[ModelRule, ModelFile | BrokenFile], ...]
    """For every rule that has a path."""
    infos: Mapping[str, ModelInfo | BrokenFile]
    """By path, for all of the above."""
    companions: Mapping[str, FileStat | str]
    """Of every companion a rule names: the file, or why there is none."""
    broken: tuple[BrokenFile, ...]
    """What was no file to begin with."""
    stored: tuple[StoredModel, ...] = ()
    """In stores; what is broken there is among `broken`."""
    elsewhere: tuple[ModelFile, ...] = ()
    """In the folders of other programs."""
    lent: frozenset[str] = frozenset()
    """Stores of other programs, among those of `stored`."""


class Listing(Struct, frozen=True):
    """Models by name."""

    models: Mapping[ModelId, ServedModel]
    names: Mapping[str, ModelId]
    """Every name and alias, folded → the model it means."""
    broken: tuple[BrokenFile, ...]


def listed(offer: Offer, files: Files) -> Listing:
    """The models that `files` make under the rules of `offer`. The first to claim a name has it."""
    return _Shelf(offer, files).listing()


class _Shelf:
    """One listing in the making."""

    def __init__(self, offer: Offer, files: Files) -> None:
        self._offer, self._files = offer, files
        self._rules = {folded(rule.name): rule for rule in offer.rules if rule.path is None}
        self._broken = [
            replace(file, names=file.names or self._names_below(file.path)) for file in files.broken
        ]
        self._models: dict[ModelId, ServedModel] = {}

    def listing(self) -> Listing:
        self._place_all(self._candidates())
        for stored in self._files.stored:
            self._place_stored(stored)
        self._place_all(((file, None) for file in self._files.elsewhere), is_elsewhere=True)
        self._report_idle_rules()
        names: dict[str, ModelId] = {}
        for model_id in self._models:
            names.setdefault(folded(model_id), model_id)
        for model_id, model in self._models.items():
            for alias in model.aliases:
                names.setdefault(folded(alias), model_id)
        broken = sorted(set(self._broken), key=lambda file: (file.path, file.reason))
        return Listing(self._models, names, tuple(broken))

    def _place_all(
        self,
        candidates: Iterable[tuple[ModelFile, ModelRule | None]],
        *,
        is_elsewhere: bool = False,
    ) -> None:
        models, projectors = self._sorted_out(candidates)
        beside = _Beside(models=models, projectors=projectors)
        for file, info, rule in models:
            self._place(file, info, rule, beside, is_elsewhere=is_elsewhere)

    def _sorted_out(
        self, candidates: Iterable[tuple[ModelFile, ModelRule | None]]
    ) -> tuple[list[tuple[ModelFile, ModelInfo, ModelRule | None]], list[ModelFile]]:
        """Models, those that rules name by path first, and projectors; the rest is broken."""
        models: list[tuple[ModelFile, ModelInfo, ModelRule | None]] = []
        projectors: list[ModelFile] = []
        for file, rule in candidates:
            info = self._files.infos[file.path]
            if isinstance(info, BrokenFile):
                self._broken.append(replace(info, names=self._names(file.name, rule)))
            elif rule is None and (info.is_projector or is_projector_name(file.stem)):
                projectors.append(file)
            elif (reason := _why_no_model(info)) is not None:
                self._broken.append(BrokenFile(file.path, reason, self._names(file.name, rule)))
            else:
                models.append((file, info, rule or self._rules.get(folded(file.name))))
        return models, projectors

    def _candidates(self) -> Iterator[tuple[ModelFile, ModelRule | None]]:
        claimed = set()
        for rule, named in self._files.named:
            if isinstance(named, BrokenFile):
                reason = f"its file {named.path}: {named.reason}"
                names = self._names(rule.name, rule)
                self._broken.append(replace(named, reason=reason, names=names))
            else:
                claimed.add(named.parts[0].key)
                yield named, rule
        companions = {
            stat.key for stat in self._files.companions.values() if isinstance(stat, FileStat)
        }
        for file in self._files.found:
            is_companion = file.parts[0].key in companions and self._is_no_model(file)
            if file.parts[0].key not in claimed and not is_companion:
                yield file, None

    def _is_no_model(self, file: ModelFile) -> bool:
        """True for what only a rule has a use for; a draft that is a model too stays on offer."""
        info = self._files.infos[file.path]
        return isinstance(info, BrokenFile) or _why_no_model(info) is not None

    def _place(
        self,
        file: ModelFile,
        info: ModelInfo,
        rule: ModelRule | None,
        beside: "_Beside",
        *,
        is_elsewhere: bool,
    ) -> None:
        model_id = rule.name if rule is not None and rule.path is not None else ModelId(file.name)
        if self._is_taken(model_id, file.path, silently=is_elsewhere):
            return
        settings = self._offer.defaults if rule is None else rule.settings
        projector = None if settings.mmproj_path else beside.projector(file)
        if projector is not None:
            settings = replace(settings, mmproj_path=projector.path)
        stats = []
        for what, path in _companions(settings):
            stat = projector.parts[0] if projector and path == projector.path else self._stat(path)
            if isinstance(stat, str):
                names = self._names(file.name, rule)
                self._broken.append(BrokenFile(file.path, f"its {what} {path}: {stat}", names))
                return
            stats.append((what, stat))
        draft = self._files.infos.get(settings.draft_path or "")
        sees = self._files.infos.get(settings.mmproj_path or "")
        self._models[model_id] = ServedModel(
            model_id=model_id,
            aliases=(*file.aliases, *(() if rule is None else rule.aliases)),
            path=file.path,
            info=info,
            settings=settings,
            size_bytes=file.size_bytes
            + sum(stat.size_bytes for what, stat in stats if what == "projector"),
            modified_at=file.modified_ns / 1e9,
            file_key=_digest([file.key, *(stat.key for _, stat in stats)]),
            draft=draft if isinstance(draft, ModelInfo) else None,
            projector=sees if isinstance(sees, ModelInfo) else None,
            is_elsewhere=is_elsewhere,
        )

    def _is_taken(self, model_id: ModelId, path: str, *, silently: bool = False) -> bool:
        holder = self._models.get(model_id)
        if holder is not None and not silently:
            reason = f"hidden by {holder.path}: both are named {model_id}"
            self._broken.append(BrokenFile(path, reason))
        return holder is not None

    def _place_stored(self, stored: StoredModel) -> None:
        """A store says itself what goes with a model; a rule of its name goes before that."""
        file, model_id = stored.file, ModelId(stored.file.name)
        rule = self._rules.get(folded(model_id))
        info = self._files.infos[file.path]
        names = self._names(file.name, rule)
        if isinstance(info, BrokenFile):
            self._broken.append(replace(info, names=names))
            return
        if (reason := _why_not_stored(info, stored)) is not None:
            self._broken.append(BrokenFile(file.path, reason, names))
            return
        is_lent = stored.store in self._files.lent
        if self._is_taken(model_id, file.path, silently=is_lent):
            return
        settings = _with_stored(self._offer.defaults if rule is None else rule.settings, stored)
        stats = [(what, self._companion(path, stored)) for what, path in _companions(settings)]
        lost = next(((what, stat) for what, stat in stats if isinstance(stat, str)), None)
        if lost is not None:
            self._broken.append(BrokenFile(file.path, f"its {lost[0]}: {lost[1]}", names))
            return
        draft = self._files.infos.get(settings.draft_path or "")
        sees = self._files.infos.get(settings.mmproj_path or "")
        keys = [stat.key for _, stat in stats if isinstance(stat, FileStat)]
        template = None
        if stored.recipe.template and not info.chat_template:
            template = given_template(stored.recipe.template)
            info = replace(info, chat_template=template.jinja or None)
            keys.append(template.jinja)
        self._models[model_id] = ServedModel(
            model_id=model_id,
            aliases=() if rule is None else rule.aliases,
            path=file.path,
            info=info,
            settings=settings,
            size_bytes=stored.size_bytes,
            modified_at=stored.modified_ns / 1e9,
            file_key=_digest([file.key, *keys]),
            draft=draft if isinstance(draft, ModelInfo) else None,
            projector=sees if isinstance(sees, ModelInfo) else None,
            recipe=stored.recipe,
            store=stored.store,
            manifest_digest=stored.digest.hex,
            template=template,
            is_elsewhere=is_lent,
        )

    def _companion(self, path: str, stored: StoredModel) -> FileStat | str:
        own = (stored.projector, stored.draft, *stored.adapters)
        return next((s for s in own if s is not None and s.path == path), None) or self._stat(path)

    def _names(self, name: str, rule: ModelRule | None) -> tuple[str, ...]:
        """What a file of that name is offered under; a rule that names its path renames it."""
        rule = rule or self._rules.get(folded(name))
        if rule is None:
            return (name,)
        return (name if rule.path is None else rule.name, *rule.aliases)

    def _names_below(self, path: str) -> tuple[str, ...]:
        """Likewise for a file, or a part of one, that was not even read."""
        for folder in self._offer.dirs:
            prefix = folder.rstrip("/") + "/"
            if path.startswith(prefix) and path.lower().endswith(SUFFIX):
                stem = stem_of(path.removeprefix(prefix))
                part = part_of(stem)
                return self._names(part.base if part else stem, None)
        return ()

    def _stat(self, path: str) -> FileStat | str:
        return self._files.companions[path]

    def _report_idle_rules(self) -> None:
        """A rule by name that no file answers to, not even a broken one, is a mistake to tell."""
        seen = {folded(file.name) for file in self._files.found}
        seen |= {folded(stored.file.name) for stored in self._files.stored}
        seen |= {folded(file.name) for file in self._files.elsewhere}
        seen |= {folded(name) for file in self._files.broken for name in file.names}
        for name, rule in self._rules.items():
            if name not in seen:
                reason = "a rule without a file: none of that name is in the model folders"
                names = (rule.name, *rule.aliases)
                self._broken.append(BrokenFile(rule.name, reason, names, kind=BrokenKind.RULE))


class _Beside:
    """Projectors and the models that share their folders."""

    def __init__(
        self,
        *,
        models: Iterable[tuple[ModelFile, ModelInfo, ModelRule | None]],
        projectors: Iterable[ModelFile],
    ) -> None:
        self._projectors: dict[str, dict[str, ModelFile]] = {}
        for file in projectors:
            self._projectors.setdefault(file.folder, {})[file.stem] = file
        stems: dict[str, list[str]] = {folder: [] for folder in self._projectors}
        for model, _, _ in models:
            if model.folder in stems:
                stems[model.folder].append(model.stem)
        self._whose = {
            folder: Projectors(beside, models=stems[folder])
            for folder, beside in self._projectors.items()
        }

    def projector(self, model: ModelFile) -> ModelFile | None:
        """The one that is `model`'s; None where there is none, or no telling whose it is."""
        whose = self._whose.get(model.folder)
        stem = None if whose is None else whose.of(model.stem)
        return None if stem is None else self._projectors[model.folder][stem]


def _with_stored(settings: ModelSettings, stored: StoredModel) -> ModelSettings:
    """The operator's settings, and the store's where these are silent."""
    projector, draft = stored.projector, stored.draft
    return replace(
        settings,
        context=settings.context or stored.recipe.num_ctx,
        mmproj_path=settings.mmproj_path or (projector.path if projector else None),
        draft_path=settings.draft_path or (draft.path if draft else None),
        lora_paths=settings.lora_paths or tuple(stat.path for stat in stored.adapters),
    )


def _why_not_stored(info: ModelInfo, stored: StoredModel) -> str | None:
    if info.has_vision and not info.is_projector and stored.projector is None:
        return (
            "its vision tensors are within its model file, which only Ollama's own patches to"
            " llama.cpp read; pull one with a projector of its own, such as from Hugging Face"
        )
    return _why_no_model(info)


def _companions(settings: ModelSettings) -> Iterator[tuple[str, str]]:
    """The other files a model is launched with: (what, path)."""
    if settings.mmproj_path is not None:
        yield "projector", settings.mmproj_path
    if settings.draft_path is not None:
        yield "draft model", settings.draft_path
    for path in settings.lora_paths:
        yield "LoRA adapter", path


def _why_no_model(info: ModelInfo) -> str | None:
    if info.is_projector:
        return "a projector, not a model: name it as mmproj of one"
    if info.is_adapter:
        return "a LoRA adapter, not a model: name it as lora of one"
    kind = dict(info.metadata).get("general.type")
    return None if kind in _MODEL_TYPES else f"holds {kind}, not a model"


def _digest(keys: list[str]) -> str:
    return hashlib.sha256("+".join(keys).encode()).hexdigest()[:16]
