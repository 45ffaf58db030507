from collections.abc import Iterator, Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners.layout.partition import (
    MOST_EXACT,
    Blocks,
    Place,
    engine_blocks,
    fits,
    partition,
)


def all_blocks(
    n_layer: int, places: Sequence[Place], sizes: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Every way to give the last `n_layer` layers to the places, in order, that fits."""
    if not places:
        if n_layer == 0:
            yield ()
        return
    *rest, last = places
    for count in range(n_layer + 1):
        taken = sum(sizes[n_layer - count : n_layer])
        if taken > max(last.room_bytes, 0):
            return
        if last.is_needed and not count:
            continue
        for before in all_blocks(n_layer - count, rest, sizes):
            yield (*before, count)


def brute_force(
    sizes: Sequence[int], places: Sequence[Place], *, host_ps: Sequence[int], most_on_host: int
) -> int | None:
    """The least cost over all ways there are."""
    best = None
    for n_host in range(most_on_host + 1):
        left = sizes[n_host:]
        for counts in all_blocks(len(left), places, left):
            total = sum(host_ps[:n_host])
            start = n_host
            for place, count in zip(places, counts, strict=True):
                total += sum(place.layer_ps[start : start + count]) + bool(count) * place.entry_ps
                start += count
            best = total if best is None else min(best, total)
    return best


def cost(blocks: Blocks, places: Sequence[Place], host_ps: Sequence[int]) -> int:
    total, start = sum(host_ps[: blocks.n_host]), blocks.n_host
    for place, count in zip(places, blocks.counts, strict=True):
        total += sum(place.layer_ps[start : start + count]) + bool(count) * place.entry_ps
        start += count
    return total


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[Place], list[int], int]:
    n = draw(st.integers(1, 7))
    per_layer = st.lists(st.integers(0, 50), min_size=n, max_size=n)
    place = st.builds(
        Place,
        room_bytes=st.integers(-5, 80),
        layer_ps=per_layer,
        entry_ps=st.integers(0, 20),
        is_needed=st.booleans(),
    )
    places = draw(st.lists(place, max_size=3))
    sizes = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    return sizes, places, draw(per_layer), draw(st.integers(0, n))


@settings(max_examples=500, deadline=None)
@given(problems())
def test_no_other_blocks_are_cheaper(
    problem: tuple[list[int], list[Place], list[int], int],
) -> None:
    sizes, places, host_ps, most_on_host = problem

    found = partition(sizes, places, host_ps=host_ps, most_on_host=most_on_host)

    best = brute_force(sizes, places, host_ps=host_ps, most_on_host=most_on_host)
    assert (found.cost_ps if found else None) == best
    if found:
        assert cost(found, places, host_ps) == best
        assert found.n_host + sum(found.counts) == len(sizes)
        ends = [found.n_host, *accumulate(found.counts, initial=found.n_host)][1:]
        for place, start, count in zip(places, ends, found.counts, strict=False):
            assert sum(sizes[start : start + count]) <= max(place.room_bytes, 0)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=12),
    st.lists(st.integers(-5, 60), max_size=4),
)
def test_what_fits_is_what_a_partition_is_found_for(sizes: list[int], rooms: list[int]) -> None:
    free = [0] * len(sizes)
    places = [Place(room, free) for room in rooms]

    found = partition(sizes, places, host_ps=free, most_on_host=0)

    assert fits(sizes, rooms) == (found is not None)


@st.composite
def deep_problems(draw: st.DrawFn) -> tuple[list[int], list[Place], list[int], int]:
    n = draw(st.integers(MOST_EXACT + 1, 4 * MOST_EXACT))
    chance = draw(st.randoms(use_true_random=False))
    places = [
        Place(
            room_bytes=draw(st.integers(-5, 20 * n)),
            layer_ps=[chance.randint(0, 50) for _ in range(n)],
            is_needed=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]
    sizes = [chance.randint(1, 20) for _ in range(n)]
    return sizes, places, [chance.randint(0, 90) for _ in range(n)], draw(st.integers(0, n))


@settings(max_examples=100, deadline=None)
@given(deep_problems())
def test_more_layers_than_are_placed_one_by_one_never_exceed_a_room(
    problem: tuple[list[int], list[Place], list[int], int],
) -> None:
    sizes, places, host_ps, most_on_host = problem

    found = partition(sizes, places, host_ps=host_ps, most_on_host=most_on_host)

    if found is None:
        return
    assert found.n_host <= most_on_host
    assert found.n_host + sum(found.counts) == len(sizes)
    assert cost(found, places, host_ps) == found.cost_ps
    starts = accumulate(found.counts, initial=found.n_host)
    for place, start, count in zip(places, starts, found.counts, strict=False):
        assert sum(sizes[start : start + count]) <= max(place.room_bytes, 0)
        assert count or not place.is_needed


def test_a_model_too_deep_to_be_placed_layer_by_layer_leaves_little_room() -> None:
    n = 2 * MOST_EXACT
    free, dear = [0] * n, [1] * n

    found = partition([1] * n, [Place(200, free)], host_ps=dear, most_on_host=n - 1)

    assert found is not None
    assert 196 <= found.counts[0] <= 200


def test_of_equal_places_the_later_one_gets_the_layers() -> None:
    alike = Place(room_bytes=10, layer_ps=(1, 1, 1), entry_ps=1)

    found = partition((4, 4, 4), (alike, alike), host_ps=(9, 9, 9), most_on_host=0)

    assert found == Blocks(n_host=0, counts=(1, 2), cost_ps=5)


def test_a_place_slower_than_the_host_is_left_out() -> None:
    slow = Place(room_bytes=100, layer_ps=(9, 9, 9))
    fast = Place(room_bytes=8, layer_ps=(1, 1, 1))

    found = partition((4, 4, 4), (slow, fast), host_ps=(5, 5, 5), most_on_host=3)

    assert found == Blocks(n_host=1, counts=(0, 2), cost_ps=7)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(1, 130), min_size=1, max_size=16))
def test_layers_per_device_as_a_tensor_split_are_dealt_out_as_counted(counts: list[int]) -> None:
    assert engine_blocks(counts, n_gpu_layers=sum(counts)) == tuple(counts)


@pytest.mark.parametrize(
    ("tensor_split", "n_gpu_layers", "blocks"),
    [
        pytest.param((1, 1), 31, (16, 15), id="31 layers in halves"),
        pytest.param((3, 1), 8, (6, 2), id="three to one"),
        pytest.param((0, 1), 5, (0, 5), id="nothing on the first"),
    ],
)
def test_shares_that_are_no_counts_are_rounded_by_the_engine(
    tensor_split: tuple[int, ...], n_gpu_layers: int, blocks: tuple[int, ...]
) -> None:
    assert engine_blocks(tensor_split, n_gpu_layers=n_gpu_layers) == blocks
