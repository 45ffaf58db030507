from dataclasses import replace

from planners.hardware import HOST, DeviceId, DeviceKind
from planners.lessons import NOTHING_LEARNED, Learned
from planners.rates import BARRIERS, DECODE_SHARE, KERNELS_S, SPIN_S, rates
from tests.fakes.machines import INTEGRATED, LLVMPIPE, machine, nvidia


def test_what_was_learned_outranks_every_table() -> None:
    card = replace(nvidia(0, 24), bandwidth_bytes_per_s=1008e9)
    learned = Learned({card.device_id: 1e9}, {HOST: 2e9})

    known = rates(machine(card), n_threads=4, learned=learned)

    assert known[card.device_id].bytes_per_s == 1e9
    assert known[HOST].flops == 2e9


def test_a_data_sheet_counts_before_the_kind() -> None:
    card, other = replace(nvidia(0, 24), bandwidth_bytes_per_s=1000e9), nvidia(1, 24)

    known = rates(machine(card, other), n_threads=4, learned=NOTHING_LEARNED)

    assert known[card.device_id].bytes_per_s == DECODE_SHARE * 1000e9
    assert known[card.device_id].layer_s == KERNELS_S
    assert known[other.device_id].bytes_per_s < known[card.device_id].bytes_per_s


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
