"""What `inferenceosctl models` shows: all that is on offer, and what could not be."""

from collections.abc import Iterable

from msgspec import Struct

from planners.capabilities import capabilities
from planners.instances.twins import shared
from planners.model import BrokenFile, ModelId, ServedModel
from planners.view import Observed


class ModelReport(Struct, frozen=True):
    """One model on offer."""

    model: str
    aliases: tuple[str, ...]
    path: str
    architecture: str
    quantization: str
    n_params: int
    size_bytes: int
    n_ctx_train: int
    capabilities: tuple[str, ...]
    is_pinned: bool
    state: str | None
    """Of its instance; None where it is not loaded."""
    warnings: tuple[str, ...]
    digest: str = ""
    """Hex; what Ollama's clients tell models apart by."""
    modified_at: float = 0.0
    """UTC seconds."""


class ModelsReport(Struct, frozen=True):
    """Everything `inferenceosctl models` shows."""

    models: tuple[ModelReport, ...]
    broken: tuple[BrokenFile, ...]
    dirs: tuple[str, ...]
    """The folders that are searched."""


def models_report(
    models: Iterable[ServedModel],
    *,
    broken: tuple[BrokenFile, ...],
    instances: Iterable[Observed],
    dirs: tuple[str, ...],
) -> ModelsReport:
    """All that is offered, and what could not be."""
    states: dict[ModelId, str] = {one.model_id: one.state.value for one in instances}
    offered = {model.model_id: model for model in models}
    processes = shared(offered)
    reports = (
        model_report(model, state=states.get(processes.host(model_id)))
        for model_id, model in offered.items()
    )
    return ModelsReport(tuple(reports), broken, dirs)


def model_report(model: ServedModel, *, state: str | None) -> ModelReport:
    """One model; `state` is its instance's."""
    return ModelReport(
        model=model.model_id,
        aliases=model.aliases,
        path=model.path,
        architecture=model.info.architecture,
        quantization=model.info.quantization,
        n_params=model.info.n_params,
        size_bytes=model.size_bytes,
        n_ctx_train=model.info.n_ctx_train,
        capabilities=tuple(can.value for can in capabilities(model)),
        is_pinned=model.settings.pin,
        state=state,
        warnings=model.info.warnings,
        digest=model.shown_digest,
        modified_at=model.modified_at,
    )
