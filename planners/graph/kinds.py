"""Which layers of a model are unlike, told once per model: few are, and a plan asks many times."""

from functools import lru_cache

from msgspec import Struct

from planners.model import LayerInfo, ModelInfo

_MODELS = 64  # whose layers are known


class _Itself(Struct, frozen=True, eq=False):
    """A model, equal to itself alone: comparing its layers would take longer than all else."""

    model: ModelInfo

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.model is other.model

    def __hash__(self) -> int:
        return id(self.model)


class Kinds(Struct, frozen=True):
    """The unlike layers of a model, by their first appearance."""

    layers: tuple[LayerInfo, ...]
    numbers: tuple[int, ...]
    """Of each layer of the model: which of `layers` it is."""
    scans: bool
    """Whether some layer may scan its state by a matrix, for which not every device has an
    operation."""


def kinds(model: ModelInfo) -> Kinds:
    """What layers the model has; two that are equal may count as two where tensors are known."""
    return _kinds(_Itself(model))


def forget_kinds() -> None:
    """Drop what is known of models."""
    _kinds.cache_clear()


@lru_cache(maxsize=_MODELS)
def _kinds(one: _Itself) -> Kinds:
    layers = one.model.layers
    objects = dict(zip(map(id, layers), layers, strict=True))  # equal layers mostly are one object
    first: dict[object, int] = {}
    found: list[LayerInfo] = []
    number: dict[int, int] = {}
    for key, layer in objects.items():
        # Tensors take long to compare, and without them there are as many objects as layers.
        number[key] = first.setdefault(key if layer.weights else layer, len(found))
        if number[key] == len(found):
            found.append(layer)
    weights = (weight for layer in found for weight in layer.weights)
    scans = any(weight.name == "ssm_a" and len(weight.shape) > 1 for weight in weights)
    return Kinds(tuple(found), tuple(number[id(layer)] for layer in layers), scans)
