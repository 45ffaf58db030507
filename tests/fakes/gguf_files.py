"""Small GGUF files of any architecture: a header that parses, and weights of zeros."""

import struct
from collections.abc import Mapping
from pathlib import Path

_UINT16, _UINT32, _STRING = 2, 4, 8  # enum gguf_type
_F32 = 0  # enum ggml_type
_WIDTH = 64

Pairs = Mapping[str, str | int]


def gguf(architecture: str = "llama", *, pairs: Pairs | None = None, block: int = 0) -> bytes:
    """A GGUF v3 file of one small block; `pairs` are added to its metadata."""
    metadata: dict[str, str | int] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": 1,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": _WIDTH,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.feed_forward_length": _WIDTH,
        **(pairs or {}),
    }
    names = ("token_embd.weight", f"blk.{block}.attn_q.weight", "output.weight")
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(metadata))
    head += b"".join(_pair(key, value) for key, value in metadata.items())
    tensor_bytes = _WIDTH * _WIDTH * 4
    for index, name in enumerate(names):
        shape = struct.pack("<IQQ", 2, _WIDTH, _WIDTH)
        head += _text(name) + shape + struct.pack("<IQ", _F32, index * tensor_bytes)
    return head + b"\0" * (-len(head) % 32) + b"\0" * (tensor_bytes * len(names))


def split_gguf(count: int) -> list[bytes]:
    """A model in `count` parts, each with a block of its own."""
    parts = []
    for number in range(count):
        pairs = {"split.no": number, "split.count": count, "llama.block_count": count}
        parts.append(gguf(pairs=pairs, block=number))
    return parts


def put(folder: Path, name: str, data: bytes | None = None) -> Path:
    """The file `name` below `folder`, written whole; a small llama where nothing is told."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf() if data is None else data)
    return path


def _pair(key: str, value: str | int) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", _STRING) + _text(value)
    if key.startswith("split."):
        return _text(key) + struct.pack("<IH", _UINT16, value)
    return _text(key) + struct.pack("<II", _UINT32, value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
