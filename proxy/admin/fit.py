"""What `inferenceosctl pull --fit` is told: the files of a repository, ranked for a machine."""

from collections.abc import Sequence

from msgspec import Struct

from planners.layout.variants import Candidate, why
from planners.plan import Shortfall
from supervisor.store.names import StoreName


class FitRow(Struct, frozen=True):
    """One file, or all parts of one."""

    tag: str
    """What it is pulled by: hf.co/ORG/REPO:TAG."""
    quantization: str
    """By its name; "" where that tells none."""
    size_bytes: int
    fit: str
    """Where its layers would be."""
    context: int
    """Tokens one request may use; 0 where it does not fit."""
    decode_tokens_per_s: float | None
    """Predicted."""
    is_estimate: bool
    """By its size and another file's header."""
    reason: str = ""
    """Why it does not fit; "" where it does."""


class FitReport(Struct, frozen=True):
    """The files, best first, and which of them is to be pulled."""

    pick: str | None
    """The name to pull; None where none fits."""
    why: str
    files: tuple[FitRow, ...]
    origin: str | None = None
    """Of a recorded machine: where its profile is from; None of this one."""


def fit_report(
    name: StoreName,
    order: Sequence[Candidate],
    *,
    context: int | None,
    origin: str | None = None,
) -> FitReport:
    """The ranking of the repository `name`, told."""
    best = order[0]
    does_fit = not isinstance(best.answer, Shortfall)
    pick = StoreName(name.host, name.namespace, name.model, best.tag).short if does_fit else None
    return FitReport(pick, why(order, context=context), tuple(map(_row, order)), origin)


def _row(one: Candidate) -> FitRow:
    return FitRow(
        tag=one.tag,
        quantization=one.label,
        size_bytes=one.size_bytes,
        fit=one.fit.value,
        context=one.context,
        decode_tokens_per_s=one.tokens_per_s,
        is_estimate=one.is_estimate,
        reason=str(one.answer) if isinstance(one.answer, Shortfall) else "",
    )
