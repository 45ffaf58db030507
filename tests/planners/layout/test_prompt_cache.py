from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.layout.prompt_cache import PromptCache, prompt_cache
from planners.model import LayerKind
from planners.sizes import GIB, MIB
from tests.fakes.machines import LLAMA_8B, model_info

SHAPE = LaunchShape(n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512)
RECURRENT = model_info(kinds=(LayerKind.RECURRENT,), state_width=1 << 20)


def test_a_fourth_of_what_is_spare_less_one_state() -> None:
    cache = prompt_cache(LLAMA_8B, SHAPE, spare_bytes=8 * GIB)

    assert cache == PromptCache(cache_ram_mib=1536, ctx_checkpoints=0, host_bytes=2 * GIB)


def test_never_more_than_two_gib() -> None:
    assert prompt_cache(LLAMA_8B, SHAPE, spare_bytes=500 * GIB).cache_ram_mib == 2048


def test_never_more_than_a_few_contexts() -> None:
    small = replace(SHAPE, n_ctx=256)

    assert prompt_cache(LLAMA_8B, small, spare_bytes=500 * GIB).cache_ram_mib == 4 * 32


def test_no_room_is_no_cache() -> None:
    assert prompt_cache(LLAMA_8B, SHAPE, spare_bytes=-GIB) == PromptCache(0, 0, 0)
    assert prompt_cache(LLAMA_8B, SHAPE, spare_bytes=GIB) == PromptCache(0, 0, 0)


def test_an_embedding_server_saves_no_prompts() -> None:
    shape = replace(SHAPE, embedding=True)

    assert prompt_cache(LLAMA_8B, shape, spare_bytes=99 * GIB) == PromptCache(0, 0, 0)


def test_checkpoints_of_recurrent_models_are_counted_in_bytes() -> None:
    one = 32 * (1 << 20) * 4  # 32 layers, f32

    assert prompt_cache(RECURRENT, SHAPE, spare_bytes=8 * 5 * one).ctx_checkpoints == 5
    assert prompt_cache(RECURRENT, SHAPE, spare_bytes=0).ctx_checkpoints == 0
    assert prompt_cache(RECURRENT, SHAPE, spare_bytes=900 * GIB).ctx_checkpoints == 32


@given(
    spare_bytes=st.integers(-GIB, 200 * GIB),
    n_ctx=st.sampled_from([256, 4096, 131072]),
    n_parallel=st.integers(1, 8),
    kind=st.sampled_from([LayerKind.FULL, LayerKind.SWA, LayerKind.RECURRENT]),
)
def test_filling_all_of_it_leaves_most_of_what_was_spare(
    spare_bytes: int, n_ctx: int, n_parallel: int, kind: LayerKind
) -> None:
    info = model_info(kinds=(kind,), state_width=1 << 18)
    shape = replace(SHAPE, n_ctx=n_ctx * n_parallel, n_parallel=n_parallel)

    cache = prompt_cache(info, shape, spare_bytes=spare_bytes)

    assert 0 <= cache.host_bytes <= max(0, spare_bytes) * 3 // 8 + MIB
