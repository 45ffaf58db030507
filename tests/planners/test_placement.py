import time
from collections.abc import Mapping
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.backends import Engine
from planners.errors import PlanError
from planners.graph.kv_cache import LaunchShape
from planners.graph.reservation import compute_bytes
from planners.hardware import HOST, Device, DeviceId, DeviceKind, HardwareProfile
from planners.instances.eviction import Candidate, victims
from planners.layout.budget import budgets
from planners.lessons.rates import rates
from planners.lessons.samples import LaunchKey, Learned, Lesson
from planners.memory import host_overhead_bytes, layer_devices, predict
from planners.model import LayerKind, ModelInfo, ServedModel, WeightInfo
from planners.placement import plan_launch
from planners.plan import DeviceBytes, InstanceId, LaunchPlan, Shortfall
from planners.reasons import Price, ReasonKind, Unit, unused
from planners.settings import PlacementRules
from planners.sizes import GIB, MIB, format_size
from planners.speed import PROMPT_WEIGHT, Speed, speed
from tests.fakes.machines import (
    CPU,
    CUDA,
    INTEGRATED,
    LLAMA_8B,
    LLVMPIPE,
    RULES,
    VULKAN,
    machine,
    model_info,
    nvidia,
    served,
)
from tests.fakes.tiny_models import TinyModel, info_of

CARD = nvidia(0, 24)
MOE = model_info(layer_bytes=400 * MIB, expert_bytes=360 * MIB)
WINDOWS = model_info(kinds=(LayerKind.SWA, LayerKind.SWA, LayerKind.SWA, LayerKind.FULL))
ENGINES = (CPU, VULKAN, CUDA)


def answer(
    hardware: HardwareProfile,
    model: ServedModel | None = None,
    *,
    engines: tuple[Engine, ...] = ENGINES,
    rules: PlacementRules = RULES,
    promised: Mapping[DeviceId, int] | None = None,
    could_free: Mapping[DeviceId, int] | None = None,
) -> LaunchPlan | Shortfall:
    return plan_launch(
        served() if model is None else model,
        hardware=hardware,
        engines=engines,
        rules=rules,
        promised=promised or {},
        could_free=could_free or {},
    )


def planned(hardware: HardwareProfile, model: ServedModel | None = None) -> LaunchPlan:
    plan = answer(hardware, model)
    assert isinstance(plan, LaunchPlan), str(plan)
    return plan


def short(hardware: HardwareProfile, model: ServedModel | None = None) -> Shortfall:
    shortfall = answer(hardware, model)
    assert isinstance(shortfall, Shortfall)
    return shortfall


def on(plan: LaunchPlan) -> list[tuple[str, int]]:
    return [(name, layers) for _, name, layers in plan.devices]


@pytest.mark.parametrize(
    ("devices", "backend", "expected"),
    [
        pytest.param([], "cpu", [], id="no GPU"),
        pytest.param([CARD], "cuda", [("CUDA0", 33)], id="one card that holds all"),
        pytest.param([nvidia(0, 8), CARD], "cuda", [("CUDA0", 33)], id="the larger of two"),
        pytest.param([INTEGRATED], "vulkan", [("Vulkan7", 33)], id="an integrated GPU alone"),
        pytest.param([INTEGRATED, CARD], "cuda", [("CUDA0", 33)], id="a laptop with both"),
        pytest.param([LLVMPIPE], "cpu", [], id="a software device nobody asked for"),
    ],
)
def test_an_8b_model_goes_where_it_is_fastest(
    devices: list[Device], backend: str, expected: list[tuple[str, int]]
) -> None:
    plan = planned(machine(*devices))

    assert (plan.backend, on(plan)) == (backend, expected)


def test_two_unequal_cards_share_what_neither_holds() -> None:
    plan = planned(machine(nvidia(0, 3), nvidia(1, 4)), served(context=4096))

    assert sum(layers for _, layers in on(plan)) == 33
    assert [name for name, _ in on(plan)] == ["CUDA0", "CUDA1"]  # the larger has the last layers
    assert plan.tensor_split[1] > plan.tensor_split[0]


def test_what_no_device_holds_stays_on_the_processor() -> None:
    plan = planned(machine(nvidia(0, 4)), served(context=4096))

    assert 10 < plan.n_gpu_layers < 33
    assert plan.bytes_on(HOST) > 2 * GIB


def test_a_software_device_is_used_where_it_was_asked_for() -> None:
    device = replace(LLVMPIPE, use=True, total_bytes=8 * GIB, free_bytes=8 * GIB)

    assert on(planned(machine(device))) == [("Vulkan0", 33)]


def test_memory_that_a_device_shares_with_the_host_counts_twice() -> None:
    device = replace(LLVMPIPE, use=True, total_bytes=8 * GIB, free_bytes=8 * GIB)

    assert isinstance(answer(machine(device, host_gib=4)), Shortfall)


def test_backends_are_tried_in_the_order_of_the_rules() -> None:
    plan = answer(machine(CARD), rules=replace(RULES, backends=("vulkan", "cuda")))

    assert isinstance(plan, LaunchPlan)
    assert plan.backend == "vulkan"


def test_an_engine_that_decoded_faster_on_the_card_is_taken_before_the_vendors() -> None:
    digest = served().info.digest
    lessons = {
        LaunchKey(engine.engine_id, digest, CARD.device_id, "flags"): Lesson(
            requests=3, decode_tokens_per_s=rate
        )
        for engine, rate in ((CUDA, 40.0), (VULKAN, 60.0))
    }

    plan = plan_launch(
        served(),
        hardware=machine(CARD),
        engines=ENGINES,
        rules=RULES,
        promised={},
        learned=Learned({}, {}, lessons=lessons),
    )

    assert isinstance(plan, LaunchPlan)
    assert plan.backend == "vulkan"


def test_an_engine_that_gets_more_layers_onto_devices_wins() -> None:
    only_vulkan = replace(nvidia(1, 24), engine_names=(("vulkan", "Vulkan1"),))

    plan = planned(machine(nvidia(0, 4), only_vulkan))

    assert (plan.backend, plan.n_gpu_layers) == ("vulkan", 33)


def test_another_engine_than_the_first_is_taken_for_more_layers_on_devices() -> None:
    """Vulkan has 350 MiB more room than CUDA, which is much or nothing by what is left over."""
    partial, whole = planned(machine(nvidia(0, 4))), planned(machine(nvidia(0, 8)))

    assert partial.backend == "vulkan"
    (why,) = _about_the_engine(partial)
    assert why.startswith("vulkan rather than cuda, which has less room here: decode at ")
    assert whole.backend == "cuda"
    assert _about_the_engine(whole) == []


def test_an_experts_place_is_not_worth_another_engine_than_the_first() -> None:
    experts = model_info(layer_bytes=200 * MIB, expert_bytes=190 * MIB)

    plans = [planned(machine(nvidia(0, 4 + i / 4)), served(experts)) for i in range(8)]

    assert all(0 < plan.n_cpu_moe < 32 and plan.n_gpu_layers == 33 for plan in plans)
    assert {plan.backend for plan in plans} == {"cuda"}


def test_of_engines_that_are_alike_the_one_with_room_for_a_usual_context_is_taken() -> None:
    plan, roomy = planned(machine(nvidia(0, 4.9))), planned(machine(nvidia(0, 5.1)))

    assert (plan.backend, plan.n_gpu_layers, plan.context) == ("vulkan", 33, 4096)
    assert "4096 rather than 2048 tokens of context" in " ".join(_about_the_engine(plan))
    assert (roomy.backend, roomy.n_gpu_layers, roomy.context) == ("cuda", 33, 4096)


def _about_the_engine(plan: LaunchPlan) -> list[str]:
    return [reason.text for reason in plan.reasons if reason.kind is ReasonKind.ENGINE]


@pytest.mark.parametrize(
    ("gib", "context"),
    [
        pytest.param(24, 32768, id="24 GiB"),
        pytest.param(8, 16384, id="8 GiB"),
        pytest.param(5.3, 4096, id="5.3 GiB"),
    ],
)
def test_an_automatic_context_is_the_largest_that_costs_no_layer(gib: float, context: int) -> None:
    plan = planned(machine(nvidia(0, gib)))

    assert (plan.context, plan.n_gpu_layers) == (context, 33)


def test_an_automatic_context_pushes_no_layer_onto_a_much_slower_device() -> None:
    fast = replace(nvidia(0, 8), bandwidth_bytes_per_s=1000e9)
    slow, like = (replace(nvidia(1, 24), bandwidth_bytes_per_s=at) for at in (200e9, 900e9))

    plan = planned(machine(fast, slow))

    assert (on(plan), plan.context) == ([("CUDA0", 33)], 16384)
    (why,) = (reason for reason in plan.reasons if reason.kind is ReasonKind.CONTEXT)
    assert why.text.endswith(": 32768 would push layers onto slower devices")
    assert planned(machine(fast, like)).context == 32768
    fixed = planned(machine(fast, slow), served(context=32768))
    assert (fixed.context, len(fixed.devices)) == (32768, 2)


def test_windows_are_not_kept_whole_at_the_price_of_a_much_slower_device() -> None:
    fast = replace(nvidia(0, 6), bandwidth_bytes_per_s=1000e9)
    slow = replace(nvidia(1, 24), bandwidth_bytes_per_s=200e9)
    windowed = model_info(kinds=(LayerKind.SWA,) * 7 + (LayerKind.FULL,))

    plan = planned(machine(fast, slow), served(windowed))

    assert (on(plan), plan.swa_full) == ([("CUDA0", 33)], False)


def test_an_automatic_context_is_no_more_than_was_trained_for() -> None:
    assert planned(machine(CARD), served(model_info(n_ctx_train=8192))).context == 8192


def test_a_processor_gets_a_context_that_it_can_read() -> None:
    assert planned(machine(host_gib=64)).context == 8192


def test_what_the_operator_fixed_is_kept_at_the_price_of_layers() -> None:
    plan = planned(machine(nvidia(0, 8)), served(context=32768, parallel=2))

    assert (plan.context, plan.n_parallel) == (32768, 2)
    assert plan.n_gpu_layers < 33


def test_what_the_operator_fixed_is_refused_rather_than_lowered() -> None:
    shortfall = short(machine(host_gib=8), served(context=131072, parallel=2))

    assert shortfall.missing_bytes[HOST] > 20 * GIB
    assert "131072 × 2" in shortfall.reason


def test_the_ubatch_is_given_up_before_layers() -> None:
    plans = [planned(machine(nvidia(0, gib)), served(context=4096)) for gib in (5.3, 5.06)]

    assert [plan.n_gpu_layers for plan in plans] == [33, 33]
    assert plans[1].n_ubatch < plans[0].n_ubatch == 512


def test_experts_leave_a_device_before_layers_do() -> None:
    plan = planned(machine(nvidia(0, 8)), served(MOE))

    assert plan.n_gpu_layers == 33
    assert 0 < plan.n_cpu_moe <= 32


def test_windows_are_kept_whole_where_there_is_room() -> None:
    assert planned(machine(CARD), served(WINDOWS, context=16384)).swa_full
    assert not planned(machine(nvidia(0, 6.5)), served(WINDOWS, context=16384)).swa_full


def test_an_embedding_model_has_one_batch_for_a_whole_input() -> None:
    plan = planned(machine(CARD), served(model_info(pooling="mean", n_ctx_train=512)))

    assert plan.embedding
    assert plan.n_batch == plan.n_ubatch == plan.context == 512
    assert plan.cache_ram_mib == 0


def test_promised_bytes_are_as_good_as_taken() -> None:
    plan = answer(machine(CARD), promised={CARD.device_id: 21 * GIB})

    assert isinstance(plan, LaunchPlan)
    assert plan.n_gpu_layers < 33


def test_the_projector_is_planned_where_it_will_go() -> None:
    plain = planned(machine(CARD))
    with_projector = planned(
        machine(CARD), served(mmproj_path="/models/mmproj.gguf", companion_bytes=GIB)
    )

    gpu = CARD.device_id
    assert with_projector.bytes_on(gpu) - plain.bytes_on(gpu) == GIB
    assert with_projector.mmproj_path == "/models/mmproj.gguf"


def test_settings_are_carried_through() -> None:
    model = served(draft_path="/d.gguf", lora_paths=("/a.gguf",), flags=("--mlock",))

    plan = planned(machine(CARD), model)

    assert plan.draft_path == "/d.gguf"
    assert plan.lora_paths == ("/a.gguf",)
    assert plan.extra_flags == ("--mlock",)


def test_the_prompt_cache_is_never_the_engines_8_gib() -> None:
    plan = planned(machine(host_gib=10))

    assert plan.cache_ram_mib < 1024
    assert plan.ctx_checkpoints == 0


@pytest.mark.parametrize("engines", [(), (CUDA,)], ids=["none", "without a device"])
def test_engines_decide_what_is_possible(engines: tuple[Engine, ...]) -> None:
    plan = answer(machine(), engines=engines)

    if engines:
        assert isinstance(plan, LaunchPlan)
        assert plan.devices == ()
    else:
        assert isinstance(plan, Shortfall)
        assert not plan.missing_bytes


def test_an_unknown_cache_type_is_a_plan_error() -> None:
    with pytest.raises(PlanError, match="'q9'"):
        answer(machine(CARD), rules=replace(RULES, type_k="q9"))


def test_a_shortfall_counts_what_eviction_must_bring() -> None:
    busy = replace(CARD, free_bytes=GIB)
    shortfall = short(machine(busy, host_gib=2))
    assert set(shortfall.missing_bytes) == {CARD.device_id}

    freed = shortfall.missing_bytes[CARD.device_id]
    roomier = machine(replace(CARD, free_bytes=GIB + freed), host_gib=2)

    assert isinstance(answer(roomier), LaunchPlan)


def test_a_model_too_large_for_the_machine_misses_memory_that_nobody_can_give() -> None:
    shortfall = short(machine(host_gib=2), served(model_info(n_layer=80, layer_bytes=GIB)))

    assert shortfall.missing_bytes[HOST] > 70 * GIB


@pytest.mark.parametrize("allows_cpu_fallback", [True, False], ids=["allow", "deny"])
def test_what_is_missing_is_the_least_beside_what_devices_hold(allows_cpu_fallback: bool) -> None:
    # All of the model was once said to be missing on the host, as if there were no card.
    rules = replace(RULES, allows_cpu_fallback=allows_cpu_fallback)
    model = served(model_info(n_layer=80, layer_bytes=GIB))

    shortfall = answer(machine(CARD, host_gib=2), model, rules=rules)

    assert isinstance(shortfall, Shortfall)
    missing_gib = shortfall.missing_bytes[HOST] / GIB
    assert set(shortfall.missing_bytes) == {HOST}
    assert 50 < missing_gib < 62
    enough = answer(machine(CARD, host_gib=2 + missing_gib + 0.01), model, rules=rules)
    assert isinstance(enough, LaunchPlan)
    too_little = answer(machine(CARD, host_gib=2 + missing_gib - 1.1), model, rules=rules)
    assert isinstance(too_little, Shortfall)


def test_a_limit_that_leaves_too_little_is_named_where_the_machine_has_enough() -> None:
    roomy = machine(host_gib=64)
    capped = replace(roomy, host=replace(roomy.host, limit_bytes=GIB))
    capped_in_vain = machine(host_gib=1)
    loose = replace(capped_in_vain.host, limit_bytes=32 * GIB)

    held_back = short(capped)
    too_small = short(replace(capped_in_vain, host=loose))

    assert isinstance(answer(roomy), LaunchPlan)
    assert held_back.reason.endswith("; a limit or a yield leaves models 1.0 GiB of host")
    assert "limit" not in too_small.reason


def test_an_idle_model_is_worth_stopping_for_a_place_on_its_device() -> None:
    busy = machine(replace(CARD, free_bytes=4 * GIB))

    without = answer(busy)
    shortfall = answer(busy, could_free={CARD.device_id: 18 * GIB})

    assert isinstance(without, LaunchPlan)
    assert without.n_gpu_layers < 33
    assert isinstance(shortfall, Shortfall)
    idle = Candidate(InstanceId("idle"), {CARD.device_id: 18 * GIB}, 1.0, 0.0)
    assert victims([idle], shortfall) == ("idle",)


def test_an_idle_model_is_left_alone_where_stopping_it_brings_nothing() -> None:
    plan = answer(machine(CARD), could_free={CARD.device_id: 10 * GIB, HOST: GIB})

    assert isinstance(plan, LaunchPlan)


def test_every_decision_has_a_reason_with_numbers() -> None:
    plan = planned(machine(nvidia(0, 4), LLVMPIPE), served(parallel=2))

    told = " | ".join(map(str, plan.reasons))
    for words in ("2 slots of", "of 33 layers on card 0", "on the processor", "prompt cache of",
                  "posing as a GPU", "batches of 512"):  # fmt: skip
        assert words in told


def test_what_no_buffer_shows_is_taken_apart() -> None:
    plan = planned(machine())
    other_bytes = plan.predicted[0].overhead_bytes
    process_bytes = host_overhead_bytes(served().info)

    (told,) = (r.text for r in plan.reasons if r.kind is ReasonKind.PROMPT_CACHE)

    assert f"{format_size(other_bytes - process_bytes)} of host memory at most" in told
    assert f"{format_size(process_bytes)} of its OTHER memory is the process itself" in told


MODELS = st.sampled_from([LLAMA_8B, MOE, WINDOWS, model_info(pooling="mean", n_ctx_train=2048)])
CARD_GIB = st.floats(0.1, 48)


@settings(max_examples=150, deadline=None)
@given(
    info=MODELS,
    cards=st.lists(CARD_GIB, max_size=3),
    host_gib=st.floats(0.2, 64),
    context=st.none() | st.integers(1, 40_000),
    parallel=st.none() | st.integers(1, 4),
    limit_gib=st.none() | st.floats(0.1, 10),
    promised_gib=st.floats(0, 4),
)
def test_a_plan_never_exceeds_what_there_is(
    info: ModelInfo,
    cards: list[float],
    host_gib: float,
    context: int | None,
    parallel: int | None,
    limit_gib: float | None,
    promised_gib: float,
) -> None:
    limit = None if limit_gib is None else int(limit_gib * GIB)
    devices = [replace(nvidia(i, gib), limit_bytes=limit) for i, gib in enumerate(cards)]
    promised = int(promised_gib * GIB)
    hardware = machine(*devices, host_gib=host_gib)
    taken = {HOST: promised, **{device.device_id: promised for device in devices}}

    plan = answer(hardware, served(info, context=context, parallel=parallel), promised=taken)

    if isinstance(plan, Shortfall):
        assert all(n_bytes > 0 for n_bytes in plan.missing_bytes.values())
        return
    rooms = {d.device_id: min(d.free_bytes or 0, limit or 1 << 60) for d in devices}
    rooms[HOST] = hardware.host.available_bytes
    for part in plan.predicted:
        assert part.upper_bytes <= rooms[part.device_id] - promised
    assert sum(plan.tensor_split) == plan.n_gpu_layers <= info.n_layer + 1
    assert plan.n_parallel == (parallel or 1)


@settings(max_examples=100, deadline=None)
@given(
    info=MODELS,
    cards=st.lists(CARD_GIB, min_size=1, max_size=3),
    more_gib=st.floats(0, 24),
    which=st.integers(0, 2),
)
def test_more_memory_never_means_fewer_layers_on_devices(
    info: ModelInfo, cards: list[float], more_gib: float, which: int
) -> None:
    devices = [nvidia(i, 64 - i, free_gib=gib) for i, gib in enumerate(cards)]
    grown = list(devices)
    i = which % len(cards)
    grown[i] = nvidia(i, 64 - i, free_gib=min(cards[i] + more_gib, 60))

    less = planned(machine(*devices, host_gib=64), served(info))
    more = planned(machine(*grown, host_gib=64), served(info))

    assert more.n_gpu_layers >= less.n_gpu_layers


def test_eight_devices_and_a_hundred_layers_are_planned_within_50_ms() -> None:
    hardware = machine(*(nvidia(i, 8) for i in range(8)), host_gib=64)
    model = served(model_info(n_layer=100, layer_bytes=700 * MIB), context=8192)
    times = []
    for _ in range(3):
        start_s = time.process_time()
        planned(hardware, model)
        times.append(time.process_time() - start_s)

    assert min(times) < 0.05


AUTO = replace(RULES, type_k=None, type_v=None)
REMOTE = replace(
    nvidia(0, 24),
    device_id=DeviceId("rpc:10.0.0.2:50052"),
    kind=DeviceKind.REMOTE,
    engine_names=(("cuda", "RPC0"), ("vulkan", "RPC0")),
)


def test_a_plan_says_how_fast_it_will_be() -> None:
    on_card, on_host = planned(machine(CARD)), planned(machine())

    assert on_card.predicted_decode_tokens_per_s is not None
    assert on_host.predicted_decode_tokens_per_s is not None
    assert on_card.predicted_decode_tokens_per_s > 3 * on_host.predicted_decode_tokens_per_s
    assert "tokens/s of decode, with the weights read at" in on_card.reasons[-1].text


def test_a_faster_card_is_taken_before_a_larger_one() -> None:
    fast = replace(nvidia(0, 12), bandwidth_bytes_per_s=1000e9)
    large = replace(nvidia(1, 48), bandwidth_bytes_per_s=300e9)

    assert on(planned(machine(fast, large), served(context=4096))) == [("CUDA0", 33)]


def test_a_device_that_slows_the_launch_down_is_left_out_with_the_reason() -> None:
    slow = replace(nvidia(1, 24), name="a slow card", bandwidth_bytes_per_s=20e9)

    plan = planned(machine(nvidia(0, 4), slow), served(context=4096))

    assert [device for device, _, _ in plan.devices] == [CARD.device_id]
    assert plan.n_gpu_layers < 33
    assert any("a slow card is not used: at 16 GB/s" in reason.text for reason in plan.reasons)


def test_a_processor_faster_than_every_device_does_it_alone() -> None:
    slow = replace(nvidia(0, 24), bandwidth_bytes_per_s=10e9, compute_flops=0.1e12)

    assert planned(machine(slow)).devices == ()


def test_an_automatic_kv_type_is_conceded_after_the_context_and_before_a_layer() -> None:
    roomy, tight, tighter = (
        answer(machine(nvidia(0, gib)), served(context=16384, parallel=2), rules=AUTO)
        for gib in (24, 8, 6)
    )

    assert isinstance(roomy, LaunchPlan)
    assert isinstance(tight, LaunchPlan)
    assert isinstance(tighter, LaunchPlan)
    assert (roomy.type_k, roomy.n_gpu_layers) == ("f16", 33)
    assert (tight.type_k, tight.type_v, tight.n_gpu_layers) == ("q8_0", "q8_0", 33)
    assert (tighter.type_k, tighter.n_gpu_layers < 33) == ("q8_0", True)
    assert any("KV cache in q8_0/q8_0, not f16/f16" in reason.text for reason in tight.reasons)


def test_an_automatic_context_shrinks_before_the_kv_type_does() -> None:
    plan = answer(machine(nvidia(0, 8)), rules=AUTO)

    assert isinstance(plan, LaunchPlan)
    assert (plan.context, plan.type_k) == (16384, "f16")


def test_half_of_a_kv_type_may_be_fixed() -> None:
    rules = replace(AUTO, type_v="f16")

    plan = answer(machine(nvidia(0, 8)), served(context=32768), rules=rules)

    assert isinstance(plan, LaunchPlan)
    assert (plan.type_k, plan.type_v) == ("q8_0", "f16")


def price_of(plan: LaunchPlan, kind: ReasonKind) -> Price:
    (reason,) = (reason for reason in plan.reasons if reason.kind is kind)
    assert reason.price is not None
    return reason.price


def test_each_concession_has_its_price() -> None:
    experts = planned(machine(nvidia(0, 8)), served(MOE, context=4096))
    layers = planned(machine(nvidia(0, 4)), served(context=4096))
    small = replace(nvidia(0, 4.73), bandwidth_bytes_per_s=250e9, compute_flops=400e12)
    batch = planned(machine(small), served(context=4096))
    context = planned(machine(nvidia(0, 8)))

    for plan, kind, unit in (
        (experts, ReasonKind.EXPERTS_ON_HOST, Unit.DECODE),
        (layers, ReasonKind.LAYERS_ON_HOST, Unit.DECODE),
        (batch, ReasonKind.BATCH, Unit.PROMPT),
        (context, ReasonKind.CONTEXT, Unit.CONTEXT),
    ):
        assert price_of(plan, kind).unit is unit
        assert price_of(plan, kind).would_be > price_of(plan, kind).had
    assert price_of(layers, ReasonKind.LAYERS_ON_HOST).had == layers.predicted_decode_tokens_per_s
    assert price_of(context, ReasonKind.CONTEXT) == Price(Unit.CONTEXT, context.context, 32768)


def test_without_a_fallback_nothing_runs_on_the_processor_alone() -> None:
    deny = replace(RULES, allows_cpu_fallback=False)

    no_device = answer(machine(), rules=deny)
    part_of_it = answer(machine(nvidia(0, 4)), rules=deny)
    busy = answer(machine(replace(CARD, free_bytes=0)), rules=deny)

    assert isinstance(no_device, Shortfall)
    assert "models.cpu_fallback is deny" in no_device.reason
    assert isinstance(part_of_it, LaunchPlan)
    assert 0 < part_of_it.n_gpu_layers < 33
    assert isinstance(busy, Shortfall)
    assert busy.missing_bytes[CARD.device_id] > 4 * GIB  # what eviction would have to bring


def test_devices_of_other_machines_are_named_by_the_servers_in_use() -> None:
    other = replace(
        REMOTE,
        device_id=DeviceId("rpc:10.0.0.3:50052"),
        engine_names=(("cuda", "RPC1"),),
        bandwidth_bytes_per_s=900e9,
    )

    plan = answer(machine(replace(REMOTE, bandwidth_bytes_per_s=300e9), other), engines=(CUDA,))

    assert isinstance(plan, LaunchPlan)
    assert plan.rpc_servers == ("10.0.0.3:50052",)
    assert on(plan) == [("RPC0", 33)]  # the only one of that command line


def test_a_remote_server_that_is_silent_is_told_and_left_out() -> None:
    silent = replace(REMOTE, name="RPC server x", engine_names=(), total_bytes=None)

    plan = planned(machine(silent))

    assert plan.devices == ()
    assert unused(silent.device_id, "RPC server x", "it does not answer") in plan.reasons


def test_what_was_learned_decides_where_a_model_goes() -> None:
    learned = Learned({CARD.device_id: 1e9}, {CARD.device_id: 1e9})

    plan = plan_launch(
        served(), hardware=machine(CARD), engines=ENGINES, rules=RULES, promised={}, learned=learned
    )

    assert isinstance(plan, LaunchPlan)
    assert plan.devices == ()


@settings(max_examples=60, deadline=None)
@given(
    gibs=st.lists(st.floats(1, 8), min_size=1, max_size=2),
    bandwidths=st.lists(st.floats(5e9, 2e12), min_size=2, max_size=2),
    expert_bytes=st.sampled_from([0, 90 * MIB]),
)
def test_no_other_split_is_predicted_to_be_faster(
    gibs: list[float], bandwidths: list[float], expert_bytes: int
) -> None:
    info = model_info(n_layer=6, layer_bytes=600 * MIB, expert_bytes=expert_bytes)
    cards = [
        replace(nvidia(i, gib), bandwidth_bytes_per_s=bandwidths[i]) for i, gib in enumerate(gibs)
    ]
    hardware = machine(*cards, host_gib=64)
    plan = answer(hardware, served(info, context=4096), engines=(CUDA,))
    assert isinstance(plan, LaunchPlan)

    known = rates(hardware, n_threads=plan.n_threads)
    shape = LaunchShape(4096, 1, 512, 512)  # with weights on the host the widest alone is tried
    others = [speed(info, each, rates=known) for each in splits(shape, hardware, info)]

    assert plan.predicted_decode_tokens_per_s is not None
    assert plan.predicted_prompt_tokens_per_s is not None
    chosen = Speed(plan.predicted_prompt_tokens_per_s, plan.predicted_decode_tokens_per_s)
    assert _token_s(chosen) <= 1.03 * min(map(_token_s, others))


def _token_s(told: Speed) -> float:
    """What placement minimises."""
    return 1 / told.decode_tokens_per_s + PROMPT_WEIGHT / told.prompt_tokens_per_s


def splits(shape: LaunchShape, hardware: HardwareProfile, info: ModelInfo) -> list[LaunchShape]:
    """Every split that fits, in every order, experts aside."""
    ids = [device.device_id for device in hardware.devices]
    room = {d.device_id: b for d, b in zip(hardware.devices, _rooms(hardware), strict=True)}
    found = []
    for order in permutations(ids):
        for counts in product(range(info.n_layer + 2), repeat=len(order)):
            if sum(counts) > info.n_layer + 1:
                continue
            split = tuple(pair for pair in zip(order, counts, strict=True) if pair[1])
            shaped = replace(shape, split=split)
            parts = predict(info, shaped, overhead_bytes={})
            if all(p.upper_bytes <= room[p.device_id] for p in parts if p.device_id != HOST):
                found.append(shaped)
    return found


def _rooms(hardware: HardwareProfile) -> list[int]:
    room = budgets(hardware, backend="cuda", promised={}, held={})
    return [
        room.room_bytes(d.device_id) - max(600 * MIB, int((d.total_bytes or 0) * 0.03))
        for d in hardware.devices
    ]


def test_a_draft_model_is_placed_with_a_cache_of_its_own() -> None:
    alone = served(context=8192, draft_path="/models/draft.gguf")
    drafted = replace(alone, draft=LLAMA_8B)
    hardware = machine(nvidia(0, 80), host_gib=256)

    def gpu_bytes(model: ServedModel) -> DeviceBytes:
        plan = plan_launch(model, hardware=hardware, engines=(CUDA,), rules=RULES, promised={})
        assert isinstance(plan, LaunchPlan)
        return next(part for part in plan.predicted if part.device_id != HOST)

    without, with_draft = gpu_bytes(alone), gpu_bytes(drafted)

    assert with_draft.kv_bytes == 2 * without.kv_bytes
    assert with_draft.compute_bytes == 2 * without.compute_bytes


def test_a_plan_names_what_a_devices_limit_keeps_on_the_host() -> None:
    wide = WeightInfo("output.weight", (4096, 128256), 411 << 20)
    model = replace(LLAMA_8B, ends=(wide,))
    device = replace(LLVMPIPE, use=True, total_bytes=16 << 30, free_bytes=16 << 30)
    hardware = machine(device, host_gib=64)

    plan = plan_launch(
        served(model), hardware=hardware, engines=(VULKAN,), rules=RULES, promised={}
    )

    assert isinstance(plan, LaunchPlan)
    assert any(reason.text.startswith("output.weight") for reason in plan.reasons)


def test_a_draft_model_gets_its_room_before_layers_are_dealt_out() -> None:
    draft = model_info(n_layer=8)
    alone = served(context=4096, draft_path="/models/draft.gguf")
    drafted = replace(alone, draft=draft)

    without, beside = (planned(machine(nvidia(0, 6)), model) for model in (alone, drafted))

    assert without.n_gpu_layers == 33
    assert 20 < beside.n_gpu_layers < 33
    assert beside.n_ctx == without.n_ctx


DRAWN = info_of(
    TinyModel(
        "drawn", "qwen3", 2048, 28,
        {"attention.head_count": 16, "attention.head_count_kv": 8, "feed_forward_length": 6144,
         "attention.key_length": 128, "attention.value_length": 128},
        n_vocab=151936, n_ctx=32768,
    )
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(gib=st.floats(1.5, 8), other_gib=st.floats(0, 4), embd_ctx=st.sampled_from([4096, 32768]))
def test_a_plan_fits_with_its_buffers_as_the_engine_reserves_them(
    gib: float, other_gib: float, embd_ctx: int
) -> None:
    hardware = machine(nvidia(0, gib), nvidia(1, other_gib))
    plan = answer(hardware, served(DRAWN, context=embd_ctx), engines=(VULKAN,))

    assert isinstance(plan, LaunchPlan)
    room = budgets(hardware, backend="vulkan", promised={}, held={})
    shape = LaunchShape(
        plan.n_ctx, plan.n_parallel, plan.n_batch, plan.n_ubatch, backend="vulkan",
        split=tuple((device, layers) for device, _, layers in plan.devices),
    )  # fmt: skip
    reserved = compute_bytes(DRAWN, shape, layer_devices(DRAWN, shape))
    assert reserved is not None
    for part in plan.predicted:
        assert part.upper_bytes <= room.room_bytes(part.device_id)
        if part.device_id != HOST:
            assert part.compute_bytes == reserved[part.device_id]
