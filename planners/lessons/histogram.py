"""How often a value fell into which span: counts, as Prometheus has them. Pure."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    """Counts of values by their upper bounds, and their sum. Adding costs a bisection."""

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        """Ascending; what is above the last one counts as well."""
        self.total = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Of all values."""
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float | None, int]]:
        """Each bound and how many values are at most it; the last bound is None, without end."""
        below = 0
        for bound, count in zip((*self.bounds, None), self._counts, strict=True):
            below += count
            yield bound, below
