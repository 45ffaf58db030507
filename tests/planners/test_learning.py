from dataclasses import replace

import pytest

from planners.hardware import HOST, HardwareProfile
from planners.kv_cache import LaunchShape
from planners.learning import Exchange, learned_from
from planners.placement import plan_launch
from planners.plan import LaunchPlan
from planners.speed import NOTHING_LEARNED, Learned, rates, times_s
from tests.fakes.machines import CPU, CUDA, LLAMA_8B, RULES, machine, nvidia, served

CARD = nvidia(0, 24)


def plan_on(hardware: HardwareProfile, learned: Learned = NOTHING_LEARNED) -> LaunchPlan:
    plan = plan_launch(
        served(context=4096),
        hardware=hardware,
        engines=(CPU, CUDA),
        rules=RULES,
        promised={},
        learned=learned,
    )
    assert isinstance(plan, LaunchPlan)
    return plan


def after(
    exchanges: int, hardware: HardwareProfile, *, decode: float = 0.0, prompt: float = 0.0
) -> Learned:
    """What so many equal exchanges teach, at these tokens/s."""
    one = Exchange(
        prompt_tokens=960,
        prompt_s=960 / prompt if prompt else 0.0,
        decode_tokens=128,
        decode_s=128 / decode if decode else 0.0,
    )
    learned = NOTHING_LEARNED
    for _ in range(exchanges):
        learned = learned_from(
            one, learned, hardware=hardware, model=LLAMA_8B, plan=plan_on(hardware)
        )
    return learned


@pytest.mark.parametrize(
    ("hardware", "decode", "prompt"),
    [
        pytest.param(machine(), 3.5, 20.0, id="the processor"),
        pytest.param(machine(CARD), 90.0, 2000.0, id="a card"),
    ],
)
def test_the_next_plan_predicts_what_was_observed(
    hardware: HardwareProfile, decode: float, prompt: float
) -> None:
    plan = plan_on(hardware, after(1, hardware, decode=decode, prompt=prompt))

    assert plan.predicted_decode_tokens_per_s == pytest.approx(decode, rel=0.02)
    assert plan.predicted_prompt_tokens_per_s == pytest.approx(prompt, rel=0.02)


def test_one_odd_request_moves_a_rate_only_so_far() -> None:
    learned = after(5, machine(), decode=4.0)
    slow = Exchange(prompt_tokens=10, prompt_s=0.1, decode_tokens=128, decode_s=128 / 2.0)

    moved = learned_from(slow, learned, hardware=machine(), model=LLAMA_8B, plan=plan_on(machine()))

    assert 0.6 < moved.bytes_per_s[HOST] / learned.bytes_per_s[HOST] < 0.9


@pytest.mark.parametrize(
    "exchange",
    [
        pytest.param(Exchange(10, 0.1, 3, 1.0), id="too few tokens"),
        pytest.param(Exchange(10, 0.1, 128, 128 / 0.01), id="slower than any explanation"),
        pytest.param(Exchange(10, 0.1, 128, 128 / 1e6), id="faster than any"),
        pytest.param(Exchange(0, 0.0, 0, 0.0), id="nothing at all"),
    ],
)
def test_what_tells_nothing_teaches_nothing(exchange: Exchange) -> None:
    learned = learned_from(
        exchange, NOTHING_LEARNED, hardware=machine(), model=LLAMA_8B, plan=plan_on(machine())
    )

    assert learned == NOTHING_LEARNED


def test_a_launch_on_several_devices_teaches_nothing() -> None:
    hardware = machine(nvidia(0, 4))
    whole = plan_on(machine(CARD))

    assert after(1, hardware, decode=10.0) == NOTHING_LEARNED
    lean = replace(whole, n_cpu_moe=3)
    one = Exchange(10, 0.1, 128, 2.0)
    assert (
        learned_from(one, NOTHING_LEARNED, hardware=machine(CARD), model=LLAMA_8B, plan=lean)
        == NOTHING_LEARNED
    )


def test_a_short_prompt_on_a_card_pays_for_its_launches_alone_and_teaches_the_same_rate() -> None:
    hardware, model = machine(CARD), LLAMA_8B
    known = rates(hardware, n_threads=plan_on(hardware).n_threads)
    whole = ((CARD.device_id, 33),)

    def taught(prompt_tokens: int) -> float:
        shape = LaunchShape(4096, 1, 512, min(512, prompt_tokens), split=whole)
        token_s, _ = times_s(model, shape, rates=known, used_tokens=prompt_tokens)
        seen = Exchange(prompt_tokens, prompt_tokens * token_s, 0, 0.0)
        learned = learned_from(
            seen, NOTHING_LEARNED, hardware=hardware, model=model, plan=plan_on(hardware)
        )
        return learned.flops[CARD.device_id]

    usual = known[CARD.device_id].flops
    assert taught(96) == pytest.approx(usual, rel=0.02)
    assert taught(1500) == pytest.approx(usual, rel=0.02)


def test_a_prompt_faster_than_its_launches_alone_teaches_nothing() -> None:
    hardware = machine(CARD)
    impossible = Exchange(prompt_tokens=512, prompt_s=1e-6, decode_tokens=0, decode_s=0.0)

    learned = learned_from(
        impossible, NOTHING_LEARNED, hardware=hardware, model=LLAMA_8B, plan=plan_on(hardware)
    )

    assert learned.flops == {}
