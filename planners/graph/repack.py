"""Weights that the host's processor holds in a form of its own (AMX's tiles), and their bytes.

Tiles keep sums beside some blocks. What is repacked in another way ("CPU_REPACK") takes as much as
in the file; and either way a tied token_embd is held once more, since the rows of the input are
read in the file's form. The rules are those of ggml-cpu/amx and ggml-cpu/repack (b10434, measured).
"""

from collections.abc import Iterable, Sequence

from planners.backends import Engine
from planners.ggml.layers import is_expert
from planners.graph.fallback import is_remote
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.model import ModelInfo, ServedModel, WeightInfo

_REFUSALS = frozenset({"--no-repack", "-nr"})
_TILE_ROWS = 32  # two tiles of 16: other products are left to the usual code
_TILED: dict[str, tuple[int, int, int]] = {
    # Columns that a tile wants, elements of a block, bytes beside each of them.
    "q4_0": (32, 32, 0),
    "q4_1": (32, 32, 0),
    "q8_0": (32, 32, 4),
    "q4_k": (256, 256, 4),
    "q5_k": (256, 256, 4),
    "q6_k": (256, 256, 0),
    "iq4_xs": (256, 256, 2),
    "f16": (16, 16, 0),
}
_WOVEN_ROWS = 8
_WOVEN = ("q4_0", "q4_k", "q2_k", "iq4_nl", "mxfp4")  # with AVX-512, which comes with AMX
_READ_BY_ROW = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")


def repacks(served: ServedModel, *, engine: Engine) -> bool:
    """Whether the host's weights may be laid out anew: not against the operator's word."""
    if _REFUSALS & {*served.settings.flags}:
        return False
    models = [info for info in (served.info, served.draft) if info is not None]
    return not (engine.has_tiles and any(map(ends_the_engine, models)))


def is_tiled(shape: LaunchShape) -> bool:
    """Whether the host's weights are laid out for tiles: not where a device may borrow them."""
    return shape.host_tiles and all(is_remote(device) for device, _ in shape.split)


def tiled_bytes(weight: WeightInfo) -> int | None:
    """Bytes of a weight that is laid out for tiles; None for one that is not."""
    kind = _TILED.get(weight.type_name)
    if kind is None or len(weight.shape) < 2 or not _multiplies(weight.name):
        return None
    step, block, beside = kind
    columns, rows, *_ = weight.shape
    if columns % step or rows % _TILE_ROWS:
        return None
    return weight.n_bytes + rows * (columns // block) * beside


def ends_the_engine(model: ModelInfo) -> bool:
    """Whether the engine aborts where it lays out this model for tiles.

    MLA's stacks of matrices are taken for plain ones, and then nobody can multiply them (b10434).
    """
    kinds = {id(layer): layer for layer in model.layers}
    return any(
        len(weight.shape) > 2 and tiled_bytes(weight) is not None
        for layer in kinds.values()
        for weight in layer.weights
    )


def repacking_bytes(
    model: ModelInfo,
    shape: LaunchShape,
    owners: Sequence[DeviceId],
    left: Sequence[frozenset[str]],
) -> int:
    """Host bytes of weights beyond the file's; `left`: as planners.graph.fallback.host_weights."""
    if not is_tiled(shape):
        return 0
    known: dict[tuple[int, bool, frozenset[str]], int] = {}  # few kinds of layer make up a model
    total = 0
    for layer, owner, names in zip(model.layers, owners, left, strict=False):
        key = (id(layer), owner == HOST, names)
        if key not in known:
            known[key] = _growth_bytes(
                weight for weight in layer.weights if owner == HOST or weight.name in names
            )
        total += known[key]
    is_here = owners[-1] == HOST
    total += _growth_bytes(w for w in model.ends if is_here or w.name in left[-1])
    return total + (_tied_copy_bytes(model) if is_here or "token_embd.weight" in left[-1] else 0)


def _growth_bytes(weights: Iterable[WeightInfo]) -> int:
    found = ((weight, tiled_bytes(weight)) for weight in weights)
    return sum(n_bytes - weight.n_bytes for weight, n_bytes in found if n_bytes is not None)


def _tied_copy_bytes(model: ModelInfo) -> int:
    """Bytes of a tied token_embd as the output's weight; 0 where it is left as it is."""
    found = next((weight for weight in model.ends if weight.name == "token_embd.weight"), None)
    if not model.tied_bytes or found is None:
        return 0
    as_output = WeightInfo("output.weight", found.shape, found.n_bytes, found.type_name)
    if (n_bytes := tiled_bytes(as_output)) is not None:
        return n_bytes
    is_matrix = len(found.shape) > 1
    is_woven = found.type_name in _WOVEN and is_matrix and not found.shape[1] % _WOVEN_ROWS
    return found.n_bytes if is_woven else 0


def _multiplies(name: str) -> bool:
    """Whether a matrix is one factor of a plain product; experts are picked by number."""
    return not (is_expert(name) or name.startswith(_READ_BY_ROW) or "norm" in name)
