"""A random llama of one layer, small enough to decode in a blink: what engines are tried with.

It runs the kernels that real models run (Q4_0 and Q8_0 products, softmax, rope, norm), so an
engine that was built for another CPU dies on it as it would on theirs.
"""

import random
import struct
from collections.abc import Iterator
from math import prod

N_EMBD = 256
N_FF = 512
N_HEAD = 4
N_CTX = 64
TOKENS = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁")

_ALIGNMENT = 32  # GGUF's default
_BLOCK = 32  # weights per block of Q4_0 and of Q8_0
_F32, _Q4_0, _Q8_0 = 0, 2, 8  # enum ggml_type
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9  # enum gguf_type
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6  # enum llama_token_type
_BLOCK_SHAPE = {_Q4_0: (0.02, 16), _Q8_0: (0.002, 32)}  # (scale, bytes of quants) of one block

_METADATA: tuple[tuple[str, int, str | int | float], ...] = (
    ("general.architecture", _STRING, "llama"),
    ("general.name", _STRING, "tiny"),
    ("llama.block_count", _UINT32, 1),
    ("llama.context_length", _UINT32, N_CTX),
    ("llama.embedding_length", _UINT32, N_EMBD),
    ("llama.feed_forward_length", _UINT32, N_FF),
    ("llama.attention.head_count", _UINT32, N_HEAD),
    ("llama.attention.layer_norm_rms_epsilon", _FLOAT32, 1e-5),
    ("llama.vocab_size", _UINT32, len(TOKENS)),
    ("tokenizer.ggml.model", _STRING, "llama"),
    ("tokenizer.ggml.bos_token_id", _UINT32, 1),
    ("tokenizer.ggml.eos_token_id", _UINT32, 2),
    ("tokenizer.ggml.unknown_token_id", _UINT32, 0),
)
_ARRAYS: tuple[tuple[str, int, tuple[str | int | float, ...]], ...] = (
    ("tokenizer.ggml.tokens", _STRING, TOKENS),
    ("tokenizer.ggml.scores", _FLOAT32, (0.0,) * len(TOKENS)),
    (
        "tokenizer.ggml.token_type",
        _INT32,
        (_UNKNOWN, _CONTROL, _CONTROL, *(_BYTE,) * 256, _NORMAL),
    ),
)
_TENSORS: tuple[tuple[str, tuple[int, ...], int], ...] = (
    ("token_embd.weight", (N_EMBD, len(TOKENS)), _Q8_0),
    ("output_norm.weight", (N_EMBD,), _F32),
    ("output.weight", (N_EMBD, len(TOKENS)), _Q8_0),
    ("blk.0.attn_norm.weight", (N_EMBD,), _F32),
    ("blk.0.ffn_norm.weight", (N_EMBD,), _F32),
    ("blk.0.attn_q.weight", (N_EMBD, N_EMBD), _Q4_0),
    ("blk.0.attn_k.weight", (N_EMBD, N_EMBD), _Q4_0),
    ("blk.0.attn_v.weight", (N_EMBD, N_EMBD), _Q4_0),
    ("blk.0.attn_output.weight", (N_EMBD, N_EMBD), _Q4_0),
    ("blk.0.ffn_gate.weight", (N_EMBD, N_FF), _Q4_0),
    ("blk.0.ffn_up.weight", (N_EMBD, N_FF), _Q4_0),
    ("blk.0.ffn_down.weight", (N_FF, N_EMBD), _Q4_0),
)


def tiny_model() -> bytes:
    """A GGUF v3 file of about 520 kB, the same bytes every time."""
    chance = random.Random(1)
    data = [_padded(_weights(prod(shape), ggml_type, chance)) for _, shape, ggml_type in _TENSORS]
    head = b"".join(
        (
            b"GGUF",
            struct.pack("<IQQ", 3, len(_TENSORS), len(_METADATA) + len(_ARRAYS)),
            *(_string(key) + struct.pack("<I", t) + _value(v, t) for key, t, v in _METADATA),
            *(_array(key, t, values) for key, t, values in _ARRAYS),
            *_tensor_infos(data),
        )
    )
    return _padded(head) + b"".join(data)


def _tensor_infos(data: list[bytes]) -> Iterator[bytes]:
    offset = 0
    for (name, shape, ggml_type), weights in zip(_TENSORS, data, strict=True):
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        yield _string(name) + dims + struct.pack("<IQ", ggml_type, offset)
        offset += len(weights)


def _weights(count: int, ggml_type: int, chance: random.Random) -> bytes:
    if ggml_type == _F32:
        return struct.pack("<f", 1.0) * count
    scale, quant_bytes = _BLOCK_SHAPE[ggml_type]
    n_blocks = count // _BLOCK
    quants = chance.randbytes(n_blocks * quant_bytes)
    # Column by column: thousands of little objects would leave the daemon larger for good.
    columns = [bytes((byte,)) * n_blocks for byte in struct.pack("<e", scale)]
    columns += [quants[at::quant_bytes] for at in range(quant_bytes)]
    blocks = bytearray(n_blocks * len(columns))
    for at, column in enumerate(columns):
        blocks[at :: len(columns)] = column
    return bytes(blocks)


def _array(key: str, gguf_type: int, values: tuple[str | int | float, ...]) -> bytes:
    head = _string(key) + struct.pack("<IIQ", _ARRAY, gguf_type, len(values))
    return head + b"".join(_value(value, gguf_type) for value in values)


def _value(value: str | int | float, gguf_type: int) -> bytes:
    if isinstance(value, str):
        return _string(value)
    return struct.pack({_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f"}[gguf_type], value)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)
