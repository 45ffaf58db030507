"""Embeddings as callers get them: of length 1, with the dimensions that were asked for. Pure."""

import math
from collections.abc import Sequence


def unit_vector(vector: Sequence[float], dimensions: int = 0) -> list[float]:
    """The vector with length 1, cut to its first `dimensions` where that is fewer than it has."""
    cut = vector[:dimensions] if 0 < dimensions < len(vector) else vector
    length = math.sqrt(math.fsum(x * x for x in cut))
    return [x / length for x in cut] if length > 0 else list(cut)
