"""What dry runs had to do with a placement, as sentences with their numbers. Pure."""

from collections.abc import Iterator

from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.layout.dry_runs import PreflightFailed
from planners.layout.placed import Placed
from planners.layout.prediction import Prediction
from planners.reasons import Reason, ReasonKind
from planners.sizes import format_size

MOST_NAMED = 3  # as many as one launch waits for
IN_DOUBT = (
    "it fits by what is predicted and not by the upper bound: a dry run of the engine decides "
    "before the launch"
)


def told_by_dry_runs(placed: Placed, prediction: Prediction) -> Iterator[Reason]:
    """Each other launch that one refused, and whether one stands behind this."""
    yield from _refused(placed, prediction)
    if placed.doubt is not None:
        yield Reason(ReasonKind.DRY_RUN, IN_DOUBT)
    elif prediction.dry_runs.of(prediction.dry_run_key(placed.engine, placed.shape)) is not None:
        parts = (part for part in placed.predicted if part.compute_bytes)
        sizes = (f"{format_size(part.compute_bytes)} on {part.device_id}" for part in parts)
        text = f"buffers as a dry run of the engine told: {', '.join(sizes)}"
        yield Reason(ReasonKind.DRY_RUN, text)


def _refused(placed: Placed, prediction: Prediction) -> Iterator[Reason]:
    for shape in _others(placed, prediction):
        predicted = prediction.of(placed.engine, placed.room, shape, is_drawn=True)
        other = replace(placed, shape=shape, predicted=predicted)
        for device_id, n_bytes in other.missing_bytes(placed.room).items():
            lack = f"{format_size(n_bytes)} missing on {device_id}"
            text = f"refused by a dry run: {_told(shape)}: {lack}"
            yield Reason(ReasonKind.DRY_RUN, text, device_id)


def _others(placed: Placed, prediction: Prediction) -> list[LaunchShape]:
    """The newest launches of which a dry run told, of those that one would have preferred."""
    known = {budget.device_id for budget in placed.room.devices}
    found = [
        key.shape
        for key, told in prediction.dry_runs.told.items()
        if not isinstance(told, PreflightFailed)
        and key == prediction.dry_run_key(placed.engine, key.shape)
        and key.shape != placed.shape
        and key.shape.n_parallel == placed.shape.n_parallel
        and key.shape.n_ctx_seq >= placed.shape.n_ctx_seq
        and known.issuperset(device_id for device_id, _ in key.shape.split)
    ]
    return found[-MOST_NAMED:]


def _told(shape: LaunchShape) -> str:
    return (
        f"context {shape.n_ctx_seq} × {shape.n_parallel} in batches of {shape.n_ubatch}, KV cache "
        f"in {shape.type_k}/{shape.type_v}, {shape.n_gpu_layers} layers on devices"
    )
