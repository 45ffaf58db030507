"""Which layers of a model are alike, told once per model.

Few kinds make up a model, and its tensors are many: comparing them takes longer than all else.
"""

from functools import lru_cache
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from planners.graph.architectures import odd_layers
from planners.graph.kv_cache import LaunchShape
from planners.graph.support import VULKAN, attends_over
from planners.model import LayerInfo, LayerKind, ModelInfo

_MODELS = 64  # whose equal layers are known


class Known(Struct, frozen=True, eq=False):
    """A model, equal to all that have its digest: hashing its tensors would take longer."""

    model: ModelInfo

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and (
            self.model is other.model
            or (bool(self.model.digest) and self.model.digest == other.model.digest)
        )

    def __hash__(self) -> int:
        return hash(self.model.digest)


@lru_cache(maxsize=_MODELS)
def first_equals(known: Known) -> tuple[int, ...]:
    """For each layer the first one that equals it."""
    first: dict[LayerInfo, int] = {}
    number: dict[int, int] = {}  # equal layers mostly are one object: hash it once
    for i, layer in enumerate(known.model.layers):
        if id(layer) not in number:
            number[id(layer)] = first.setdefault(layer, i)
    return tuple(number[id(layer)] for layer in known.model.layers)


@lru_cache(maxsize=_MODELS)
def oddities(known: Known) -> tuple[bool, ...]:
    """Of each layer whether its architecture treats it unlike the others of its shape."""
    return odd_layers(known.model)


@lru_cache(maxsize=_MODELS)
def has_turns(known: Known) -> bool:
    """Whether kinds of layers take turns."""
    is_one_kind = len({layer.kind for layer in known.model.layers}) < 2
    return not is_one_kind or sum(a != b for a, b in pairwise(oddities(known))) > 1


@lru_cache(maxsize=_MODELS)
def has_all_tensors(known: Known) -> bool:
    """Whether the tensors of every layer are known, and its heads."""
    layers = known.model.layers
    return all(layer.weights and (layer.n_head_kv or not layer.k_width) for layer in layers)


@lru_cache(maxsize=_MODELS)
def alike_but_for_masks(known: Known) -> tuple[tuple[int, bool], ...] | None:
    """For each layer the first that equals it but for a window; None where no two kinds do.

    None, too, where kinds that differ in more than that take turns.
    """
    firsts, odd = first_equals(known), oddities(known)
    kinds = {*zip(firsts, odd, strict=True)}
    if {known.model.layers[i].kind for i, _ in kinds} != {LayerKind.FULL, LayerKind.SWA}:
        return None
    first: dict[LayerInfo, int] = {}
    number = {
        i: first.setdefault(replace(known.model.layers[i], kind=LayerKind.FULL), i)
        for i in sorted({*firsts})
    }
    found = tuple((number[i], is_odd) for i, is_odd in zip(firsts, odd, strict=True))
    takes_turns = sum(a != b for a, b in pairwise(found)) > 1
    return None if takes_turns or len({*found}) == len(kinds) else found


def masks_alone_differ(model: ModelInfo, shape: LaunchShape) -> bool:
    """Whether a window changes nothing of what a layer's results take, wherever it lies.

    Scores are results without flash attention. A device that cannot attend, or that has its caches
    on the host, is sent copies of them, which are as long as the window. Weights left on the host
    one by one send a mask to a device more than once.
    """
    if not shape.flash_attn or shape.kv_on_host or shape.binding_limits or shape.on_host:
        return False
    if shape.backend != VULKAN:
        return True
    if (shape.type_k == "bf16") != (shape.type_v == "bf16"):
        return False
    layers = {id(layer): layer for layer in model.layers}.values()
    widths = ((layer.k_width, layer.v_width, max(layer.n_head_kv, 1)) for layer in layers)
    return all(attends_over(k // heads, v // heads) for k, v, heads in widths)


def forget_models() -> None:
    """Drop what is known of models."""
    for each in (first_equals, oddities, has_turns, has_all_tensors, alike_but_for_masks):
        each.cache_clear()
