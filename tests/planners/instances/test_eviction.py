import time
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.hardware import HOST, DeviceId
from planners.instances.eviction import Candidate, victims
from planners.model import ModelId
from planners.plan import InstanceId, Shortfall

GPU0, GPU1 = DeviceId("gpu0"), DeviceId("gpu1")


def candidate(
    name: str, *, reload_s: float = 1.0, last_used_s: float = 0.0, **frees: int
) -> Candidate:
    by_device = {DeviceId(device): n_bytes for device, n_bytes in frees.items()}
    return Candidate(InstanceId(name), by_device, reload_s, last_used_s)


def missing(**by_device: int) -> Shortfall:
    wanted = {DeviceId(device): n_bytes for device, n_bytes in by_device.items()}
    return Shortfall(ModelId("wanted"), wanted, "it does not fit")


@pytest.mark.parametrize(
    ("candidates", "shortfall", "chosen"),
    [
        pytest.param([], missing(gpu0=1), (), id="nobody to stop"),
        pytest.param([candidate("a", gpu0=9)], missing(), (), id="nothing missing"),
        pytest.param([candidate("a", gpu0=9)], missing(gpu0=10), (), id="not enough, so none"),
        pytest.param([candidate("a", gpu1=99)], missing(gpu0=1), (), id="the wrong device"),
        pytest.param(
            [candidate("slow", gpu0=10, reload_s=9), candidate("quick", gpu0=10, reload_s=1)],
            missing(gpu0=10),
            ("quick",),
            id="the one that reloads sooner",
        ),
        pytest.param(
            [
                candidate("one", gpu0=10, reload_s=2),
                candidate("half", gpu0=5, reload_s=1),
                candidate("other half", gpu0=5, reload_s=1),
            ],
            missing(gpu0=10),
            ("one",),
            id="one rather than two at the same cost",
        ),
        pytest.param(
            [candidate("recent", gpu0=10, last_used_s=50), candidate("old", gpu0=10)],
            missing(gpu0=10),
            ("old",),
            id="the one unused for longest",
        ),
        pytest.param(
            [candidate("a", gpu0=10), candidate("b", host=10), candidate("c", gpu1=10)],
            missing(gpu0=5, host=5),
            ("a", "b"),
            id="every device that lacks",
        ),
    ],
)
def test_the_cheapest_set_that_closes_the_gap(
    candidates: list[Candidate], shortfall: Shortfall, chosen: tuple[str, ...]
) -> None:
    assert victims(candidates, shortfall) == chosen


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        instance_id=st.uuids().map(lambda uuid: InstanceId(str(uuid))),
        frees=st.dictionaries(st.sampled_from([GPU0, GPU1, HOST]), st.integers(0, 100)),
        reload_s=st.floats(0, 100),
        last_used_s=st.floats(0, 100),
    ),
    max_size=7,
)
MISSING = st.dictionaries(st.sampled_from([GPU0, GPU1, HOST]), st.integers(1, 200), min_size=1)


def closes(chosen: tuple[Candidate, ...], wanted: dict[DeviceId, int]) -> bool:
    return all(sum(c.frees.get(d, 0) for c in chosen) >= n for d, n in wanted.items())


@given(candidates=CANDIDATES, wanted=MISSING)
def test_no_set_is_cheaper_than_the_one_chosen(
    candidates: list[Candidate], wanted: dict[DeviceId, int]
) -> None:
    chosen = victims(candidates, Shortfall(ModelId("m"), wanted, "why"))

    sets = chain.from_iterable(combinations(candidates, n) for n in range(len(candidates) + 1))
    costs = [sum(c.reload_s for c in each) for each in sets if closes(each, wanted)]
    stopped = tuple(c for c in candidates if c.instance_id in chosen)
    assert bool(chosen) == bool(costs)
    if chosen:
        assert closes(stopped, wanted)
        assert sum(c.reload_s for c in stopped) == pytest.approx(min(costs))


@given(sizes=st.lists(st.integers(1, 100), min_size=13, max_size=60), wanted=st.integers(1, 1000))
def test_many_candidates_still_close_the_gap_and_none_is_stopped_needlessly(
    sizes: list[int], wanted: int
) -> None:
    many = [candidate(str(i), gpu0=size, reload_s=size) for i, size in enumerate(sizes)]

    chosen = victims(many, missing(gpu0=wanted))

    freed = [sizes[int(name)] for name in chosen]
    if sum(sizes) < wanted:
        assert chosen == ()
    else:
        assert sum(freed) >= wanted
        assert sum(freed) - min(freed) < wanted


def test_twelve_candidates_are_searched_within_a_tenth_of_a_second() -> None:
    many = [candidate(str(i), gpu0=10, reload_s=i) for i in range(12)]
    start_s = time.process_time()

    victims(many, missing(gpu0=115))

    assert time.process_time() - start_s < 0.1
