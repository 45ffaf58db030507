import time

from msgspec.structs import replace

from planners.ggml.layers import MAX_LAYERS
from planners.hardware import Device, DeviceId, DeviceKind, HardwareProfile, Host
from planners.layout.outlook import MOST_TRIED, Outlook, Surroundings, outlook
from planners.lessons.samples import Learned
from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan, Shortfall
from planners.sizes import GIB, MIB
from tests.fakes.instances import observed
from tests.fakes.machines import (
    CUDA,
    INTEGRATED,
    RULES,
    VULKAN,
    machine,
    model_info,
    nvidia,
    served,
)

AROUND = Surroundings(engines=(CUDA, VULKAN), rules=RULES, promised={}, held={})


def looked(*devices: Device, host_gib: float = 24.0, context: int | None = None) -> Outlook:
    hardware = machine(*devices, host_gib=host_gib)
    return outlook(served(context=context), hardware, AROUND)


def test_a_plan_comes_with_its_engine_and_its_machine() -> None:
    found = looked(nvidia(0, 24.0))

    assert isinstance(found.answer, LaunchPlan)
    assert found.engine == CUDA
    assert found.hardware == machine(nvidia(0, 24.0))


def test_an_idle_model_is_stopped_for_a_plan_as_it_would_be_for_a_launch() -> None:
    other = replace(served(), model_id=ModelId("other"))
    plan = outlook(other, machine(nvidia(0, 10.0)), AROUND).answer
    assert isinstance(plan, LaunchPlan)
    idle = replace(observed(plan), instance_id=InstanceId("i-other"), idle_since_s=1.0)
    crowded = machine(nvidia(0, 10.0, free_gib=1.0))
    around = AROUND.beside((idle,), crowded)

    kept = outlook(served(), crowded, around)
    made = outlook(served(), crowded, replace(around, idle=frozenset({idle.instance_id})))

    assert isinstance(kept.answer, LaunchPlan)
    assert isinstance(made.answer, LaunchPlan)
    assert (kept.stops, kept.answer.n_gpu_layers < 33) == ((), True)
    assert (made.stops, made.answer.n_gpu_layers) == ((idle.model_id,), 33)


def test_an_idle_model_that_is_in_nobodys_way_stays() -> None:
    plan = outlook(served(), machine(nvidia(0, 10.0)), AROUND).answer
    assert isinstance(plan, LaunchPlan)
    idle = replace(observed(plan), instance_id=InstanceId("i-other"), idle_since_s=1.0)
    roomy = machine(nvidia(0, 48.0, free_gib=40.0))
    around = replace(AROUND.beside((idle,), roomy), idle=frozenset({idle.instance_id}))

    assert outlook(served(), roomy, around).stops == ()


def test_one_more_gib_on_a_card_that_is_too_small_brings_layers() -> None:
    found = looked(nvidia(0, 3.0), context=4096)

    assert isinstance(found.answer, LaunchPlan)
    n_layers = found.answer.n_gpu_layers
    (sentence,) = found.one_more_gib
    assert sentence.startswith("1 GiB more on card 0 of 3 GiB: ")
    assert f"rather than {n_layers} layers on devices" in sentence


def test_what_was_learned_of_a_card_counts_in_the_outlook_too() -> None:
    card = nvidia(0, 24.0)
    slow = Learned({card.device_id: 5e9}, {card.device_id: 1e12})

    usual = looked(card).answer
    taught = outlook(served(), machine(card), replace(AROUND, learned=slow)).answer

    assert isinstance(usual, LaunchPlan)
    assert isinstance(taught, LaunchPlan)
    assert usual.devices
    assert taught.predicted_decode_tokens_per_s != usual.predicted_decode_tokens_per_s


def test_where_nothing_would_be_better_nothing_is_said() -> None:
    assert looked(nvidia(0, 80.0), host_gib=500.0, context=4096).one_more_gib == ()


def test_a_model_that_just_does_not_fit_is_told_where_a_gib_would_help() -> None:
    found = looked(host_gib=4.5, context=4096)

    assert isinstance(found.answer, Shortfall)
    assert found.engine is None
    assert found.one_more_gib == ("1 GiB more on host: it would fit, with context 4096 × 1",)


def test_a_pool_that_host_and_gpu_share_is_asked_about_once() -> None:
    small = replace(INTEGRATED, total_bytes=4 * GIB, free_bytes=4 * GIB)

    sentences = looked(small, host_gib=5.0, context=4096).one_more_gib

    assert [each.partition(":")[0] for each in sentences] == ["1 GiB more on host"]


def test_a_device_that_is_refused_is_not_asked_about() -> None:
    refused = replace(nvidia(0, 3.0), use=False)

    assert looked(refused, context=4096).one_more_gib == ()


def test_limits_grow_with_what_they_limit() -> None:
    host = Host(8 * GIB, 4 * GIB + GIB // 2, 8 * GIB, 8, 8, "x", limit_bytes=4 * GIB + GIB // 2)
    limited = HardwareProfile(host, ())

    found = outlook(served(context=4096), limited, AROUND)

    assert isinstance(found.answer, Shortfall)
    assert found.one_more_gib == (
        "1 GiB more on host and in its limit: it would fit, with context 4096 × 1",
    )


def test_more_host_memory_promises_nothing_that_the_limit_of_a_server_here_forbids() -> None:
    server = Device(
        DeviceId("rpc:127.0.0.1:50052"), DeviceKind.REMOTE, "RPC server 127.0.0.1:50052",
        (("cuda", "RPC0"),), 24 * GIB, 24 * GIB,
    )  # fmt: skip

    free, limited = (looked(d, context=4096) for d in (server, replace(server, limit_bytes=GIB)))

    assert isinstance(free.answer, LaunchPlan)
    assert isinstance(limited.answer, LaunchPlan)
    assert 0 < limited.answer.n_gpu_layers < free.answer.n_gpu_layers
    assert not any("layers on devices" in each for each in limited.one_more_gib)


def test_a_server_on_this_very_machine_has_no_memory_of_its_own_to_grow() -> None:
    server = Device(
        DeviceId("rpc:127.0.0.1:50052"), DeviceKind.REMOTE, "RPC server 127.0.0.1:50052",
        (("cuda", "RPC0"),), 3 * GIB, 3 * GIB,
    )  # fmt: skip

    sentences = looked(server, host_gib=5.0, context=4096).one_more_gib

    assert server.shares_host
    assert [each.partition(":")[0] for each in sentences] == ["1 GiB more on host"]


def test_of_cards_that_are_alike_one_is_asked_about() -> None:
    found = looked(nvidia(0, 2.0), nvidia(1, 2.0), context=4096)

    (sentence,) = found.one_more_gib
    assert sentence.startswith("1 GiB more on card 0 of 2 GiB or one of 1 like it: ")


def test_of_many_cards_the_largest_are_asked_about() -> None:
    cards = [nvidia(i, 1 + i / 16) for i in range(MOST_TRIED + 2)]
    around = replace(AROUND, engines=(CUDA,))

    found = outlook(served(context=4096), machine(*cards), around)

    asked = [sentence.split(": ")[0] for sentence in found.one_more_gib]
    assert asked == [f"1 GiB more on {card.name}" for card in cards[:1:-1]]


def test_the_deepest_model_on_more_cards_than_can_be_used_is_planned_in_bounded_time() -> None:
    info = model_info(n_layer=MAX_LAYERS, layer_bytes=20 * MIB)
    layers = (replace(layer, n_ff=layer.n_ff + i) for i, layer in enumerate(info.layers))
    draft = model_info(n_layer=8, layer_bytes=20 * MIB)
    uneven = replace(served(replace(info, layers=tuple(layers))), draft=draft)
    cards = [nvidia(i, 2 + i / 16) for i in range(64)]

    started = time.process_time()
    found = outlook(uneven, machine(*cards), AROUND)
    spent_s = time.process_time() - started

    assert isinstance(found.answer, LaunchPlan)
    assert spent_s < 3  # some tenths; the bound only rules out what grows with cards and tries
