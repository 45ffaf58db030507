"""Predictions against rows: relative errors, and their table by kind of model and of launch."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.planner.rows import Row
from planners.hardware import HOST
from planners.memory import joined, predict, predict_draft
from planners.model import LayerKind, ModelInfo
from planners.plan import DeviceBytes

UNDER_SHARE = 0.02
"""How far above the prediction a launch may be before it counts as under-estimated."""
EXACT_BYTES = 25_000  # logs are rounded to 0.01 MiB, and tensors padded
EXACT_DRY_BYTES = 1_100_000  # a dry run's table is rounded to 1 MiB


@dataclass(frozen=True, slots=True)
class Error:
    """One device of one launch: what was predicted, what came."""

    row: Row
    device: str
    predicted_bytes: int
    upper_bytes: int
    actual_bytes: int
    are_parts_exact: bool
    """Whether weights, KV cache and state are exact to the log's rounding."""

    @property
    def share(self) -> float:
        """Relative error; above 0 where too much was predicted."""
        return self.predicted_bytes / max(self.actual_bytes, 1) - 1

    @property
    def is_above_bound(self) -> bool:
        """Whether the launch took more than the upper bound and the tolerance."""
        return self.actual_bytes > self.upper_bytes * (1 + UNDER_SHARE)


def predicted(row: Row) -> tuple[DeviceBytes, ...]:
    """What the planners say of a row's launch, its draft model included."""
    parts = predict(row.model, row.shape, overhead_bytes={})
    if row.draft is None:
        return parts
    draft, shape = row.draft
    device = shape.split[-1][0] if shape.split else HOST
    return joined(parts, predict_draft(draft, shape, device_id=device))


def errors(row: Row) -> Iterator[Error]:
    """Of each device with layers; of the host where it computes alone."""
    return (e for e in all_errors(row) if (e.device == HOST) == (not row.shape.split))


def all_errors(row: Row) -> Iterator[Error]:
    """Of each device and of the host, its weights apart where they are pages of a mapped file."""
    return compared(row, predicted(row))


def compared(row: Row, parts: Iterable[DeviceBytes]) -> Iterator[Error]:
    """A launch against any prediction of it."""
    found = {part.device_id: part for part in parts}
    for device, actual in row.actual.items():
        if device not in found or (device == HOST and row.is_dry and row.shape.split):
            continue  # a dry run's table leaves out the host's output buffer
        part = found[device]
        weights = part.weights_bytes if device != HOST or actual.weights_bytes else 0
        allowed = EXACT_DRY_BYTES if row.is_dry else EXACT_BYTES
        yield Error(
            row=row,
            device=str(device),
            predicted_bytes=weights + part.kv_bytes + part.compute_bytes,
            upper_bytes=weights + part.kv_bytes + part.compute_bytes + part.margin_bytes,
            actual_bytes=actual.total_bytes,
            are_parts_exact=abs(weights - actual.weights_bytes) <= allowed
            and abs(part.kv_bytes - actual.kv_bytes) <= allowed,
        )


def kind_of(model: ModelInfo) -> str:
    """dense, SWA, MLA, MoE, recurrent, hybrid or encoder: the first that fits, rarest first."""
    kinds = {layer.kind for layer in model.layers}
    if model.is_encoder:
        return "encoder"
    if LayerKind.RECURRENT in kinds:
        return "hybrid" if kinds & {LayerKind.FULL, LayerKind.SWA} else "recurrent"
    if any(layer.k_width and not layer.v_width for layer in model.layers):
        return "MLA"
    if LayerKind.SWA in kinds:
        return "SWA"
    return "MoE" if any(layer.expert_bytes for layer in model.layers) else "dense"


def placement_of(row: Row) -> str:
    """full, partial, experts on the host, several devices, or the processor alone."""
    shape, n_all = row.shape, row.model.n_layer + 1
    if not shape.split:
        return "processor alone"
    if len(shape.split) > 1:
        return "several devices"
    if shape.n_cpu_moe or shape.on_host or shape.kv_on_host:
        return "parts on the host"
    return "full" if shape.n_gpu_layers == n_all else "partial"


HEAD = f"{'':28s}{'n':>5s}" + "".join(
    f"{title:>{width}s}"
    for title, width in (
        ("median", 9), ("p95", 9), ("worst", 9), ("under", 7), ("above", 7), ("exact", 8),
    )
)  # fmt: skip


def line(name: str, found: Sequence[Error]) -> str:
    """One line of the table: under = more than 2 % too low, above = beyond the upper bound."""
    shares = sorted(abs(error.share) for error in found)
    worst = max(found, key=lambda error: abs(error.share))
    under = sum(error.share < -UNDER_SHARE for error in found)
    above = sum(error.is_above_bound for error in found)
    exact = sum(error.are_parts_exact for error in found) / len(found)
    return (
        f"{name:28s}{len(found):5d}{percentile(shares, 0.5):9.2%}{percentile(shares, 0.95):9.2%}"
        f"{worst.share:+9.2%}{under:7d}{above:7d}{exact:8.1%}"
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed (nearest rank), of ascending values."""
    return values[min(len(values) - 1, int(share * len(values)))]


def grouped(found: Iterable[Error], key: Callable[[Error], str]) -> dict[str, list[Error]]:
    """Errors by a name, in order of the names."""
    groups: dict[str, list[Error]] = defaultdict(list)
    for error in found:
        groups[key(error)].append(error)
    return dict(sorted(groups.items()))


def report(found: Sequence[Error]) -> str:
    """The whole table."""
    if not found:
        return "no row can be judged"
    real = [e for e in found if e.row.is_dry]
    tiny = [e for e in found if not e.row.is_dry]
    lines = [HEAD]
    sections: tuple[tuple[str, Sequence[Error], Callable[[Error], str]], ...] = (
        ("by placement", tiny, lambda e: placement_of(e.row)),
        ("by placement, real shapes", real, lambda e: placement_of(e.row)),
        ("by kind", found, lambda e: kind_of(e.row.model)),
        ("by architecture", found, lambda e: e.row.model.architecture),
    )
    for title, judged, key in sections:
        lines.append(f"{title}:")
        lines += [line("  " + name, group) for name, group in grouped(judged, key).items()]
    return "\n".join([*lines, line("all", found)])
