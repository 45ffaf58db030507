from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId, DeviceKind
from planners.lessons.rates import (
    BARRIERS,
    DECODE_SHARE,
    FLOPS_PER_BYTE,
    KERNELS_S,
    NVIDIA_DECODE_SHARE,
    PROMPT_SHARE,
    SPIN_S,
    TENSOR_SHARE,
    rates,
)
from planners.lessons.samples import NOTHING_LEARNED, Learned
from planners.sizes import MIB
from planners.speed import speed
from tests.fakes.machines import INTEGRATED, LLVMPIPE, machine, model_info, nvidia


def test_what_was_learned_outranks_every_table() -> None:
    card = replace(nvidia(0, 24), bandwidth_bytes_per_s=1008e9)
    learned = Learned({card.device_id: 1e9}, {HOST: 2e9})

    known = rates(machine(card), n_threads=4, learned=learned)

    assert known[card.device_id].bytes_per_s == 1e9
    assert known[HOST].flops == 2e9


def test_a_data_sheet_counts_before_the_kind() -> None:
    card, other = replace(nvidia(0, 24), bandwidth_bytes_per_s=1000e9), nvidia(1, 24)

    known = rates(machine(card, other), n_threads=4, learned=NOTHING_LEARNED)

    assert known[card.device_id].bytes_per_s == NVIDIA_DECODE_SHARE * 1000e9
    assert known[card.device_id].layer_s == KERNELS_S
    assert known[other.device_id].bytes_per_s < known[card.device_id].bytes_per_s


def test_nvidias_cards_compute_by_their_tensor_cores_where_they_have_any() -> None:
    new, old = (
        replace(nvidia(i, 24), name=name, compute_flops=10e12)
        for i, name in enumerate(("NVIDIA GeForce RTX 3090", "Tesla P40"))
    )

    known = rates(machine(new, old), n_threads=4)

    assert known[new.device_id].flops == TENSOR_SHARE * 10e12
    assert known[old.device_id].flops == PROMPT_SHARE * 10e12


def test_other_gpus_compute_by_their_memory() -> None:
    def flops(kind: DeviceKind, name: str) -> float:
        gpu = replace(INTEGRATED, kind=kind, name=name, bandwidth_bytes_per_s=100e9)
        return rates(machine(gpu), n_threads=4)[gpu.device_id].flops

    mac, card = flops(DeviceKind.INTEGRATED, "Apple M2"), flops(DeviceKind.DISCRETE, "a card")

    assert mac == FLOPS_PER_BYTE[DeviceKind.INTEGRATED] * 100e9
    assert card == FLOPS_PER_BYTE[DeviceKind.DISCRETE] * 100e9
    assert flops(DeviceKind.INTEGRATED, "AMD Radeon 8060S Graphics") == card


def test_an_8b_model_is_predicted_as_fast_as_others_measured_it() -> None:
    """Prompt and decode tokens/s in 4 bits, within a half more or a third less: see rates.py."""
    measured = {
        "NVIDIA GeForce RTX 4090": (1008e9, 101.7e12, 10119.0, 150.0),
        "NVIDIA GeForce RTX 3090": (936e9, 44e12, 4279.0, 157.0),
        "Apple M1 Max": (400e9, None, 500.0, 46.2),
        "AMD Radeon RX 7900 XTX": (960e9, None, 3189.0, 106.0),
    }
    info = model_info(n_layer=32, layer_bytes=125 * MIB)
    for name, (bandwidth, flops, prompt, decode) in measured.items():
        kind = DeviceKind.INTEGRATED if "Apple" in name else DeviceKind.DISCRETE
        gpu = replace(
            nvidia(0, 24), name=name, kind=kind, bandwidth_bytes_per_s=bandwidth,
            compute_flops=flops, engine_names=(("vulkan", "Vulkan0"),),
        )  # fmt: skip
        shape = LaunchShape(
            n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512, split=((gpu.device_id, 33),)
        )

        told = speed(info, shape, rates=rates(machine(gpu), n_threads=4))

        assert 0.67 < told.prompt_tokens_per_s / prompt < 1.5, (name, told)
        assert 0.67 < told.decode_tokens_per_s / decode < 1.5, (name, told)


def test_short_batches_of_a_small_model_are_predicted_as_slow_as_others_measured_them() -> None:
    """Prompts of Llama 3.2 1B in 4 bits on an RTX 4090, within a fifth: see rates.py."""
    card = replace(
        nvidia(0, 24), name="NVIDIA GeForce RTX 4090", bandwidth_bytes_per_s=1008e9,
        compute_flops=101.7e12,
    )  # fmt: skip
    info = replace(
        model_info(n_layer=16, layer_bytes=33 * MIB),
        n_params=1_235_814_400, n_embd=2048, input_bytes=0, output_bytes=141 * MIB,
    )  # fmt: skip
    known = rates(machine(card), n_threads=4)

    for n_ubatch, measured in ((32, 11_900), (128, 26_500), (512, 49_400)):
        shape = LaunchShape(4096, 1, n_ubatch, n_ubatch, split=((card.device_id, 17),))
        told = speed(info, shape, rates=known).prompt_tokens_per_s
        assert 0.8 < told / measured < 1.2, (n_ubatch, told)


def test_an_integrated_gpu_reads_as_fast_as_its_host_and_computes_faster() -> None:
    known = rates(machine(INTEGRATED, LLVMPIPE), n_threads=8)

    assert known[INTEGRATED.device_id].bytes_per_s == known[HOST].bytes_per_s
    assert known[INTEGRATED.device_id].flops > known[HOST].flops
    assert known[LLVMPIPE.device_id].bytes_per_s < known[HOST].bytes_per_s


def test_a_host_by_its_data_sheet() -> None:
    profile = machine()
    sheet = replace(profile.host, bandwidth_bytes_per_s=400e9)

    known = rates(replace(profile, host=sheet), n_threads=64)

    assert known[HOST].bytes_per_s == DECODE_SHARE * 400e9


def test_another_machine_is_a_longer_way() -> None:
    near, far = (
        replace(nvidia(0, 24), device_id=DeviceId(f"rpc:{at}:50052"), kind=DeviceKind.REMOTE)
        for at in ("127.0.0.1", "10.0.0.2")
    )

    known = rates(machine(near, far), n_threads=4)

    assert known[near.device_id].hop_s < known[far.device_id].hop_s
    assert known[near.device_id].flops == known[HOST].flops  # the very processor
    assert known[far.device_id].link_bytes_per_s < 1e9


def test_threads_on_all_cpus_sleep_at_barriers_and_on_fewer_they_spin() -> None:
    profile = machine()
    slow = replace(profile, host=replace(profile.host, n_cores=4, wake_s=30e-6))

    layer_s = {n: rates(slow, n_threads=n)[HOST].layer_s for n in (1, 2, 3, 4)}

    assert layer_s == {
        1: 0.0, 2: BARRIERS * SPIN_S, 3: BARRIERS * SPIN_S, 4: BARRIERS * 30e-6,
    }  # fmt: skip
    assert rates(slow, n_threads=4)[HOST].ubatch_layer_s == layer_s[4]
