"""The cheapest contiguous blocks of layers over places of unequal size and speed. Pure.

Exact up to MOST_EXACT layers; more of them are dealt in runs of neighbours.

A prefix stays on the host, then each place takes one block or none, in order. Dynamic programming
with a sliding window per place: what a block may begin with only moves on as its end does, so
each place costs one pass over the layers. Costs are whole picoseconds: equal is equal then, and of
equals the later place gets the layer.
"""

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import inf
from operator import le, sub

from msgspec import Struct
from msgspec.structs import replace

MOST_EXACT = 192  # the most that unlike layers of a model so far come to is 163, output included


class Place(Struct, frozen=True):
    """One device in the engine's order."""

    room_bytes: int
    """For layers alone; 0 or less takes none."""
    layer_ps: Sequence[int]
    """What each layer costs there, output layer last."""
    entry_ps: int = 0
    """What it costs to use the place at all."""
    is_needed: bool = False
    """True where at least one layer must go there."""


class Blocks(Struct, frozen=True):
    """How many layers go where, front to back, and what that costs."""

    n_host: int
    counts: tuple[int, ...]
    """Per place, 0 for one left out."""
    cost_ps: int


def partition(
    sizes: Sequence[int], places: Sequence[Place], *, host_ps: Sequence[int], most_on_host: int
) -> Blocks | None:
    """The cheapest way to place layers of `sizes` bytes; None where they do not fit.

    `host_ps`: cost of each layer on the host, which takes the first `most_on_host` at most.
    """
    if len(sizes) > MOST_EXACT:
        return _by_runs(sizes, places, host_ps=host_ps, most_on_host=most_on_host)
    n = len(sizes)
    best: list[float] = [*accumulate(host_ps, initial=0)]
    best[most_on_host + 1 :] = [inf] * (n - most_on_host)
    ends = [*accumulate(sizes, initial=0)]
    begins, begin, most = [], 0, most_on_host
    for place, least in zip(places, _least_ends(places, ends), strict=True):
        most = max(most, bisect_right(ends, ends[most] + place.room_bytes) - 1)
        best, begun = _with(place, best, ends, begin=begin, least=least, most=most)
        begins.append(begun)
        begin = least
    if best[n] == inf:
        return None
    counts, end = [], n
    for begun in reversed(begins):
        counts.append(end - begun[end])
        end = begun[end]
    return Blocks(n_host=end, counts=tuple(reversed(counts)), cost_ps=int(best[n]))


def _by_runs(
    sizes: Sequence[int], places: Sequence[Place], *, host_ps: Sequence[int], most_on_host: int
) -> Blocks | None:
    """As `partition`, with runs of layers for layers; the last one, the output, by itself."""
    length = -(-(len(sizes) - 1) // (MOST_EXACT - 1))
    ends = [*range(0, len(sizes) - 1, length), len(sizes) - 1, len(sizes)]

    def runs(values: Sequence[int]) -> list[int]:
        sums = [*accumulate(values, initial=0)]
        return [sums[end] - sums[begin] for begin, end in pairwise(ends)]

    costs = {id(place.layer_ps): place.layer_ps for place in places}  # most places are alike
    by_run = {number: runs(layer_ps) for number, layer_ps in costs.items()}
    found = partition(
        runs(sizes),
        [replace(place, layer_ps=by_run[id(place.layer_ps)]) for place in places],
        host_ps=runs(host_ps),
        most_on_host=bisect_right(ends, most_on_host) - 1,
    )
    if found is None:
        return None
    at = [*accumulate(found.counts, initial=found.n_host)]
    counts = tuple(ends[end] - ends[begin] for begin, end in pairwise(at))
    return Blocks(n_host=ends[found.n_host], counts=counts, cost_ps=found.cost_ps)


def fits(sizes: Sequence[int], rooms: Sequence[int]) -> bool:
    """Whether all layers find room in that order of places: each takes as many as it holds."""
    ends = [*accumulate(sizes, initial=0)]
    placed = 0
    for room in rooms:
        if room > 0:
            placed = bisect_right(ends, ends[placed] + room) - 1
    return placed == len(sizes)


def _least_ends(places: Sequence[Place], ends: Sequence[int]) -> list[int]:
    """For each place the least layers that it and those before it must have taken in the end."""
    least, found = len(ends) - 1, list[int]()
    for place in reversed(places):
        found.append(least)
        least = min(least, bisect_left(ends, ends[least] - place.room_bytes))
    return found[::-1]


def _with(
    place: Place,
    before: Sequence[float],
    ends: Sequence[int],
    *,
    begin: int,
    least: int,
    most: int,
) -> tuple[list[float], list[int]]:
    """The least cost of the first i layers with one more place, and where its block begins.

    Told for `least` to `most` alone: fewer leave too many for the places to come, more find no
    room. No block of the place begins before `begin` then.
    """
    n = len(before)
    best, begun = [inf] * n if place.is_needed else list(before), list(range(n))
    if place.room_bytes < 0:
        return best, begun
    entry_ps, cost = place.entry_ps, [*accumulate(place.layer_ps, initial=0)]
    saved = [*map(sub, before, cost)]
    # Faster places come last: the longest block is the cheapest then, and no others are weighed.
    rises = all(map(le, saved[begin : most - 1], saved[begin + 1 : most]))
    begins = _longest if rises else _cheapest
    first = max(begin + 1, least)
    for i, at in begins(saved, ends, place.room_bytes, begin=begin, first=first, most=most):
        total = saved[at] + cost[i] + entry_ps
        if total <= best[i]:
            best[i], begun[i] = total, at
    return best, begun


def _longest(
    saved: Sequence[float],
    ends: Sequence[int],
    room_bytes: int,
    *,
    begin: int,
    first: int,
    most: int,
) -> Iterator[tuple[int, int]]:
    """The ends from `first` to `most` with where the longest block before each of them begins."""
    at = begin
    for i in range(first, most + 1):
        least_end = ends[i] - room_bytes
        while ends[at] < least_end:
            at += 1
        if at < i and saved[at] != inf:
            yield i, at


def _cheapest(
    saved: Sequence[float],
    ends: Sequence[int],
    room_bytes: int,
    *,
    begin: int,
    first: int,
    most: int,
) -> Iterator[tuple[int, int]]:
    """Likewise, with where the cheapest block begins, the longest of equals."""
    window: deque[int] = deque()  # beginnings in order, the cheapest first
    for i in range(begin + 1, most + 1):
        begin_ps = saved[i - 1]
        if begin_ps != inf:
            while window and saved[window[-1]] > begin_ps:
                window.pop()
            window.append(i - 1)
        if i < first:
            continue
        least_end = ends[i] - room_bytes
        while window and ends[window[0]] < least_end:
            window.popleft()
        if window:
            yield i, window[0]


def engine_blocks(tensor_split: Sequence[float], *, n_gpu_layers: int) -> tuple[int, ...]:
    """Layers per device as llama.cpp deals them out for a `--tensor-split` (float32 throughout).

    Layer i of those off the host goes to the first device whose cumulated share exceeds i of
    them (llama-model.cpp, load_tensors, b11434: std::upper_bound).
    """
    total = 0.0
    sums = []
    for share in tensor_split:
        total = _float32(total + share)
        sums.append(total)
    shares = [_float32(part / total) for part in sums]
    counts = [0] * len(shares)
    for i in range(n_gpu_layers):
        position = _float32(i / n_gpu_layers)
        counts[next(d for d, share in enumerate(shares) if share > position)] += 1
    return tuple(counts)


def _float32(value: float) -> float:
    """`value` as a C float holds it."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return float(rounded)
