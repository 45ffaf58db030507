from typing import Any

import pytest
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.graph.likeness import Known, alike_but_for_masks, has_turns, masks_alone_differ
from planners.hardware import DeviceId
from tests.fakes.tiny_models import info_of, tiny_models

MODELS = {model.name: info_of(model) for model in tiny_models()}
SHAPE = LaunchShape(n_ctx=4096, n_parallel=2, n_batch=512, n_ubatch=512, backend="vulkan")


@pytest.mark.parametrize("name", ["windows-2", "windows-6", "sinks"])
def test_layers_that_differ_in_a_window_alone_are_alike_but_for_their_masks(name: str) -> None:
    known = Known(MODELS[name])

    assert has_turns(known)
    assert {*(alike_but_for_masks(known) or ())} == {(0, False)}


@pytest.mark.parametrize("name", ["dense", "state-2", "hybrid-2", "hybrid-3", "delta"])
def test_layers_of_one_kind_or_with_states_are_not_told_apart_by_masks(name: str) -> None:
    assert alike_but_for_masks(Known(MODELS[name])) is None


@pytest.mark.parametrize(
    ("changes", "is_so"),
    [
        ({}, True),
        ({"flash_attn": False}, False),
        ({"kv_on_host": True}, False),
        ({"binding_limits": ((DeviceId("gpu"), 1 << 27),)}, False),
        ({"on_host": ("ffn_down",)}, False),
        ({"type_k": "bf16"}, False),
        ({"type_k": "bf16", "type_v": "bf16"}, True),
        ({"type_k": "bf16", "backend": "cuda"}, True),
    ],
    ids=str,
)
def test_masks_alone_differ_where_devices_attend_over_caches_of_their_own(
    changes: dict[str, Any], is_so: bool
) -> None:
    assert masks_alone_differ(MODELS["windows-6"], replace(SHAPE, **changes)) == is_so


def test_masks_do_not_alone_differ_where_vulkan_lacks_heads_of_such_a_width() -> None:
    info = MODELS["windows-6"]
    odd = tuple(replace(layer, k_width=layer.k_width + 4) for layer in info.layers)

    assert not masks_alone_differ(replace(info, layers=odd), SHAPE)
    assert masks_alone_differ(replace(info, layers=odd), replace(SHAPE, backend="cuda"))


def test_two_models_with_one_digest_are_one_and_without_a_digest_none_are() -> None:
    info = MODELS["dense"]
    nameless = replace(info, digest="")

    assert Known(info) == Known(replace(info))
    assert Known(nameless) != Known(replace(nameless))
