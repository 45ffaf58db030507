"""Writes small loadable GGUF files of many architectures: random weights, the same every time.

The engine loads them, reserves its buffers and decodes noise. Shapes are told by metadata alone;
`tests.fakes.recipes` knows which tensors follow.
"""

import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from msgspec import Struct

from planners.ggml.header import GgufArray, GgufHeader, Scalar, Tensor
from planners.ggml.layers import is_expert
from planners.ggml.types import TENSOR_TYPES
from planners.gguf import model_info
from planners.model import ModelInfo
from tests.fakes.gguf_writer import pair
from tests.fakes.model_facts import Facts
from tests.fakes.recipes import BERTS, Shape, is_f32, n_elements, tensors

Number = int | float | bool | Sequence[int]

N_VOCAB = 1024
N_CTX = 8192
_F32, _F16, _Q8_0, _Q4_0 = 0, 1, 8, 2
_ALIGNMENT = 32
_BYTE_TOKENS = 3 + 256


class TinyModel(Struct, frozen=True):
    """A model by its metadata, without the architecture's prefix."""

    name: str
    architecture: str
    n_embd: int
    n_layer: int
    numbers: Mapping[str, Number]
    is_tied: bool = True
    type_number: int = _Q8_0
    n_vocab: int = N_VOCAB
    n_ctx: int = N_CTX
    expert_type_number: int | None = None
    """Of routed experts, where it is another than the rest's."""
    mixed_types: tuple[int, ...] = ()
    """One of these for each tensor by its name, instead of all of that."""

    @property
    def facts(self) -> Facts:
        """What the recipes read."""
        own = {
            "context_length": self.n_ctx,
            "embedding_length": self.n_embd,
            "block_count": self.n_layer,
            **self.numbers,
        }
        pairs = {f"{self.architecture}.{key}": value for key, value in own.items()}
        return Facts({"general.architecture": self.architecture, **pairs}, self.n_vocab)


def info_of(model: TinyModel, *, without: str = "") -> ModelInfo:
    """What the file would tell, without the file; `without`: part of the names of lost tensors."""
    pairs: dict[str, Scalar | GgufArray] = {
        key: GgufArray(len(value), tuple(value)) if isinstance(value, list) else value
        for key, value in model.facts.pairs.items()
    }
    pairs["tokenizer.ggml.tokens"] = GgufArray(model.n_vocab, None)
    found = tuple(
        Tensor(name, shape, 1, 2 * n_elements(shape))
        for name, shape in tensors(model.facts, is_tied=model.is_tied)
        if not without or without not in name
    )
    return model_info([GgufHeader(3, pairs, found, repr((model, without)), 1 << 30, ())])


def write(model: TinyModel, folder: Path) -> Path:
    """The model as a file in `folder`."""
    path = folder / f"{model.name}.gguf"
    chance = random.Random(model.name)
    entries, offset = [], 0
    for name, shape, number, n_bytes in typed_tensors(model):
        entries.append((name, shape, number, offset, n_bytes))
        offset += _padded(n_bytes)
    pairs = [*_metadata(model), *tokenizer(model)]
    head = b"".join((
        b"GGUF", struct.pack("<IQQ", 3, len(entries), len(pairs)), *pairs,
        *(_entry(name, shape, number, at) for name, shape, number, at, _ in entries),
    ))  # fmt: skip
    with path.open("wb") as stream:
        stream.write(head + b"\0" * (_padded(len(head)) - len(head)))
        for name, _, number, _, n_bytes in entries:
            _write_weights(stream, name, number, n_bytes, chance)
    return path


def typed_tensors(model: TinyModel) -> list[tuple[str, Shape, int, int]]:
    """Each tensor's name, shape, type and bytes, in the file's order."""
    return [
        (name, shape, number, TENSOR_TYPES[number].row_bytes(n_elements(shape)))
        for name, shape in tensors(model.facts, is_tied=model.is_tied)
        for number in (_type_of(model, name, shape),)
    ]


def _type_of(model: TinyModel, name: str, shape: Shape) -> int:
    if is_f32(name, shape):
        return _F32
    number = model.type_number
    if model.mixed_types:
        number = model.mixed_types[crc32(name.encode()) % len(model.mixed_types)]
    elif model.expert_type_number is not None and is_expert(name):
        number = model.expert_type_number
    return number if shape[0] % TENSOR_TYPES[number].block == 0 else _F16


def _write_weights(
    stream: BinaryIO, name: str, number: int, n_bytes: int, chance: random.Random
) -> None:
    stream.write(_weights(name, number, n_bytes, chance) + b"\0" * (_padded(n_bytes) - n_bytes))


def _weights(name: str, number: int, n_bytes: int, chance: random.Random) -> bytes:
    if number == _F32:
        value = -1.0 if ".ssm_a" in name else 1.0 if "norm" in name else 0.01
        return struct.pack("<f", value) * (n_bytes // 4)
    if number == _F16:
        return b"".join(struct.pack("<e", chance.uniform(-0.05, 0.05)) for _ in range(64)) * (
            n_bytes // 128
        ) + b"\0" * (n_bytes % 128)
    kind = TENSOR_TYPES[number]
    scale = struct.pack("<e", 0.002 if number == _Q8_0 else 0.02)
    quants = chance.randbytes(kind.block_bytes - len(scale))
    return (scale + quants) * (n_bytes // kind.block_bytes)


def _metadata(model: TinyModel) -> list[bytes]:
    told = [_text_pair("general.architecture", model.architecture)]
    # By the name of phi-3 the engine would look for its vocabulary.
    told.append(_text_pair("general.name", model.name.replace("phi3", "phi")))
    for key, value in model.facts.pairs.items():
        if key != "general.architecture":
            told.append(pair(key, _number(value)))
    return told


def _number(value: Number) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case _:
            body = b"".join(struct.pack("<i", item) for item in value)
            return struct.pack("<IIQ", 9, 5, len(value)) + body


def tokenizer(model: TinyModel) -> list[bytes]:
    """The pairs of a small vocabulary: word pieces for BERTs, else bytes and made-up words."""
    if model.architecture in BERTS:
        return _word_pieces(model)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"▁w{i}" for i in range(model.n_vocab - len(tokens))]
    types = [2, 3, 3, *[6] * 256, *[1] * (model.n_vocab - _BYTE_TOKENS)]
    return [
        _text_pair("tokenizer.ggml.model", "llama"),
        pair("tokenizer.ggml.tokens", _texts(tokens)),
        pair("tokenizer.ggml.scores", _floats([0.0] * len(tokens))),
        pair("tokenizer.ggml.token_type", _number(types)),
        *(pair(f"tokenizer.ggml.{key}_token_id", _number(i))
          for i, key in enumerate(("unknown", "bos", "eos"))),
    ]  # fmt: skip


def _word_pieces(model: TinyModel) -> list[bytes]:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [mark + chr(code) for mark in ("▁", "") for code in range(33, 127)]
    tokens += [f"▁w{i}" for i in range(model.n_vocab - len(tokens))]
    types = [*[3] * 5, *[1] * (len(tokens) - 5)]
    ids = {"padding": 0, "unknown": 1, "cls": 2, "bos": 2, "seperator": 3, "eos": 3, "mask": 4}
    return [
        _text_pair("tokenizer.ggml.model", "bert"),
        pair("tokenizer.ggml.tokens", _texts(tokens)),
        pair("tokenizer.ggml.token_type", _number(types)),
        pair("tokenizer.ggml.token_type_count", _number(2)),
        *(pair(f"tokenizer.ggml.{key}_token_id", _number(i)) for key, i in ids.items()),
    ]


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _text_pair(key: str, value: str) -> bytes:
    return pair(key, struct.pack("<I", 8) + _text(value))


def _texts(items: Sequence[str]) -> bytes:
    return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(_text(item) for item in items)


def _floats(items: Sequence[float]) -> bytes:
    return struct.pack(f"<IIQ{len(items)}f", 9, 6, len(items), *items)


def _entry(name: str, shape: Shape, number: int, offset: int) -> bytes:
    lengths = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _text(name) + lengths + struct.pack("<IQ", number, offset)


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


_RMS = {"attention.layer_norm_rms_epsilon": 1e-5}
_LN = {"attention.layer_norm_epsilon": 1e-5}


def _heads(n_head: int, n_kv: Number, width: int | None = None) -> dict[str, Number]:
    told: dict[str, Number] = {"attention.head_count": n_head, "attention.head_count_kv": n_kv}
    if width is not None:
        told |= {f"attention.{part}_length": width for part in ("key", "value")}
        told["rope.dimension_count"] = width
    return told


def _ssm(inner: int, state: int, rank: int, groups: int | None = None) -> dict[str, Number]:
    told: dict[str, Number] = {
        "ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state,
        "ssm.time_step_rank": rank,
    }  # fmt: skip
    return told if groups is None else told | {"ssm.group_count": groups}


def _moe(count: int, used: int, width: int) -> dict[str, Number]:
    return {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": width}


def _every(n_layer: int, period: int, at: int, value: int) -> list[int]:
    return [value if i % period == at else 0 for i in range(n_layer)]


def tiny_models() -> tuple[TinyModel, ...]:
    """One of each: dense, sliding windows, MLA, experts, recurrent, hybrid, encoder."""
    delta = _RMS | _heads(4, 2, 128) | _ssm(512, 128, 4, 2) | {
        "feed_forward_length": 768, "rope.dimension_count": 32}  # fmt: skip
    sections = {"rope.dimension_sections": [8, 8, 0, 0]}
    bert = _LN | {"attention.head_count": 6, "feed_forward_length": 1024,
                  "attention.causal": False, "pooling_type": 1}  # fmt: skip
    return (
        TinyModel("dense", "llama", 384, 5, _RMS | _heads(6, 2)
                  | {"feed_forward_length": 1024, "rope.dimension_count": 64}),
        TinyModel("biased", "qwen2", 384, 4, _RMS | _heads(6, 2) | {"feed_forward_length": 1280}),
        TinyModel("normed", "qwen3", 256, 4, _RMS | _heads(8, 4, 64)
                  | {"feed_forward_length": 1024}, is_tied=False),
        TinyModel("windows-2", "gemma2", 256, 6, _RMS | _heads(4, 2, 64)
                  | {"feed_forward_length": 1024, "attention.sliding_window": 512,
                     "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
        TinyModel("windows-6", "gemma3", 256, 7, _RMS | _heads(4, 1, 128)
                  | {"feed_forward_length": 768, "attention.sliding_window": 512}),
        TinyModel("sinks", "gpt-oss", 384, 4, _RMS | _heads(6, 2, 64) | _moe(8, 4, 256)
                  | {"feed_forward_length": 256, "attention.sliding_window": 128}, is_tied=False),
        TinyModel("experts", "qwen3moe", 256, 4, _RMS | _heads(8, 2, 64) | _moe(8, 2, 256)
                  | {"feed_forward_length": 512}, is_tied=False),
        TinyModel("mixture", "llama", 256, 4, _RMS | _heads(4, 2)
                  | {"expert_count": 6, "expert_used_count": 2, "feed_forward_length": 384,
                     "rope.dimension_count": 64}),
        TinyModel("latent", "deepseek2", 384, 4, _RMS | _moe(8, 2, 192) | {
            "attention.head_count": 4, "attention.head_count_kv": 1,
            "attention.key_length": 256 + 32, "attention.value_length": 256,
            "attention.key_length_mla": 96, "attention.value_length_mla": 64,
            "rope.dimension_count": 32, "attention.q_lora_rank": 128,
            "attention.kv_lora_rank": 256, "feed_forward_length": 768, "expert_shared_count": 2,
            "leading_dense_block_count": 1, "expert_weights_scale": 1.0}),
        TinyModel("state-1", "mamba", 256, 5, _RMS | _ssm(512, 16, 16)
                  | {"attention.head_count": 0, "feed_forward_length": 0}),
        TinyModel("state-2", "mamba2", 256, 5, _RMS | _ssm(512, 128, 8, 1)
                  | {"attention.head_count": 0, "feed_forward_length": 0}),
        TinyModel("hybrid-1", "jamba", 256, 6, _RMS | _heads(4, _every(6, 4, 2, 2))
                  | _ssm(512, 16, 16) | {"feed_forward_length": 768}),
        TinyModel("hybrid-2", "granitehybrid", 256, 6, _RMS | _heads(4, _every(6, 4, 3, 2))
                  | _ssm(512, 128, 8, 1) | {"feed_forward_length": 768}),
        TinyModel("hybrid-3", "nemotron_h", 384, 8, _RMS | _LN
                  | _heads(6, _every(8, 4, 3, 2), 64) | _ssm(768, 128, 12, 2)
                  | {"feed_forward_length": _every(8, 4, 1, 1024)}, is_tied=False),
        TinyModel("convolutions", "lfm2", 384, 6, _RMS | _heads(6, _every(6, 3, 2, 2))
                  | {"feed_forward_length": 1024, "shortconv.l_cache": 3}),
        TinyModel("delta-next", "qwen3next", 256, 8, delta | _moe(8, 2, 96)
                  | {"expert_shared_feed_forward_length": 96}, is_tied=False),
        TinyModel("delta", "qwen35", 256, 8, delta | sections, is_tied=False),
        TinyModel("delta-experts", "qwen35moe", 256, 8, delta | sections | _moe(8, 2, 96)
                  | {"expert_shared_feed_forward_length": 96}, is_tied=False),
        TinyModel("encoder", "bert", 384, 4, bert, n_ctx=512, type_number=_F16),
        TinyModel("encoder-rope", "nomic-bert", 384, 4, bert, n_ctx=2048, type_number=_F16),
    )  # fmt: skip
