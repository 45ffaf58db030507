import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.ggml.header import GgufArray, GgufError, GgufHeader, Tensor
from planners.gguf import model_info
from planners.graph.compute import device_compute_bytes, n_copies
from planners.graph.families import DELTA_NETS
from planners.graph.kv_cache import LaunchShape, kv_cache_bytes
from planners.graph.reservation import compute_bytes, forget, is_drawn
from planners.hardware import HOST, DeviceId
from planners.memory import layer_devices, predict
from planners.model import LayerKind, ModelInfo
from tests.fakes.machines import LLAMA_8B
from tests.fakes.tiny_models import Number, TinyModel, info_of, tiny_models

GPU, OTHER = DeviceId("gpu"), DeviceId("other")
REMOTE = DeviceId("rpc:box:50052")
MODELS = {model.name: model for model in tiny_models()}
SHAPE = LaunchShape(n_ctx=4096, n_parallel=2, n_batch=512, n_ubatch=512, backend="vulkan")


def reserved(model: ModelInfo, shape: LaunchShape) -> dict[DeviceId, int]:
    found = compute_bytes(model, shape, layer_devices(model, shape))
    assert found is not None
    return dict(found)


@pytest.mark.parametrize("name", MODELS)
def test_every_known_architecture_is_drawn(name: str) -> None:
    info = info_of(MODELS[name])
    whole = replace(SHAPE, split=((GPU, info.n_layer + 1),), embedding=info.is_embedding)

    found = reserved(info, whole)

    assert is_drawn(info)
    assert found[GPU] > 1 << 20
    assert found[HOST] > 1 << 18


@pytest.mark.parametrize(
    ("name", "numbers", "n_on_device"),
    [
        ("hybrid-1", {"attention.head_count_kv": [0, 0, 2, 0] * 10}, 33),
        ("hybrid-2", {"attention.head_count_kv": [0, 0, 0, 2] * 10}, 33),
        ("hybrid-3", {"attention.head_count_kv": [0, 0, 0, 2] * 10,
                      "feed_forward_length": [0, 1024, 0, 0] * 10}, 41),
        ("convolutions", {"attention.head_count_kv": [0, 0, 2, 0] * 10}, 41),
        ("delta", {}, 28),
        ("delta-next", {}, 41),
    ],
)  # fmt: skip
def test_of_layers_that_take_turns_all_are_drawn(
    name: str, numbers: dict[str, Number], n_on_device: int
) -> None:
    # Of 40 layers a few once stood for all, and a device's buffer came out a tenth off.
    deep = replace(MODELS[name], n_layer=40, numbers={**MODELS[name].numbers, **numbers})
    info = info_of(deep)
    shape = replace(SHAPE, split=((GPU, n_on_device),), flash_attn=False)
    unlike = [replace(layer, weight_bytes=i) for i, layer in enumerate(info.layers)]

    found = reserved(info, shape)

    digest = f"{info.digest}, no two layers alike"
    assert found == reserved(replace(info, layers=tuple(unlike), digest=digest), shape)


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(("windows-2", "windows-6", "sinks")),
    n_ctx=st.sampled_from((512, 2048, 8192)),
    n_parallel=st.integers(1, 3),
    n_ubatch=st.sampled_from((16, 64, 512)),
    n_cpu_moe=st.sampled_from((0, 0, 17)),
    backend=st.sampled_from(("vulkan", "cuda")),
    types=st.sampled_from((("f16", "f16"), ("q8_0", "q8_0"), ("bf16", "f16"))),
    truth=st.sampled_from(("flash_attn", "kv_on_host", "swa_full", "kv_unified", "")),
)
def test_few_layers_with_and_without_windows_stand_for_all(
    data: st.DataObject, name: str, n_ctx: int, n_parallel: int, n_ubatch: int, n_cpu_moe: int,
    backend: str, types: tuple[str, str], truth: str,
) -> None:  # fmt: skip
    info = info_of(replace(MODELS[name], n_layer=40))
    cuts = sorted(data.draw(st.lists(st.integers(0, 41), min_size=3, max_size=3)))
    counts = (cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1], 41 - cuts[2])
    devices = data.draw(st.permutations((GPU, OTHER, REMOTE, DeviceId("third"))))
    n_host = data.draw(st.sampled_from((0, counts[0])))
    split = tuple(zip(devices, counts, strict=True))[bool(n_host) :]
    toggled: dict[str, Any] = (
        {"flash_attn": False} if truth == "flash_attn" else {truth: True} if truth else {}
    )
    shape = LaunchShape(
        n_ctx=n_ctx * n_parallel, n_parallel=n_parallel, n_batch=n_ubatch, n_ubatch=n_ubatch,
        type_k=types[0], type_v=types[1] if truth != "flash_attn" else "f16", backend=backend,
        n_cpu_moe=n_cpu_moe, split=tuple((d, count) for d, count in split if count),
    )  # fmt: skip
    shape = replace(shape, **toggled)
    unlike = tuple(replace(layer, weight_bytes=i) for i, layer in enumerate(info.layers))
    whole = replace(info, layers=unlike, digest=f"{info.digest}, no two layers alike")

    found = reserved(info, shape)

    assert found == reserved(whole, shape)


@pytest.mark.parametrize("without", ["attn_k.weight", "ffn_down", "token_embd.weight"])
def test_a_file_that_lacks_a_tensor_is_estimated_and_never_fails(without: str) -> None:
    info = info_of(MODELS["dense"], without=without)
    shape = replace(SHAPE, split=((GPU, info.n_layer + 1),))

    assert compute_bytes(info, shape, layer_devices(info, shape)) is None
    assert predict(info, shape, overhead_bytes={})


@pytest.mark.parametrize("claimed", ["llama", "deepseek2", "mamba2", "qwen3next"])
@pytest.mark.parametrize("name", MODELS)
def test_a_file_that_claims_another_architecture_is_estimated_and_never_fails(
    name: str, claimed: str
) -> None:
    info = replace(info_of(MODELS[name]), architecture=claimed, digest=f"{name} as {claimed}")
    headless = tuple(replace(layer, kind=LayerKind.NONE) for layer in info.layers)
    shape = replace(SHAPE, split=((GPU, info.n_layer + 1),))

    for odd in (info, replace(info, layers=headless, digest=f"{name} without heads")):
        assert predict(odd, shape, overhead_bytes={})


@pytest.mark.parametrize("name", MODELS)
def test_matrices_without_dimensions_are_estimated_and_never_fail(name: str) -> None:
    info = info_of(MODELS[name])
    flat = tuple(
        replace(layer, weights=tuple(replace(weight, shape=()) for weight in layer.weights))
        for layer in info.layers
    )
    shape = replace(SHAPE, split=((GPU, info.n_layer + 1),))

    assert predict(replace(info, layers=flat, digest="flat"), shape, overhead_bytes={})


@pytest.mark.parametrize("name", MODELS)
def test_a_file_without_a_layer_is_estimated_and_never_fails(name: str) -> None:
    info = replace(info_of(MODELS[name]), layers=())
    shape = replace(SHAPE, split=((GPU, 1),))

    assert compute_bytes(info, shape, layer_devices(info, shape)) is None
    assert predict(info, shape, overhead_bytes={})


def test_a_model_known_by_sums_alone_is_not_drawn() -> None:
    assert compute_bytes(LLAMA_8B, SHAPE, (HOST,) * 33) is None


def test_a_device_with_nothing_but_the_output_needs_little() -> None:
    info = info_of(MODELS["dense"])
    shape = replace(SHAPE, split=((GPU, info.n_layer), (OTHER, 1)))

    found = reserved(info, shape)

    assert found[OTHER] < found[GPU] / 20


def test_layers_on_the_host_make_the_device_hold_borrowed_weights() -> None:
    info = info_of(MODELS["dense"])

    whole = reserved(info, replace(SHAPE, split=((GPU, info.n_layer + 1),)))
    part = reserved(info, replace(SHAPE, split=((GPU, 2),)))

    assert part[GPU] > whole[GPU]


def test_no_weight_is_borrowed_by_a_remote_device() -> None:
    info = info_of(MODELS["dense"])

    near = reserved(info, replace(SHAPE, split=((GPU, 1),)))
    far = reserved(info, replace(SHAPE, split=((REMOTE, 1),)))

    assert far[REMOTE] < near[GPU] / 4


def test_mamba_1_is_scanned_by_the_host_of_a_local_device() -> None:
    info = info_of(MODELS["state-1"])
    near = replace(SHAPE, split=((GPU, info.n_layer + 1),))
    far = replace(SHAPE, split=((REMOTE, info.n_layer + 1),))

    assert reserved(info, near)[HOST] > 2 * reserved(info, far)[HOST]


def deep(n_layer: int) -> ModelInfo:
    return info_of(replace(MODELS["dense"], n_layer=n_layer, name=f"deep-{n_layer}"))


@pytest.mark.parametrize("name", ["dense", "windows-6", "delta", "hybrid-2"])
def test_a_few_layers_stand_for_many(name: str) -> None:
    model = MODELS[name]
    numbers = dict(model.numbers)
    if isinstance(kv := numbers["attention.head_count_kv"], list):
        numbers["attention.head_count_kv"] = [kv[i % 4] for i in range(48)]
    many = info_of(replace(model, n_layer=48, numbers=numbers))
    fewer = info_of(replace(model, n_layer=12, numbers=numbers | {
        "attention.head_count_kv": kv[:4] * 3 if isinstance(kv, list) else kv}))  # fmt: skip

    whole = reserved(many, replace(SHAPE, split=((GPU, 49),)))[GPU]

    assert whole == pytest.approx(
        reserved(fewer, replace(SHAPE, split=((GPU, 13),)))[GPU], rel=0.12
    )


def test_equal_devices_reserve_alike_and_a_hundred_layers_on_eight_are_quick() -> None:
    info = deep(100)
    devices = [DeviceId(f"gpu-{i}") for i in range(8)]
    counts = [13] * 7 + [10]
    shape = replace(SHAPE, split=tuple(zip(devices, counts, strict=True)))

    started = time.process_time()
    found = reserved(info, shape)
    spent_s = time.process_time() - started

    assert found[devices[3]] == found[devices[4]]
    assert spent_s < 0.25  # a few ms; the bound only rules out drawing all hundred layers


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    n_ctx=st.sampled_from((256, 1024, 4096, 16384)),
    n_parallel=st.integers(1, 5),
    n_ubatch=st.sampled_from((16, 64, 200, 512)),
    unified=st.booleans(),
    flash=st.booleans(),
    on_host=st.integers(0, 12),
)
def test_any_launch_of_any_architecture_has_a_prediction(
    name: str, n_ctx: int, n_parallel: int, n_ubatch: int, unified: bool, flash: bool, on_host: int
) -> None:
    info = info_of(MODELS[name])
    layers = max(0, info.n_layer + 1 - on_host)
    shape = LaunchShape(
        n_ctx=n_ctx * n_parallel, n_parallel=n_parallel, n_batch=n_ubatch, n_ubatch=n_ubatch,
        kv_unified=unified, flash_attn=flash, embedding=info.is_embedding, backend="vulkan",
        split=((GPU, layers),) if layers else (),
    )  # fmt: skip

    parts = predict(info, shape, overhead_bytes={})

    assert all(part.compute_bytes >= 0 and part.upper_bytes >= part.total_bytes for part in parts)
    assert is_drawn(info)


@settings(max_examples=400, deadline=5000)
@given(
    data=st.data(),
    name=st.sampled_from(sorted(MODELS)),
    number=st.one_of(st.integers(0, 40), st.integers(0, (1 << 31) - 1)),
    layers=st.integers(0, 9),
)
def test_a_file_that_lies_in_one_number_is_predicted_or_estimated(
    data: st.DataObject, name: str, number: int, layers: int
) -> None:
    model = MODELS[name]
    sane = info_of(model)
    key = data.draw(st.sampled_from(sorted(model.facts.pairs)[:-1]))
    pairs = {
        k: GgufArray(len(v), tuple(v)) if isinstance(v, list) else v
        for k, v in model.facts.pairs.items()
    } | {key: number if key != "general.architecture" else "llama"}
    found = tuple(
        Tensor(f"blk.{i}.{w.name}", w.shape, 1, w.n_bytes)
        for i, layer in enumerate(sane.layers)
        for w in layer.weights
    ) + tuple(Tensor(w.name, w.shape, 1, w.n_bytes) for w in sane.ends)
    try:
        lying = model_info([GgufHeader(3, pairs, found, "", 1 << 30, ())])
    except GgufError:
        return
    count = min(layers, lying.n_layer + 1)
    shape = replace(SHAPE, split=((GPU, count),) if count else (), n_ctx=512)

    parts = predict(lying, shape, overhead_bytes={})

    assert all(part.compute_bytes >= 0 for part in parts)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_remembered_of_another_split_is_what_drawing_anew_gives(
    data: st.DataObject,
) -> None:
    info = info_of(MODELS[data.draw(st.sampled_from(sorted(MODELS)))])
    devices = data.draw(st.permutations((GPU, OTHER, REMOTE)))
    shapes = []
    for _ in range(3):
        cuts = sorted(data.draw(st.lists(st.integers(0, info.n_layer + 1), min_size=3, max_size=3)))
        counts = (cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1])
        split = tuple((d, count) for d, count in zip(devices, counts, strict=True) if count)
        n_cpu_moe = data.draw(st.integers(0, info.n_layer))
        limits = data.draw(st.sampled_from(((), ((GPU, 1 << 16),), ((OTHER, 1 << 16),))))
        shapes.append(replace(SHAPE, split=split, n_cpu_moe=n_cpu_moe, binding_limits=limits))

    forget()
    remembered = [compute_bytes(info, s, layer_devices(info, s)) for s in shapes]

    for shape, found in zip(shapes, remembered, strict=True):
        forget()
        assert found == compute_bytes(info, shape, layer_devices(info, shape))


def moved_to_host(name: str, **changes: Any) -> int:
    """By how many bytes the host's buffer grows with `changes`, the whole model on one device."""
    info = info_of(MODELS[name])
    whole = replace(SHAPE, split=((GPU, info.n_layer + 1),), embedding=info.is_embedding)
    return reserved(info, replace(whole, **changes))[HOST] - reserved(info, whole)[HOST]


def test_without_flash_attention_vulkan_leaves_a_quantised_cache_of_many_heads_to_the_host() -> (
    None
):
    scores = 4 * 6 * 2048 * 512  # f32, 6 heads, the cells of a slot, a ubatch

    assert moved_to_host("dense", flash_attn=False) < scores / 2
    assert moved_to_host("dense", flash_attn=False, type_k="q8_0") > scores


def test_vulkan_does_not_attend_over_bf16_beside_another_type() -> None:
    assert moved_to_host("dense", type_k="bf16", type_v="bf16") == 0
    assert moved_to_host("dense", type_k="bf16") > 1 << 20


def test_what_exceeds_a_binding_is_computed_on_the_host() -> None:
    logits = 4 * 1024 * 512
    info = info_of(MODELS["normed"])
    whole = replace(SHAPE, n_ctx=1024, embedding=True, split=((GPU, info.n_layer + 1),))
    bound = replace(whole, binding_limits=((GPU, logits - 1),))

    assert reserved(info, bound)[GPU] < reserved(info, whole)[GPU]
    assert reserved(info, bound)[HOST] > logits > reserved(info, whole)[HOST]


def test_no_prefill_reserves_less_than_a_decode() -> None:
    numbers: dict[str, Number] = {
        "attention.head_count": 4, "attention.head_count_kv": [0, 0], "feed_forward_length": 224,
        "ssm.conv_kernel": 3, "ssm.inner_size": 896, "ssm.state_size": 256,
        "ssm.time_step_rank": 14, "ssm.group_count": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    info = info_of(replace(MODELS["hybrid-2"], n_embd=448, n_layer=2, numbers=numbers))
    prefill = replace(SHAPE, n_parallel=4, n_batch=64, n_ubatch=64, split=((GPU, 3),))
    decode = replace(prefill, n_batch=4, n_ubatch=4)

    assert reserved(info, prefill)[GPU] == reserved(info, decode)[GPU] > 7 << 20


NOT_CHUNKED = [  # delta nets are where layers lie on the host, in a decode's own launch too
    name for name in sorted(MODELS) if info_of(MODELS[name]).architecture not in DELTA_NETS
]


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(NOT_CHUNKED),
    n_ubatch=st.sampled_from((4, 16, 32, 64, 512)),
    n_parallel=st.integers(1, 4),
    flash=st.booleans(),
)
def test_no_launch_with_layers_on_the_host_reserves_less_than_its_decode(
    data: st.DataObject, name: str, n_ubatch: int, n_parallel: int, flash: bool
) -> None:
    model = MODELS[name]
    numbers = {k: [*v, *v, *v] if isinstance(v, list) else v for k, v in model.numbers.items()}
    info = info_of(replace(model, n_layer=3 * model.n_layer, numbers=numbers))
    first, second = (data.draw(st.integers(0, info.n_layer // 2)) for _ in range(2))
    split = tuple((d, count) for d, count in ((GPU, first), (OTHER, second)) if count)
    prompt = LaunchShape(
        n_ctx=1024 * n_parallel, n_parallel=n_parallel, n_batch=n_ubatch, n_ubatch=n_ubatch,
        split=split, flash_attn=flash, backend=data.draw(st.sampled_from(("vulkan", "cuda"))),
        n_cpu_moe=data.draw(st.integers(0, info.n_layer)),
    )  # fmt: skip
    decode = replace(prompt, n_batch=n_parallel, n_ubatch=n_parallel)

    found = reserved(info, prompt)

    assert all(found[device] >= n for device, n in reserved(info, decode).items())


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from([name for name in sorted(MODELS) if info_of(MODELS[name]).recurrent]),
    n_ubatch=st.sampled_from((4, 8, 16, 32, 64, 512)),
    n_parallel=st.integers(1, 4),
)
def test_no_launch_of_layers_with_states_reserves_less_than_its_decode(
    data: st.DataObject, name: str, n_ubatch: int, n_parallel: int
) -> None:
    model = MODELS[name]
    numbers = {k: [*v, *v, *v] if isinstance(v, list) else v for k, v in model.numbers.items()}
    info = info_of(replace(model, n_layer=3 * model.n_layer, numbers=numbers))
    first = data.draw(st.integers(0, info.n_layer))
    split = tuple((d, n) for d, n in ((OTHER, first), (GPU, info.n_layer + 1 - first)) if n)
    prompt = LaunchShape(
        n_ctx=1024 * n_parallel, n_parallel=n_parallel, n_batch=n_ubatch, n_ubatch=n_ubatch,
        split=split, backend=data.draw(st.sampled_from(("vulkan", "cuda"))),
    )  # fmt: skip
    decode = replace(prompt, n_batch=n_parallel, n_ubatch=n_parallel)

    found = reserved(info, prompt)

    assert all(found[device] >= n for device, n in reserved(info, decode).items())


def test_delta_nets_of_a_width_that_vulkan_lacks_are_done_in_chunks() -> None:
    model = MODELS["delta"]
    narrower = replace(model, numbers={**model.numbers, "ssm.inner_size": 4 * 96})
    info, wider = info_of(narrower), info_of(model)
    shape = replace(SHAPE, split=((GPU, info.n_layer + 1),))

    assert reserved(info, shape)[GPU] > 1.2 * reserved(wider, shape)[GPU]


def test_a_cache_laid_out_before_flash_attention_was_given_up_is_transposed_for_every_batch() -> (
    None
):
    info = info_of(MODELS["dense"])
    off = replace(SHAPE, flash_attn=False, split=((GPU, info.n_layer + 1),))
    gave_up = replace(off, gave_up_flash_attn=True)

    assert reserved(info, gave_up)[HOST] < reserved(info, off)[HOST]  # no index per element of V
    assert gave_up.has_plain_v


def test_nothing_is_borrowed_where_devices_are_told_not_to_help() -> None:
    info = info_of(MODELS["dense"])
    helped = replace(SHAPE, split=((GPU, 0),))
    alone = replace(helped, op_offload=False)

    assert reserved(info, helped)[GPU] > 1 << 20
    assert reserved(info, alone)[GPU] == 0
    assert reserved(info, alone)[HOST] == reserved(info, replace(alone, split=()))[HOST]


@pytest.mark.parametrize("groups", [3, 8, 1 << 20, float("nan"), float("inf"), "many"])
def test_groups_of_experts_that_cannot_be_are_estimated_or_ignored(
    groups: int | float | str,
) -> None:
    info = info_of(MODELS["latent"])
    told = (("deepseek2.expert_group_count", groups), ("deepseek2.expert_group_used_count", 1))
    odd = replace(info, digest=f"{groups}", metadata=(*info.metadata, *told))
    shape = replace(SHAPE, split=((GPU, info.n_layer + 1),))

    found = compute_bytes(odd, shape, layer_devices(odd, shape))

    assert found is None or found == reserved(info, shape)


def test_a_norm_by_mean_and_variance_takes_room_of_its_own() -> None:
    wide = replace(MODELS["dense"], n_vocab=32000)
    info = replace(info_of(wide), architecture="unheard-of", digest="rms")
    named = "unheard-of.attention.layer_norm_epsilon"
    plain = replace(info, metadata=(*info.metadata, (named, 1e-5)), digest="plain")
    shape = replace(SHAPE, split=((GPU, info.n_layer + 1),), embedding=True)

    more_bytes = reserved(plain, shape)[GPU] - reserved(info, shape)[GPU]

    assert more_bytes == pytest.approx(4 * info.n_embd * SHAPE.n_ubatch, rel=0.1)


def test_images_that_enter_several_layers_take_room_until_the_last_of_them() -> None:
    plain = replace(MODELS["dense"], architecture="qwen3vl", name="images", n_layer=24)
    deep = replace(plain, numbers={**plain.numbers, "n_deepstack_layers": 3})
    infos = [replace(info_of(model), digest=str(i)) for i, model in enumerate((plain, deep))]
    shape = replace(SHAPE, split=((REMOTE, 8), (GPU, 17)))

    (before, after) = (reserved(info, shape) for info in infos)

    part_bytes = 4 * infos[0].n_embd * SHAPE.n_ubatch
    assert after[HOST] - before[HOST] == pytest.approx(3 * part_bytes, rel=0.1)
    assert after[REMOTE] - before[REMOTE] >= 3 * part_bytes
    assert after[GPU] == pytest.approx(before[GPU], rel=0.1)


def test_a_decoder_that_is_not_causal_keeps_its_cache_and_pools_beside_its_logits() -> None:
    causal = replace(MODELS["dense"], n_vocab=32000)
    pooled = {**causal.numbers, "attention.causal": False, "pooling_type": 1}
    info, other = info_of(causal), info_of(replace(causal, numbers=pooled, name="pooled"))
    shape = replace(SHAPE, split=((GPU, info.n_layer + 1),), embedding=True)

    before, after = reserved(info, shape), reserved(other, shape)

    assert kv_cache_bytes(other, shape) == kv_cache_bytes(info, shape)
    assert after[HOST] == pytest.approx(before[HOST], rel=0.01)
    assert before[GPU] < after[GPU] < 1.1 * before[GPU]


@pytest.mark.parametrize("n_layer", [7, 25])
def test_an_encoder_with_windows_has_two_masks_and_no_logits(n_layer: int) -> None:
    numbers = {**MODELS["windows-6"].numbers, "attention.causal": False, "pooling_type": 1}
    model = replace(
        MODELS["windows-6"], architecture="gemma-embedding", numbers=numbers, n_layer=n_layer,
        n_vocab=32000,
    )  # fmt: skip
    info = info_of(model)
    shape = replace(SHAPE, n_parallel=1, split=((GPU, n_layer + 1),), embedding=True)

    found = reserved(info, shape)

    tokens, mask = SHAPE.n_ubatch, 2 * SHAPE.n_ubatch**2
    assert found[HOST] == pytest.approx(2 * mask + 2 * 4 * info.n_embd * tokens, rel=0.02)
    assert found[GPU] < 4 * info.n_vocab * tokens


PIPELINE = LaunchShape(
    n_ctx=2048, n_parallel=1, n_batch=128, n_ubatch=128, backend="vulkan",
    split=((GPU, 9), (OTHER, 8)),
)  # fmt: skip
LLAMA_1B = TinyModel(
    "llama-1B", "llama", 2048, 16,
    {"attention.layer_norm_rms_epsilon": 1e-5, "attention.head_count": 32,
     "attention.head_count_kv": 8, "feed_forward_length": 8192, "rope.dimension_count": 64},
    n_vocab=128256,
)  # fmt: skip


def test_local_devices_that_hold_all_layers_keep_inputs_for_four_batches() -> None:
    # b10434 reports 20.01 MiB for each of the two, and 14.5 where one batch is under way.
    info = info_of(LLAMA_1B)

    found = reserved(info, PIPELINE)

    assert [round(found[device] / (1 << 20), 2) for device in (GPU, OTHER)] == [20.01, 20.01]


@pytest.mark.parametrize(
    "change",
    [
        {"split": ((GPU, 9), (REMOTE, 8))},
        {"split": ((GPU, 17),)},
        {"split": ((GPU, 8), (OTHER, 8))},
        {"kv_on_host": True},
        {"on_host": ("ffn_down",)},
        {"n_cpu_moe": 1},
        {"backend": "metal"},
    ],
    ids=str,
)
def test_other_launches_work_on_one_batch_at_a_time(change: dict[str, Any]) -> None:
    shape = replace(PIPELINE, **change)
    is_whole = shape.n_gpu_layers == LLAMA_1B.n_layer + 1

    assert n_copies(PIPELINE, is_whole=True) == 4
    assert n_copies(shape, is_whole=is_whole) == 1


def test_where_attention_leaves_the_devices_every_layer_holds_four_batches() -> None:
    # Of 26 layers a few once stood for all, and two thirds of a device's buffer were missing.
    deep = replace(MODELS["dense"], n_layer=26)
    torn = replace(
        PIPELINE, split=((GPU, 14), (OTHER, 13)), type_k="bf16", n_ctx=1024, n_ubatch=256
    )

    few, many = (
        reserved(info_of(replace(deep, n_layer=n)), replace(torn, split=split))
        for n, split in ((13, ((GPU, 7), (OTHER, 7))), (26, torn.split))
    )

    assert many[GPU] > 1.5 * few[GPU]
    assert many[HOST] > 1.5 * few[HOST]


def each_drawn(info: ModelInfo) -> ModelInfo:
    """The same model, no two of its layers alike as far as can be told."""
    unlike = tuple(replace(layer, weight_bytes=i) for i, layer in enumerate(info.layers))
    return replace(info, layers=unlike, digest=f"{info.digest}, no two layers alike")


def test_where_attention_leaves_the_devices_none_of_them_stands_for_another() -> None:
    # What the host holds for the layers of each was once counted for one of three.
    info = info_of(replace(MODELS["dense"], n_layer=50))
    devices = (GPU, OTHER, DeviceId("third"), DeviceId("fourth"), DeviceId("fifth"))
    split = tuple(zip(devices, (10, 10, 10, 10, 11), strict=True))
    torn = replace(PIPELINE, split=split, type_k="bf16", n_ctx=1024, n_ubatch=256)

    assert reserved(info, torn) == reserved(each_drawn(info), torn)


def test_where_the_host_keeps_a_weight_of_every_layer_those_with_windows_are_all_drawn() -> None:
    # A few of them once stood for all, and the first device's buffer was a twelfth short.
    info = info_of(replace(MODELS["windows-6"], n_layer=60))
    split = ((GPU, 26), (OTHER, 9), (DeviceId("third"), 17))
    shape = replace(SHAPE, n_parallel=8, on_host=("ffn_down",), split=split)

    assert reserved(info, shape) == reserved(each_drawn(info), shape)


def test_an_estimate_counts_four_batches_too() -> None:
    info = info_of(LLAMA_1B)
    whole = replace(PIPELINE, n_ctx=32768, n_ubatch=512)
    alone = replace(whole, split=((GPU, 17),))

    more = device_compute_bytes(info, whole) - device_compute_bytes(info, alone)

    mask, row = 2 * 32768 * 512, 4 * 2048 * 512
    assert more == 3 * (mask + row)


def test_a_gate_within_the_feed_forward_network_is_known_by_its_width() -> None:
    # chatglm and others have it; by its name alone phi3's was once known.
    info = info_of(replace(MODELS["dense"], architecture="phi3"))
    other = replace(info, architecture="grault", digest="grault")
    shape = replace(SHAPE, split=((GPU, info.n_layer + 1),))

    weights = [weight for layer in info.layers for weight in layer.weights]

    assert {w.shape[1] for w in weights if w.name == "ffn_up.weight"} == {2 * info.layers[0].n_ff}
    assert reserved(other, shape)[GPU] == pytest.approx(reserved(info, shape)[GPU], rel=0.05)


def test_the_outputs_norm_stays_on_its_device_though_the_matrix_cannot() -> None:
    # b10434 reports 0.10 MiB on the second of two devices, which holds nothing but that norm.
    numbers: dict[str, Number] = {
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.head_count": 32,
        "attention.head_count_kv": 8, "attention.key_length": 128, "attention.value_length": 128,
        "feed_forward_length": 9728,
    }  # fmt: skip
    info = info_of(TinyModel("qwen3-4b", "qwen3", 2560, 36, numbers, n_vocab=151936))
    shape = LaunchShape(
        n_ctx=16384, n_parallel=2, n_batch=512, n_ubatch=512, backend="vulkan",
        split=((GPU, 36), (OTHER, 1)), binding_limits=((GPU, 128 << 20), (OTHER, 128 << 20)),
    )  # fmt: skip

    found = reserved(info, shape)

    assert round(found[OTHER] / (1 << 20), 2) == 0.10


def test_logits_stay_on_their_device_though_the_norm_before_them_does_not() -> None:
    # b10434 reports 0.50 MiB on a remote device with a tied output, of 8 slots and 16000 tokens.
    info = info_of(replace(MODELS["dense"], n_vocab=16000, is_tied=True))
    shape = replace(SHAPE, n_parallel=8, n_ctx=8192, split=((REMOTE, 1),))

    found = reserved(info, replace(shape, on_host=("output=", "output_norm")))

    assert found[REMOTE] >= 4 * 16000 * 8
    assert found[REMOTE] == pytest.approx(reserved(info, shape)[REMOTE], rel=0.05)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("latent", {"on_host": ("attn_k",)}),
        ("latent", {"kv_on_host": True}),
        ("delta-next", {"n_cpu_moe": 14}),
        ("state-1", {}),
        ("delta", {"kv_on_host": True, "n_ctx": 1024, "n_parallel": 4, "n_ubatch": 200}),
    ],
)
def test_on_a_remote_device_no_few_layers_stand_for_those_that_go_to_the_host_and_back(
    name: str, change: dict[str, Any]
) -> None:
    # A few once stood for all of 27 of deepseek2's, and the device's buffer was a fifth short.
    info = info_of(replace(MODELS[name], n_layer=27))
    common: dict[str, Any] = {"n_ctx": 1280, "n_parallel": 5, "split": ((REMOTE, 11),)}
    shape = replace(SHAPE, **(common | change))

    assert reserved(info, shape) == reserved(each_drawn(info), shape)


def test_norms_of_small_batches_lie_with_their_layer() -> None:
    # b10434 reports 0.02 MiB on a device that helps with large products alone; 2.14 was predicted.
    info = info_of(MODELS["delta"])
    shape = replace(SHAPE, n_batch=8, n_ubatch=8, n_ctx=2048, split=((GPU, 0),))

    assert round(reserved(info, shape)[GPU] / (1 << 20), 2) == 0.02


def test_delta_nets_take_single_steps_where_the_one_operation_would_leave_its_layer() -> None:
    # Each slot's one token was once padded to a chunk of 64, as two tokens are.
    info = info_of(MODELS["delta"])
    shape = replace(
        SHAPE, n_batch=4, n_ubatch=4, n_parallel=4, n_ctx=1024, kv_on_host=True,
        split=((REMOTE, 1), (GPU, info.n_layer)), on_host=(r"blk\.0\.",),
    )  # fmt: skip

    found = reserved(info, shape)
    chunked = reserved(info, replace(shape, n_batch=8, n_ubatch=8))

    assert max(found.values()) < max(chunked.values()) / 2
