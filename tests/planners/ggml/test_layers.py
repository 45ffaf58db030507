import pytest
from msgspec.structs import replace

from planners.ggml.header import read_header
from planners.ggml.layers import Facts, layers, sliding_window
from planners.gguf import parse_model
from planners.graph.kv_cache import LaunchShape, kv_cache_bytes
from planners.model import LayerInfo, LayerKind
from tests.fakes.gguf_writer import Hole, Value, file_size, gguf_header
from tests.fakes.machines import LLAMA_8B

HOLE = (Hole("blk.0.w.weight", (4, 4)),)
SSM: dict[str, Value] = {"ssm__conv_kernel": 4}
F, S, R, N = LayerKind.FULL, LayerKind.SWA, LayerKind.RECURRENT, LayerKind.NONE


def found(arch: str, n_layer: int, **keys: Value) -> tuple[LayerInfo, ...]:
    pairs: dict[str, Value] = {"general.architecture": arch}
    pairs |= {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
    header = gguf_header(pairs, HOLE)
    facts = Facts(read_header(header, file_bytes=file_size(header, HOLE)), arch)
    return layers(facts, ((),) * n_layer, n_embd=256)


@pytest.mark.parametrize(
    ("arch", "n_layer", "keys", "kinds"),
    [
        pytest.param("llama", 2, {"attention__head_count": 4}, [F, F], id="dense"),
        pytest.param(
            "gemma3", 7, {"attention__sliding_window": 512}, [S, S, S, S, S, F, S], id="period of 6"
        ),
        pytest.param("gemma3", 2, {}, [F, F], id="gemma3 without a window"),
        pytest.param(
            "gemma4",
            4,
            {"attention__sliding_window": 512, "attention__sliding_window_pattern": [1, 0]},
            [S, F, S, F],
            id="pattern in the file",
        ),
        pytest.param(
            "llama", 2, {"attention__sliding_window": 4096}, [F, F], id="a window llama ignores"
        ),
        pytest.param("smallthinker", 4, {"attention__sliding_window": 9}, [F, S, S, S], id="first"),
        pytest.param("mamba2", 2, {"attention__head_count": 0}, [R, R], id="recurrent"),
        pytest.param(
            "granitehybrid", 3, {"attention__head_count_kv": [0, 2, 0]}, [R, F, R], id="by heads"
        ),
        pytest.param(
            "nemotron_h",
            3,
            {"attention__head_count_kv": [0, 0, 2], "feed_forward_length": [0, 64, 0]},
            [R, N, F],
            id="by feed-forward width",
        ),
        pytest.param("qwen3next", 5, {}, [R, R, R, F, R], id="every fourth attends"),
        pytest.param("bert", 2, {}, [N, N], id="encoder"),
        pytest.param("llama", 2, {"attention__causal": False}, [F, F], id="not causal"),
        pytest.param("gemma3n", 3, {"attention__shared_kv_layers": 1}, [F, F, N], id="shared KV"),
        pytest.param(
            "exaone4", 2, {"attention__sliding_window": 9, "block_count": 2}, [F, F], id="small"
        ),
        pytest.param(
            "exaone4",
            4,
            {"attention__sliding_window": 9, "block_count": 64},
            [S, S, S, F],
            id="32B",
        ),
        pytest.param("llama4", 5, {}, [S, S, S, F, S], id="llama4 has its window always"),
        pytest.param(
            "llama4", 2, {"attention__sliding_window": 0}, [F, F], id="or is told of none"
        ),
        pytest.param("glm4moe", 3, {"nextn_predict_layers": 1}, [F, F, N], id="nextn"),
    ],
)
def test_the_kind_of_each_layer(
    arch: str, n_layer: int, keys: dict[str, Value], kinds: list[LayerKind]
) -> None:
    keys = {"attention__head_count": 4} | keys

    assert [layer.kind for layer in found(arch, n_layer, **keys)] == kinds


@pytest.mark.parametrize(
    ("arch", "keys", "turns"),
    [
        ("llama", {}, [True] * 4),
        ("smollm3", {}, [True, True, True, False]),
        ("exaone4", {"attention__sliding_window": 9, "block_count": 64}, [True] * 3 + [False]),
        ("exaone4", {"block_count": 4}, [True] * 4),
        ("cohere2", {"attention__sliding_window": 9}, [True] * 3 + [False]),
        ("llama4", {}, [True, True, True, False]),
        ("llama4", {"attention__sliding_window": 0}, [True] * 4),
    ],
)
def test_some_layers_know_no_positions(
    arch: str, keys: dict[str, Value], turns: list[bool]
) -> None:
    keys = {"attention__head_count": 4, **keys}

    assert [layer.has_rope for layer in found(arch, 4, **keys)] == turns


def test_widths_count_all_kv_heads() -> None:
    (layer,) = found("llama", 1, attention__head_count=8, attention__head_count_kv=2)

    assert (layer.k_width, layer.v_width, layer.q_width) == (2 * 32, 2 * 32, 8 * 32)


def test_head_widths_in_the_file_win() -> None:
    (layer,) = found(
        "qwen3",
        1,
        attention__head_count=8,
        attention__head_count_kv=2,
        attention__key_length=128,
        attention__value_length=64,
    )

    assert (layer.k_width, layer.v_width) == (256, 128)


def test_mla_keeps_one_latent_row_and_no_v() -> None:
    (layer,) = found(
        "deepseek2",
        1,
        attention__head_count=16,
        attention__head_count_kv=16,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
    )

    assert (layer.k_width, layer.v_width, layer.n_head_kv) == (576, 0, 1)


@pytest.mark.parametrize(
    ("arch", "keys", "width"),
    [
        pytest.param(
            "mamba2",
            {**SSM, "ssm__inner_size": 768, "ssm__state_size": 128, "ssm__group_count": 1},
            3 * (768 + 256) + 768 * 128,
            id="mamba-2",
        ),
        pytest.param(
            "mamba",
            {**SSM, "ssm__inner_size": 768, "ssm__state_size": 16},
            3 * 768 + 768 * 16,
            id="mamba-1",
        ),
        pytest.param(
            "lfm2", {"shortconv__l_cache": 3, "attention__head_count_kv": [0]}, 512, id="lfm2"
        ),
        pytest.param("rwkv7", {"wkv__head_size": 64}, 2 * 256 + 256 * 64, id="rwkv"),
    ],
)
def test_the_recurrent_state_of_each_layer(arch: str, keys: dict[str, Value], width: int) -> None:
    (layer,) = found(arch, 1, **({"attention__head_count": 4} | keys))

    assert (layer.kind, layer.state_width) == (R, width)


def test_falcon_h1_keeps_both_in_every_layer() -> None:
    keys = {"attention__head_count": 4, "ssm__inner_size": 64, "ssm__state_size": 8}

    (layer,) = found("falcon-h1", 1, **keys, **SSM)

    assert layer.kind is F
    assert layer.state_width == 3 * 64 + 64 * 8


def test_an_array_that_is_too_short_is_stretched_and_told() -> None:
    header = gguf_header({"llama.attention.head_count": [4]}, HOLE)
    facts = Facts(read_header(header, file_bytes=file_size(header, HOLE)), "llama")

    assert [layer.n_head for layer in layers(facts, ((),) * 3, n_embd=256)] == [4, 4, 4]
    assert "1 items for 3 layers" in facts.warnings[0]


def test_a_chunk_counts_as_a_window() -> None:
    header = gguf_header({"llama4.attention.chunk_size": 8192}, HOLE)
    facts = Facts(read_header(header, file_bytes=file_size(header, HOLE)), "llama4")

    assert sliding_window(facts) == 8192


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("attention.head_count", "llama.attention.head_count is missing: taken to be 1"),
        ("feed_forward_length", "llama.feed_forward_length is missing: taken to be 96"),
    ],
)
def test_a_missing_count_is_taken_from_the_tensors_and_told(missing: str, told: str) -> None:
    pairs: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 256,
        "llama.embedding_length": 64,
        "llama.attention.head_count": 2,
        "llama.feed_forward_length": 96,
    }
    del pairs[f"llama.{missing}"]
    holes = (Hole("blk.0.attn_q.weight", (64, 64)), Hole("blk.0.ffn_up.weight", (64, 96)))
    header = gguf_header(pairs, holes)

    info = parse_model(header, file_bytes=file_size(header, holes))

    assert info.warnings == (told,)
    assert info.layers[0].n_ff == 96
    assert info.layers[0].k_width == 64


@pytest.mark.parametrize(("arch", "width"), [("deepseek32", 64), ("deepseek2", 0)])
def test_an_indexer_keeps_a_key_of_its_own_per_token(arch: str, width: int) -> None:
    (layer,) = found(
        arch,
        1,
        attention__head_count=16,
        attention__key_length=96,
        attention__key_length_mla=96,
        attention__value_length=64,
        attention__indexer__key_length=64,
    )
    shape = LaunchShape(n_ctx=8192, n_parallel=2, n_batch=64, n_ubatch=64, kv_unified=True)
    info = replace(LLAMA_8B, layers=(layer,) * 7)

    # b10434 reports 17.50 MiB for seven such layers of deepseek32.
    assert layer.index_width == width
    assert kv_cache_bytes(info, shape) == 7 * 8192 * 2 * (96 + width)


def test_an_indexer_that_keeps_v_has_none_in_its_first_dense_layers() -> None:
    dense, sparse = found(
        "minimax-m3",
        2,
        leading_dense_block_count=1,
        attention__head_count=16,
        attention__head_count_kv=2,
        attention__key_length=32,
        attention__value_length=32,
        attention__indexer__key_length=64,
    )
    shape = LaunchShape(n_ctx=1024, n_parallel=1, n_batch=64, n_ubatch=64)

    # b10434 reports 0.94 MiB for three such layers of one head, all of them indexed.
    rows = [
        kv_cache_bytes(replace(LLAMA_8B, layers=(layer,)), shape) // (1024 * 2)
        for layer in (dense, sparse)
    ]
    assert rows == [2 * 32 + 2 * 32, 2 * 32 + 2 * 32 + 64 + 32]


@pytest.mark.parametrize("arch", ["dream", "llada", "llada-moe", "rnd1"])
def test_diffusers_keep_no_token_and_yet_put_out_text(arch: str) -> None:
    layers_found = found(arch, 2, attention__head_count=4, attention__sliding_window=128)
    info = replace(LLAMA_8B, architecture=arch, layers=layers_found)

    assert {layer.kind for layer in layers_found} == {LayerKind.NONE}
    assert info.keeps_nothing
    assert not info.is_encoder
    assert not info.is_embedding


@pytest.mark.parametrize(
    ("arch", "kinds"),
    [
        ("exaone-moe", "SSSF"), ("mellum", "SSSF"), ("muse-glimmer", "SSSF"),
        ("cohere2moe", "FSSS"), ("laguna", "FSSS"), ("smallthinker", "FSSS"),
    ],
)  # fmt: skip
def test_windows_come_in_the_architectures_own_period(arch: str, kinds: str) -> None:
    layers_found = found(arch, 4, attention__head_count=4, attention__sliding_window=128)

    assert "".join(layer.kind.name[0] for layer in layers_found) == kinds
