import pytest
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, HardwareProfile
from planners.lessons.learning import (
    LEAST_SAMPLES,
    MOST_FACTOR,
    MOST_OVERHEAD_BYTES,
    corrected,
    learned_from,
    learned_reasons,
    overheads,
    rate_sample,
)
from planners.lessons.rates import rates
from planners.lessons.samples import (
    NOTHING_LEARNED,
    LaunchSample,
    Learned,
    Lesson,
    RateSample,
    key_of,
)
from planners.lessons.usage import Usage
from planners.model import ModelId
from planners.placement import plan_launch
from planners.plan import DeviceBytes, LaunchPlan, Shortfall
from planners.sizes import GIB, MIB
from planners.speed import times_s
from tests.fakes.machines import CPU, CUDA, LLAMA_8B, RULES, machine, nvidia, served

CARD = nvidia(0, 24)


def plan_on(hardware: HardwareProfile, learned: Learned = NOTHING_LEARNED) -> LaunchPlan:
    plan = plan_launch(
        served(context=4096, parallel=1),
        hardware=hardware,
        engines=(CPU, CUDA),
        rules=RULES,
        promised={},
        learned=learned,
    )
    assert isinstance(plan, LaunchPlan)
    return plan


def sample(
    hardware: HardwareProfile, *, decode: float = 0.0, prompt: float = 0.0
) -> RateSample | None:
    """What one usage at these tokens/s shows."""
    usage = Usage(
        prompt_tokens=960,
        prompt_s=960 / prompt if prompt else 0.0,
        decode_tokens=128,
        decode_s=128 / decode if decode else 0.0,
    )
    return rate_sample(usage, at=1.0, hardware=hardware, model=LLAMA_8B, plan=plan_on(hardware))


def after(
    exchanges: int, hardware: HardwareProfile, *, decode: float = 0.0, prompt: float = 0.0
) -> Learned:
    """What so many equal exchanges teach, at these tokens/s."""
    one = sample(hardware, decode=decode, prompt=prompt)
    return learned_from((), () if one is None else [one] * exchanges)


def launched(
    plan: LaunchPlan, *, measured: tuple[DeviceBytes, ...], load_s: float = 2.0
) -> LaunchSample:
    return LaunchSample(
        "1", 1.0, plan.model_id, key_of(plan), plan.context, "ready", plan.predicted, measured,
        load_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("hardware", "decode", "prompt"),
    [
        pytest.param(machine(), 4.0, 20.0, id="the processor"),
        pytest.param(machine(CARD), 90.0, 2000.0, id="a card"),
    ],
)
def test_the_next_plan_predicts_what_was_observed(
    hardware: HardwareProfile, decode: float, prompt: float
) -> None:
    plan = plan_on(hardware, after(LEAST_SAMPLES, hardware, decode=decode, prompt=prompt))

    assert plan.predicted_decode_tokens_per_s == pytest.approx(decode, rel=0.02)
    assert plan.predicted_prompt_tokens_per_s == pytest.approx(prompt, rel=0.02)
    assert any(f"over {LEAST_SAMPLES} requests" in reason for reason in learned_reasons(plan))


def test_few_requests_teach_nothing_yet() -> None:
    few = after(LEAST_SAMPLES - 1, machine(), decode=4.0)

    assert (few.bytes_per_s, plan_on(machine(), few)) == ({}, plan_on(machine()))


def test_one_odd_request_among_many_moves_nothing() -> None:
    usual, odd = sample(machine(), decode=4.0), sample(machine(), decode=2.0)
    assert usual is not None
    assert odd is not None

    learned = learned_from((), [usual, usual, odd, usual, usual])

    assert learned.bytes_per_s[HOST] == usual.bytes_per_s
    assert learned.lessons[usual.key].decode_tokens_per_s == usual.decode_tokens_per_s


def test_a_rate_is_corrected_within_bounds() -> None:
    usual = rates(machine(), n_threads=plan_on(machine()).n_threads)[HOST].bytes_per_s
    tokens_per_s = plan_on(machine()).predicted_decode_tokens_per_s
    assert tokens_per_s is not None

    learned = after(LEAST_SAMPLES, machine(), decode=tokens_per_s / 5)

    assert learned.bytes_per_s[HOST] == pytest.approx(usual / MOST_FACTOR)


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(Usage(10, 0.1, 3, 1.0), id="too few tokens"),
        pytest.param(Usage(10, 0.1, 128, 128 / 0.01), id="slower than any explanation"),
        pytest.param(Usage(10, 0.1, 128, 128 / 1e6), id="faster than any"),
        pytest.param(Usage(0, 0.0, 0, 0.0), id="nothing at all"),
    ],
)
def test_what_tells_nothing_is_no_sample(usage: Usage) -> None:
    plan = plan_on(machine())

    assert rate_sample(usage, at=1.0, hardware=machine(), model=LLAMA_8B, plan=plan) is None


def test_a_launch_on_several_devices_teaches_of_no_device_but_of_its_like() -> None:
    lean = replace(plan_on(machine(CARD)), n_cpu_moe=3)
    one = Usage(10, 0.1, 128, 2.0)

    told = rate_sample(one, at=1.0, hardware=machine(CARD), model=LLAMA_8B, plan=lean)

    assert told is not None
    learned = learned_from((), [told] * LEAST_SAMPLES)
    assert learned.bytes_per_s == {}
    assert learned.lessons[key_of(lean)].decode_tokens_per_s == 64.0


def test_the_same_launch_again_is_planned_with_the_bytes_that_it_took() -> None:
    plan = plan_on(machine(CARD))
    took = tuple(replace(p, compute_bytes=p.compute_bytes + 100 * MIB) for p in plan.predicted)

    again = plan_on(machine(CARD), learned_from([launched(plan, measured=took)], ()))

    assert [p.compute_bytes for p in again.predicted] == [p.compute_bytes for p in took]
    assert key_of(again) == key_of(plan)
    assert any("over 1 launch:" in reason for reason in learned_reasons(again))


def test_another_context_is_another_launch() -> None:
    plan = plan_on(machine(CARD))
    took = tuple(replace(p, compute_bytes=p.compute_bytes + 100 * MIB) for p in plan.predicted)
    learned = learned_from([launched(plan, measured=took)], ())

    def planned(known: Learned) -> LaunchPlan | Shortfall:
        return plan_launch(
            served(context=8192, parallel=1), hardware=machine(CARD), engines=(CPU, CUDA),
            rules=RULES, promised={}, learned=known,
        )  # fmt: skip

    assert planned(learned) == planned(NOTHING_LEARNED)


def test_a_launch_that_took_more_than_there_is_gives_way_to_another() -> None:
    tight = machine(replace(CARD, free_bytes=CARD.free_bytes))
    plan = plan_on(tight)
    took = tuple(replace(p, compute_bytes=30 * GIB) for p in plan.predicted)

    again = plan_on(tight, learned_from([launched(plan, measured=took)], ()))

    assert key_of(again) != key_of(plan)


PART = DeviceBytes(CARD.device_id, 1000, 200, 50, overhead_bytes=7, margin_bytes=5)
ON_HOST = DeviceBytes(HOST, 1000, 200, 50)


@pytest.mark.parametrize(
    ("part", "told", "has_companions", "expected"),
    [
        pytest.param(PART, replace(PART, compute_bytes=20), False, (1000, 200, 20), id="compute"),
        pytest.param(PART, replace(PART, compute_bytes=20), True, (1000, 200, 50), id="projector"),
        pytest.param(PART, replace(PART, weights_bytes=1100), False, (1100, 200, 50), id="upwards"),
        pytest.param(PART, replace(PART, weights_bytes=9999), False, (1250, 200, 50), id="bounds"),
        pytest.param(PART, replace(PART, weights_bytes=1), False, (1000, 200, 50), id="never down"),
        pytest.param(
            ON_HOST, replace(ON_HOST, weights_bytes=1200), False, (1000, 200, 50), id="mapped"
        ),
    ],
)  # fmt: skip
def test_measured_bytes_correct_predicted_ones(
    part: DeviceBytes, told: DeviceBytes, has_companions: bool, expected: tuple[int, int, int]
) -> None:
    (now,) = corrected((part,), Lesson(1, (told,)), has_companions=has_companions)

    assert (now.weights_bytes, now.kv_bytes, now.compute_bytes) == expected
    assert (now.overhead_bytes, now.margin_bytes) == (part.overhead_bytes, part.margin_bytes)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        pytest.param(50 * MIB, 100 * MIB, id="less changes nothing"),
        pytest.param(300 * MIB, 300 * MIB, id="more counts"),
        pytest.param(9 * GIB, 100 * MIB + MOST_OVERHEAD_BYTES, id="within bounds"),
    ],
)
def test_a_measured_overhead_only_ever_adds(measured: int, expected: int) -> None:
    plan = plan_on(machine())
    took = (DeviceBytes(HOST, 1, 1, 1, overhead_bytes=measured),)
    learned = learned_from([launched(plan, measured=took)] * LEAST_SAMPLES, ())

    told = overheads({HOST: 100 * MIB}, learned, engine_id=plan.engine_id)

    assert told == {HOST: expected}
    assert overheads({HOST: 7}, learned, engine_id="another") == {HOST: 7}


def test_a_load_takes_as_long_as_the_median_one() -> None:
    plan = plan_on(machine())
    took = (DeviceBytes(HOST, 1, 1, 1),)
    loads = [launched(plan, measured=took, load_s=load_s) for load_s in (1.0, 9.0, 2.0)]

    lesson = learned_from(loads, ()).lessons[key_of(plan)]

    assert (lesson.launches, lesson.load_s) == (3, 2.0)


def test_the_name_of_a_model_is_no_part_of_its_key() -> None:
    plan = plan_on(machine())

    assert key_of(replace(plan, model_id=ModelId("other"), cache_ram_mib=1)) == key_of(plan)


def test_a_short_prompt_on_a_card_pays_for_its_launches_alone_and_teaches_the_same_rate() -> None:
    hardware, model = machine(CARD), LLAMA_8B
    known = rates(hardware, n_threads=plan_on(hardware).n_threads)
    whole = ((CARD.device_id, 33),)

    def taught(prompt_tokens: int) -> float:
        shape = LaunchShape(4096, 1, 512, min(512, prompt_tokens), split=whole)
        token_s, _ = times_s(model, shape, rates=known, used_tokens=prompt_tokens)
        seen = Usage(prompt_tokens, prompt_tokens * token_s, 0, 0.0)
        sample = rate_sample(seen, at=1.0, hardware=hardware, model=model, plan=plan_on(hardware))
        assert sample is not None
        assert sample.flops is not None
        return sample.flops

    usual = known[CARD.device_id].flops
    assert taught(96) == pytest.approx(usual, rel=0.02)
    assert taught(1500) == pytest.approx(usual, rel=0.02)


def test_a_prompt_faster_than_its_launches_alone_teaches_nothing() -> None:
    hardware = machine(CARD)
    impossible = Usage(prompt_tokens=512, prompt_s=1e-6, decode_tokens=0, decode_s=0.0)

    told = rate_sample(
        impossible, at=1.0, hardware=hardware, model=LLAMA_8B, plan=plan_on(hardware)
    )

    assert told is None
