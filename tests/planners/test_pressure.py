import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.hardware import HOST, DeviceId
from planners.plan import InstanceId
from planners.pressure import (
    Answer,
    Course,
    Kind,
    Level,
    MoveUp,
    Option,
    PressureRules,
    Relieve,
    Rise,
    Sample,
    decided,
    followed,
    forgotten,
    missing_bytes,
    sample_of,
)
from planners.sizes import GIB, MIB
from tests.fakes.views import hardware

CARD = DeviceId("pci:0000:01:00.0")
A, B = InstanceId("a-1"), InstanceId("b-1")
RULES = PressureRules(
    low_bytes=512 * MIB,
    high_bytes=1536 * MIB,
    dwell_s=5,
    cooldown_s=30,
    calm_s=120,
    rise_cooldown_s=600,
)


def course_of(*frees: int | None, place: DeviceId = CARD, every_s: float = 1.0) -> Course:
    """What a run of readings of one place leaves, one a second."""
    course = Course()
    for i, free in enumerate(frees):
        course = followed(course, Sample(i * every_s, {place: free}), rules=RULES)
    return course


def option(kind: Kind, instance_id: InstanceId = A, **more: object) -> Option:
    plain = Option(kind, instance_id, {CARD: 2 * GIB})
    return replace(plain, **more)


def relief(course: Course, options: Sequence[Option], *, now_s: float = 10.0) -> Relieve:
    _, answer = decided(course, options=options, rises=(), now_s=now_s, rules=RULES)
    assert isinstance(answer, Relieve)
    return answer


TIGHT = course_of(*[100 * MIB] * 8)


def test_memory_that_is_short_for_long_is_pressure_and_its_reason_has_numbers() -> None:
    answer = relief(TIGHT, [option(Kind.UNLOAD)])

    assert answer.reason == f"{CARD} is short of 1.4 GiB: unload a-1"
    assert answer.is_enough


def test_memory_that_is_short_for_a_moment_is_no_pressure() -> None:
    course = course_of(4 * GIB, 100 * MIB, 100 * MIB, 4 * GIB, 100 * MIB, 100 * MIB)

    assert (
        decided(course, options=[option(Kind.UNLOAD)], rises=(), now_s=6.0, rules=RULES)[1] is None
    )


def test_what_is_tight_is_calm_only_above_the_higher_threshold() -> None:
    between = course_of(*[100 * MIB] * 8, *[1000 * MIB] * 60)
    above = course_of(*[100 * MIB] * 8, *[1600 * MIB] * 8)

    assert between.places[CARD].level is Level.TIGHT
    assert above.places[CARD].level is Level.CALM


def test_between_the_thresholds_nothing_more_is_done() -> None:
    assert not missing_bytes(course_of(*[100 * MIB] * 8, 1000 * MIB), rules=RULES)


def test_what_cannot_be_read_is_no_pressure() -> None:
    course = course_of(*[100 * MIB] * 8, None)

    assert not missing_bytes(course, rules=RULES)
    assert not missing_bytes(course_of(*[None] * 20), rules=RULES)


@pytest.mark.parametrize(
    ("free_gib", "some", "full", "is_tight"),
    [
        (3, None, None, False),
        (3, 5.0, 1.0, False),
        (3, 15.0, 0.0, True),
        (3, 0.0, 6.0, True),
        (8, 15.0, 0.0, False),  # pages of files that come and go
        (8, 15.0, 6.0, True),
    ],
)
def test_tasks_that_wait_for_memory_are_pressure_though_it_seems_plenty(
    free_gib: int, some: float | None, full: float | None, is_tight: bool
) -> None:
    course = Course()
    for i in range(8):
        sample = Sample(float(i), {HOST: free_gib * GIB}, some, full)
        course = followed(course, sample, rules=RULES)

    assert bool(missing_bytes(course, rules=RULES)) is is_tight


def test_stalls_count_where_free_memory_is_not_told() -> None:
    course = Course()
    for i in range(8):
        course = followed(course, Sample(float(i), {HOST: None}, 50.0, None), rules=RULES)

    assert missing_bytes(course, rules=RULES) == {HOST: RULES.low_bytes}


def test_stalls_are_the_hosts_alone() -> None:
    course = Course()
    for i in range(8):
        sample = Sample(float(i), {HOST: 8 * GIB, CARD: 8 * GIB}, 50.0, 20.0)
        course = followed(course, sample, rules=RULES)

    assert set(missing_bytes(course, rules=RULES)) == {HOST}


def test_idle_prompt_caches_go_first() -> None:
    options = [option(Kind.MIGRATE), option(Kind.UNLOAD), option(Kind.DROP_CACHE, B)]

    assert [o.kind for o in relief(TIGHT, options).options] == [Kind.DROP_CACHE]


def test_where_caches_are_not_enough_they_are_spared_for_what_is() -> None:
    options = [option(Kind.DROP_CACHE, frees={CARD: 10 * MIB}), option(Kind.UNLOAD, B)]

    assert [o.instance_id for o in relief(TIGHT, options).options] == [B]


def test_of_two_moves_that_free_enough_the_one_that_costs_less_is_made() -> None:
    options = [
        option(Kind.MIGRATE, A, cost_tokens_per_s=30.0, is_idle=False),
        option(Kind.MIGRATE, B, cost_tokens_per_s=5.0, is_idle=False),
        option(Kind.MIGRATE, InstanceId("c-1"), frees={CARD: 10 * MIB}),
    ]

    assert [o.instance_id for o in relief(TIGHT, options).options] == [B]


def test_where_none_alone_is_enough_the_one_that_helps_most_comes_first() -> None:
    options = [
        option(Kind.MIGRATE, A, frees={CARD: 300 * MIB}, cost_tokens_per_s=1.0),
        option(Kind.MIGRATE, B, frees={CARD: 1300 * MIB}, cost_tokens_per_s=9.0),
        option(Kind.MIGRATE, InstanceId("c-1"), frees={CARD: 200 * MIB}),
    ]

    assert {o.instance_id for o in relief(TIGHT, options).options} == {B, "c-1"}


def test_a_smaller_context_is_the_last_thing_to_do() -> None:
    options = [option(Kind.SHRINK, A), option(Kind.MIGRATE, B, cost_tokens_per_s=50.0)]

    assert [o.kind for o in relief(TIGHT, options).options] == [Kind.MIGRATE]


def test_a_lesser_answer_does_not_replace_a_thorough_one_of_the_same_model() -> None:
    options = [
        option(Kind.UNLOAD, A, frees={CARD: GIB}),
        option(Kind.SHRINK, A, frees={CARD: 100 * MIB}),
    ]

    answer = relief(TIGHT, options)

    assert [o.kind for o in answer.options] == [Kind.UNLOAD]
    assert not answer.is_enough


@pytest.mark.parametrize("kind", [Kind.DROP_CACHE, Kind.UNLOAD, Kind.SHRINK])
def test_what_is_in_use_is_migrated_or_left_alone(kind: Kind) -> None:
    busy = option(kind, is_idle=False)

    assert decided(TIGHT, options=[busy], rises=(), now_s=10.0, rules=RULES)[1] is None


def test_what_frees_memory_elsewhere_is_no_answer() -> None:
    elsewhere = option(Kind.UNLOAD, frees={HOST: 8 * GIB})

    assert decided(TIGHT, options=[elsewhere], rises=(), now_s=10.0, rules=RULES)[1] is None


def test_after_an_answer_comes_a_rest() -> None:
    options = [option(Kind.UNLOAD)]
    course, first = decided(TIGHT, options=options, rises=(), now_s=10.0, rules=RULES)

    _, soon = decided(course, options=options, rises=(), now_s=39.0, rules=RULES)
    _, later = decided(course, options=options, rises=(), now_s=41.0, rules=RULES)

    assert first is not None
    assert soon is None
    assert later is not None


def rise(instance_id: InstanceId = A, **more: object) -> Rise:
    plain = Rise(instance_id, {CARD: GIB, HOST: -GIB}, gain_tokens_per_s=10.0, is_idle=True)
    return replace(plain, **more)


PLENTY = course_of(*[8 * GIB] * 130)


def risen(course: Course, *rises: Rise, now_s: float = 130.0) -> Answer | None:
    return decided(course, options=(), rises=rises, now_s=now_s, rules=RULES)[1]


def test_what_was_moved_down_moves_up_once_memory_has_been_back_for_long() -> None:
    answer = risen(PLENTY, rise())

    assert answer == MoveUp(A, f"8.0 GiB are free on {CARD} for 120 s: 10.0 tokens/s more")


def test_of_several_the_one_that_gains_most_moves_up() -> None:
    answer = risen(PLENTY, rise(A), rise(B, gain_tokens_per_s=20.0))

    assert isinstance(answer, MoveUp)
    assert answer.instance_id == B


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(rise(is_idle=False), id="in use"),
        pytest.param(rise(gain_tokens_per_s=0.0), id="no faster"),
        pytest.param(rise(takes={CARD: 7 * GIB}), id="it would leave too little"),
        pytest.param(rise(takes={DeviceId("other"): GIB}), id="on a device that tells nothing"),
    ],
)
def test_nothing_moves_up_that_is_or_would_not_be_right(refused: Rise) -> None:
    assert risen(PLENTY, refused) is None


def test_nothing_moves_up_before_memory_has_been_plenty_for_long() -> None:
    course = course_of(*[8 * GIB] * 60, 100 * MIB, *[8 * GIB] * 100)

    assert risen(course, rise(), now_s=161.0) is None


def test_a_model_moves_up_once_in_a_cool_down_and_two_models_not_at_once() -> None:
    course, first = decided(PLENTY, options=(), rises=[rise(A)], now_s=130.0, rules=RULES)

    assert first is not None
    assert risen(course, rise(A), now_s=700.0) is None
    assert risen(course, rise(B), now_s=131.0) is None
    assert risen(course, rise(B), now_s=161.0) is not None
    assert risen(course, rise(A), now_s=731.0) is not None


def test_instances_that_are_gone_are_forgotten() -> None:
    course, _ = decided(PLENTY, options=(), rises=[rise(A)], now_s=130.0, rules=RULES)

    assert not forgotten(course, [B]).moved_s
    assert forgotten(course, [A]).moved_s == {A: 130.0}


def test_a_sample_is_what_the_probe_read() -> None:
    sample = sample_of(hardware(available_bytes=3 * GIB), at_s=1.0, full_percent=2.0)

    assert sample == Sample(1.0, {HOST: 3 * GIB}, None, 2.0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), hours=st.floats(0.05, 1.0))
def test_random_waves_of_other_programs_cause_no_more_moves_than_the_stated_bound(
    seed: int, hours: float
) -> None:
    """Per model: one answer a cool-down, and one upward move an upward cool-down."""
    chance, total = random.Random(seed), 8 * GIB
    ours = {A: 3 * GIB, B: 2 * GIB}
    held, others = dict(ours), 0
    course, down, up = Course(), 0, dict.fromkeys(ours, 0)
    length_s = int(hours * 3600)
    for now in range(length_s):
        if chance.random() < 0.05:
            others = chance.randrange(0, total)
        free = max(0, total - others - sum(held.values()))
        course = followed(course, Sample(float(now), {CARD: free}), rules=RULES)
        options = [
            Option(Kind.MIGRATE, i, {CARD: n}, cost_tokens_per_s=5.0, is_idle=False)
            for i, n in held.items()
            if n
        ]
        rises = [Rise(i, {CARD: n}, 5.0, is_idle=True) for i, n in ours.items() if not held[i]]
        course, answer = decided(
            course, options=options, rises=rises, now_s=float(now), rules=RULES
        )
        if isinstance(answer, Relieve):
            down += 1
            held.update((o.instance_id, 0) for o in answer.options)
        elif isinstance(answer, MoveUp):
            up[answer.instance_id] += 1
            assert free - ours[answer.instance_id] > RULES.high_bytes
            held[answer.instance_id] = ours[answer.instance_id]

    assert down <= 1 + length_s / RULES.cooldown_s
    assert all(n <= 1 + length_s / RULES.rise_cooldown_s for n in up.values())
    assert down <= len(ours) + sum(up.values())


@given(st.lists(st.integers(0, 2 * GIB), min_size=1, max_size=60))
def test_a_level_lasts_for_its_dwell_time_at_least(frees: list[int]) -> None:
    course, changed_s, level = Course(), -RULES.dwell_s, Level.CALM
    for i, free in enumerate(frees):
        course = followed(course, Sample(float(i), {CARD: free}), rules=RULES)
        if (now := course.places[CARD].level) is not level:
            assert i - changed_s >= RULES.dwell_s
            level, changed_s = now, float(i)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(Kind)), st.integers(0, 3), st.integers(0, 1 << 31)),
        max_size=10,
    )
)
def test_an_answer_moves_each_model_once_and_has_nothing_needless(
    made: list[tuple[Kind, int, int]],
) -> None:
    options = [
        Option(kind, InstanceId(f"m-{i}"), {CARD: n}, cost_tokens_per_s=float(i))
        for kind, i, n in made
    ]
    _, answer = decided(TIGHT, options=options, rises=(), now_s=10.0, rules=RULES)
    (missing,) = missing_bytes(TIGHT, rules=RULES).values()
    if answer is None:
        assert not any(o.frees[CARD] for o in options)
        return
    assert isinstance(answer, Relieve)
    frees = [o.frees[CARD] for o in answer.options]
    assert len({o.instance_id for o in answer.options}) == len(frees)
    best = {o.instance_id: 0 for o in options}
    for o in options:
        best[o.instance_id] = max(best[o.instance_id], o.frees[CARD])
    assert answer.is_enough == (sum(frees) >= missing)
    assert answer.is_enough == (sum(best.values()) >= missing)
    if answer.is_enough:
        assert all(sum(frees) - n < missing for n in frees)
