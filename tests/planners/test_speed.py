import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.lessons.rates import UBATCH_KERNELS_S, Rate, Rates, rates
from planners.lessons.samples import Learned
from planners.model import LayerKind
from planners.sizes import MIB
from planners.speed import Speed, format_rate, speed
from tests.fakes.machines import LLAMA_8B, machine, model_info, nvidia

GPU, OTHER = DeviceId("gpu"), DeviceId("other")
RATES: Rates = {
    HOST: Rate(20e9, 0.2e12),
    GPU: Rate(500e9, 50e12, hop_s=50e-6),
    OTHER: Rate(250e9, 25e12, hop_s=50e-6),
}
MOE = model_info(layer_bytes=400 * MIB, expert_bytes=360 * MIB)


def shape(*split: tuple[DeviceId, int], n_parallel: int = 1, n_cpu_moe: int = 0) -> LaunchShape:
    return LaunchShape(4096 * n_parallel, n_parallel, 512, 512, split=split, n_cpu_moe=n_cpu_moe)


def of(asked: LaunchShape) -> Speed:
    return speed(LLAMA_8B, asked, rates=RATES)


def test_a_decode_reads_every_weight_but_the_input_once() -> None:
    n_bytes = 32 * (112 * MIB + 1024 * 2 * 1024 * 2) + 411 * MIB

    decode = speed(LLAMA_8B, shape(), rates=RATES).decode_tokens_per_s

    assert decode == pytest.approx(20e9 / n_bytes, rel=0.01)


def test_an_8b_model_decodes_on_a_card_of_1_tb_a_second_as_people_measure_it() -> None:
    card = replace(nvidia(0, 24), bandwidth_bytes_per_s=1008e9, compute_flops=82e12)
    known = rates(machine(card), n_threads=8)

    found = speed(LLAMA_8B, shape((card.device_id, 33)), rates=known)

    assert 90 < found.decode_tokens_per_s < 150  # RTX 4090, Q4_K_M
    assert 2000 < found.prompt_tokens_per_s < 10_000


# llama.cpp pull request 20586: an RTX 4090, "llama 1B Q4_0", tokens/s of a
# prompt by ubatch. The model's shape here is TinyLlama's, its bytes by hand.
RECORDED_1B_ON_AN_RTX_4090 = {32: 11901.0, 64: 18555.0, 128: 26501.0, 256: 43138.0, 512: 49417.0}
ARITHMETIC_OF_AN_RTX_4090 = 150e12  # what its matrix units brought there, learned


@pytest.mark.parametrize(("n_ubatch", "recorded"), RECORDED_1B_ON_AN_RTX_4090.items())
def test_a_small_models_prompts_are_bound_by_launches_as_recorded(
    n_ubatch: int, recorded: float
) -> None:
    card = replace(nvidia(0, 24), bandwidth_bytes_per_s=1008e9, compute_flops=82e12)
    learned = Learned({card.device_id: 900e9}, {card.device_id: ARITHMETIC_OF_AN_RTX_4090})
    wide = model_info(n_layer=22, layer_bytes=24 * MIB)
    model = replace(
        wide, n_params=1_100_048_384, n_embd=2048, input_bytes=36 * MIB, output_bytes=53 * MIB
    )
    asked = replace(shape((card.device_id, 23)), n_ubatch=n_ubatch)

    found = speed(model, asked, rates=rates(machine(card), n_threads=8, learned=learned))

    assert found.prompt_tokens_per_s == pytest.approx(recorded, rel=0.2)


def test_no_model_is_so_small_that_its_prompts_cost_nothing() -> None:
    card = replace(nvidia(0, 24), bandwidth_bytes_per_s=1008e9, compute_flops=82e12)
    tiny = replace(model_info(n_layer=30, layer_bytes=1), n_params=30, output_bytes=0)

    found = speed(tiny, shape((card.device_id, 31)), rates=rates(machine(card), n_threads=8))

    assert found.prompt_tokens_per_s < 512 / (30 * UBATCH_KERNELS_S)


def test_a_prompt_goes_to_another_machine_no_faster_than_the_wire() -> None:
    wire = Rate(500e9, 50e12, hop_s=1e-3, link_bytes_per_s=117e6)

    told = speed(LLAMA_8B, shape((GPU, 33)), rates={**RATES, GPU: wire})

    assert told.prompt_tokens_per_s < 117e6 / (4 * LLAMA_8B.n_embd)


def test_a_prompt_is_read_no_slower_than_it_could_be_decoded() -> None:
    weak: Rates = {HOST: Rate(40e9, 10e9)}

    told = speed(LLAMA_8B, shape(), rates=weak)

    assert told.prompt_tokens_per_s == told.decode_tokens_per_s


def test_time_adds_up_over_devices_that_work_in_turn() -> None:
    whole = of(shape((GPU, 33))).decode_tokens_per_s
    slow = of(shape((OTHER, 33))).decode_tokens_per_s
    both = of(shape((OTHER, 16), (GPU, 17))).decode_tokens_per_s

    assert slow < both < whole


def test_a_hop_more_costs_time() -> None:
    twin = {**RATES, OTHER: RATES[GPU]}
    one = speed(LLAMA_8B, shape((GPU, 33)), rates=twin).decode_tokens_per_s
    two = speed(LLAMA_8B, shape((OTHER, 16), (GPU, 17)), rates=twin).decode_tokens_per_s

    assert 1 / two - 1 / one == pytest.approx(50e-6, rel=0.1)


def test_slots_share_the_weights_but_not_the_caches() -> None:
    one, four = (of(shape((GPU, 33), n_parallel=n)).decode_tokens_per_s for n in (1, 4))

    assert 3 * one < four < 4 * one


def test_on_a_processor_several_slots_bring_little() -> None:
    one, four = (of(shape(n_parallel=n)).decode_tokens_per_s for n in (1, 4))

    assert one < four < 3 * one


def test_of_experts_only_those_that_are_used_are_read() -> None:
    sparse = speed(MOE, shape(), rates=RATES).decode_tokens_per_s
    dense = speed(model_info(layer_bytes=400 * MIB), shape(), rates=RATES).decode_tokens_per_s

    assert sparse > 3 * dense


def test_experts_on_the_host_cost_their_share_of_the_hosts_time() -> None:
    whole = speed(MOE, shape((GPU, 33)), rates=RATES).decode_tokens_per_s
    lean = speed(MOE, shape((GPU, 33), n_cpu_moe=32), rates=RATES).decode_tokens_per_s
    none = speed(MOE, shape(), rates=RATES).decode_tokens_per_s

    assert none < lean < whole
    assert 1 / lean > 32 * 360 * MIB * 4 / 32 / 20e9  # four of 32 experts a token, from the host


def test_a_window_bounds_what_a_layer_reads() -> None:
    full, windowed = (model_info(kinds=(kind,)) for kind in (LayerKind.FULL, LayerKind.SWA))
    deep = replace(shape(), n_ctx=32768)

    one = speed(full, deep, rates=RATES, used_tokens=16384).decode_tokens_per_s
    other = speed(windowed, deep, rates=RATES, used_tokens=16384).decode_tokens_per_s

    assert other > 1.2 * one


def test_prompts_of_a_host_with_a_card_are_computed_by_loan() -> None:
    alone = of(shape()).prompt_tokens_per_s
    lent = of(shape((GPU, 1))).prompt_tokens_per_s

    assert lent > 2 * alone


@settings(max_examples=100, deadline=None)
@given(layers=st.integers(0, 33), n_parallel=st.integers(1, 8), factor=st.floats(1, 10))
def test_a_faster_device_never_makes_a_launch_slower(
    layers: int, n_parallel: int, factor: float
) -> None:
    asked = shape(*([(GPU, layers)] if layers else []), n_parallel=n_parallel)
    faster = replace(RATES[GPU], bytes_per_s=500e9 * factor, flops=50e12 * factor)

    before = speed(LLAMA_8B, asked, rates=RATES)
    after = speed(LLAMA_8B, asked, rates={**RATES, GPU: faster})

    assert after.decode_tokens_per_s >= before.decode_tokens_per_s
    assert after.prompt_tokens_per_s >= before.prompt_tokens_per_s


@pytest.mark.parametrize(
    ("tokens_per_s", "told"), [(9.907, "9.91"), (97.04, "97"), (1124.56, "1125"), (0.51, "0.51")]
)
def test_a_rate_is_told_in_digits_that_people_read(tokens_per_s: float, told: str) -> None:
    assert format_rate(tokens_per_s) == told
