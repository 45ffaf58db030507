from typing import Any

import pytest
from msgspec.structs import replace

from planners.graph.kv_cache import (
    LaunchShape,
    checkpoint_bytes,
    kv_cache_bytes,
    padded_context,
    state_bytes,
)
from planners.model import LayerKind
from planners.sizes import MIB
from tests.fakes.machines import LLAMA_8B, model_info

SHAPE = LaunchShape(n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512)
WINDOWS = model_info(n_layer=2, kinds=(LayerKind.SWA, LayerKind.FULL))
ROW_BYTES = 2 * 1024 * 2  # K and V of one layer and token, f16


def test_full_attention_keeps_every_token_of_every_slot() -> None:
    assert kv_cache_bytes(LLAMA_8B, SHAPE) == 512 * MIB
    assert kv_cache_bytes(LLAMA_8B, replace(SHAPE, n_ctx=8192, n_parallel=2)) == 1024 * MIB


@pytest.mark.parametrize("width", ["index_width", "index_v_width", "k_width", "v_width"])
def test_layers_that_differ_in_any_width_keep_bytes_of_their_own(width: str) -> None:
    layers = [*WINDOWS.layers]
    alike = replace(WINDOWS, layers=(layers[1], layers[1]))
    wider = replace(layers[1], **{width: getattr(layers[1], width) + 64})
    unlike = replace(WINDOWS, layers=(layers[1], wider))

    more_bytes = 64 * 2 * SHAPE.n_ctx  # of one of both, f16

    assert kv_cache_bytes(unlike, SHAPE) == kv_cache_bytes(alike, SHAPE) + more_bytes


@pytest.mark.parametrize(
    ("type_k", "type_v", "share"),
    [
        ("f32", "f32", 2.0),
        ("q8_0", "q8_0", 34 / 64),
        ("q4_0", "q4_0", 18 / 64),
        ("f16", "q8_0", 49 / 64),
    ],
)
def test_the_types_of_the_cache_scale_it(type_k: str, type_v: str, share: float) -> None:
    shape = replace(SHAPE, type_k=type_k, type_v=type_v)

    assert kv_cache_bytes(LLAMA_8B, shape) == int(512 * MIB * share)


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        pytest.param({}, 1536, id="window and ubatch, padded"),
        pytest.param({"n_ctx": 1024}, 1024, id="never more than the context"),
        pytest.param({"swa_full": True}, 4096, id="whole"),
        pytest.param({"n_ctx": 8192, "n_parallel": 2}, 2 * 1536, id="one window per slot"),
        pytest.param(
            {"n_ctx": 8192, "n_parallel": 2, "kv_unified": True}, 2560, id="one cache for all"
        ),
    ],
)
def test_sliding_windows_keep_what_they_can_still_see(changes: dict[str, Any], cells: int) -> None:
    shape = replace(SHAPE, **changes)

    assert kv_cache_bytes(WINDOWS, shape) == (cells + shape.n_ctx) * ROW_BYTES


def test_recurrent_state_grows_with_slots_and_not_with_context() -> None:
    info = model_info(n_layer=3, kinds=(LayerKind.RECURRENT,), state_width=1000)

    assert state_bytes(info, replace(SHAPE, n_parallel=2)) == 3 * 1000 * 4 * 2
    assert kv_cache_bytes(info, SHAPE) == 0


def test_v_is_padded_to_the_widest_layer_without_flash_attention() -> None:
    narrow = replace(LLAMA_8B.layers[0], v_width=512)
    info = replace(LLAMA_8B, layers=(narrow, LLAMA_8B.layers[1]))

    with_flash = kv_cache_bytes(info, SHAPE)
    without = kv_cache_bytes(info, replace(SHAPE, flash_attn=False))

    assert without - with_flash == 4096 * 512 * 2


@pytest.mark.parametrize(
    ("kinds", "changes", "expected"),
    [
        pytest.param((LayerKind.FULL,), {}, 0, id="full attention makes none"),
        pytest.param((LayerKind.RECURRENT,), {}, 4000, id="recurrent state"),
        pytest.param((LayerKind.SWA,), {}, 1536 * ROW_BYTES, id="windows"),
        pytest.param((LayerKind.SWA,), {"swa_full": True}, 0, id="whole windows make none"),
    ],
)
def test_a_checkpoint_holds_what_cannot_be_cut_back(
    kinds: tuple[LayerKind, ...], changes: dict[str, Any], expected: int
) -> None:
    info = model_info(n_layer=1, kinds=kinds, state_width=1000)

    assert checkpoint_bytes(info, replace(SHAPE, **changes)) == expected


def test_contexts_come_in_steps_of_256() -> None:
    assert [padded_context(n) for n in (1, 256, 257, 3000)] == [256, 256, 512, 3072]
