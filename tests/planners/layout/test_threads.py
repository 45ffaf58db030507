import pytest
from msgspec.structs import replace

from planners.hardware import HardwareProfile
from planners.layout.threads import n_threads, threads_reason
from tests.fakes.machines import LLAMA_8B, host, machine

# SmolLM2 135M in Q4_1, as its header has it.
LAYER = replace(LLAMA_8B.layers[0], weight_bytes=2_216_448, k_width=192, v_width=192, q_width=576)
SMALL = replace(
    LLAMA_8B,
    layers=(LAYER,) * 30,
    n_params=134_515_008,
    input_bytes=30_081_024,
    output_bytes=30_083_328,
    tied_bytes=30_081_024,
)


def cores(n_physical: int, *, n_cores: int | None = None) -> HardwareProfile:
    """A processor of two threads a core, of which `n_cores` may be used."""
    processor = host(n_physical_cores=n_physical)
    return replace(machine(), host=replace(processor, n_cores=n_cores or processor.n_cores))


@pytest.mark.parametrize(("n_physical", "threads"), [(1, 1), (2, 2), (3, 2), (8, 7), (64, 63)])
def test_of_more_than_two_cores_one_is_left_to_others(n_physical: int, threads: int) -> None:
    assert n_threads(cores(n_physical), LLAMA_8B, n_parallel=1) == threads


def test_threads_stay_within_a_quota() -> None:
    assert n_threads(cores(64, n_cores=4), LLAMA_8B, n_parallel=1) == 3


def two_cpus(*, wake_s: float | None) -> HardwareProfile:
    """Two cores of one thread each: two threads take them all."""
    profile = cores(2, n_cores=2)
    return replace(profile, host=replace(profile.host, wake_s=wake_s))


def test_a_second_core_joins_a_small_model_once_several_slots_are_busy() -> None:
    machine_unknown = two_cpus(wake_s=None)

    assert [n_threads(machine_unknown, SMALL, n_parallel=n) for n in (1, 2, 4)] == [1, 2, 2]


def test_where_waking_the_other_core_takes_long_a_small_model_has_one_to_itself() -> None:
    assert [n_threads(two_cpus(wake_s=30e-6), SMALL, n_parallel=n) for n in (1, 2)] == [1, 1]


def test_where_one_core_multiplies_by_tiles_too_it_serves_several_slots_alone() -> None:
    slow = two_cpus(wake_s=26e-6)
    with_tiles = replace(slow, host=replace(slow.host, has_tiles=True))

    # Measured there, decode tokens/s of 1, 2 and 4 slots: 110, 122 and 190 on one thread, 37, 65
    # and 120 on two.
    assert [n_threads(with_tiles, SMALL, n_parallel=n) for n in (1, 2, 4)] == [1, 1, 1]


def test_where_waking_the_other_core_is_quick_it_joins_at_once() -> None:
    assert n_threads(two_cpus(wake_s=2e-6), SMALL, n_parallel=1) == 2


def test_a_large_model_has_both_cores_however_long_a_wake_up_takes() -> None:
    assert n_threads(two_cpus(wake_s=30e-6), LLAMA_8B, n_parallel=1) == 2


def test_threads_that_leave_a_cpu_free_need_no_waking() -> None:
    siblings = cores(2, n_cores=4)
    slow = replace(siblings, host=replace(siblings.host, wake_s=30e-6))

    assert n_threads(slow, SMALL, n_parallel=1) == 2


@pytest.mark.parametrize(
    ("profile", "count", "why"),
    [
        (cores(1), 1, "1 thread for 1 core"),
        (
            two_cpus(wake_s=27e-6),
            1,
            "1 thread for 2 cores: 2 would decode no faster; waking another core takes 27 µs here",
        ),
        (two_cpus(wake_s=None), 2, "2 threads for 2 cores: one alone would decode more slowly"),
        (
            cores(8),
            7,
            "7 threads for 8 cores: one is left to all else, for which threads on every core "
            "would wait",
        ),
    ],
)
def test_a_plan_says_why_it_has_so_many_threads(
    profile: HardwareProfile, count: int, why: str
) -> None:
    assert threads_reason(profile, count=count).text == why
