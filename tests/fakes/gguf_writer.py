"""Writes GGUF files of any shape, their tensors holes of zeros: for all that reads headers."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path

from planners.ggml.types import TENSOR_TYPES

Value = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float]

_U32, _I32, _F32, _BOOL, _TEXT, _ARRAY, _U64 = 4, 5, 6, 7, 8, 9, 10
_WIDTH = 64


@dataclass(frozen=True, slots=True)
class Hole:
    """A tensor without data."""

    name: str
    shape: tuple[int, ...]
    type_number: int = 0

    @property
    def n_bytes(self) -> int:
        """As ggml counts."""
        return TENSOR_TYPES[self.type_number].row_bytes(prod(self.shape))


def gguf_header(
    pairs: Mapping[str, Value],
    holes: Sequence[Hole] = (),
    *,
    version: int = 3,
    encoded: Sequence[bytes] = (),
) -> bytes:
    """The header alone, as a file of `file_size` bytes begins; `encoded`: pairs that are bytes."""
    offsets = accumulate((_aligned(hole.n_bytes) for hole in holes), initial=0)
    return b"".join(
        (
            b"GGUF",
            struct.pack("<IQQ", version, len(holes), len(pairs) + len(encoded)),
            *encoded,
            *(_text(key) + _value(value) for key, value in pairs.items()),
            *(_entry(hole, offset) for hole, offset in zip(holes, offsets, strict=False)),
        )
    )


def file_size(header: bytes, holes: Sequence[Hole]) -> int:
    """Bytes of the whole file."""
    return _aligned(len(header)) + sum(_aligned(hole.n_bytes) for hole in holes)


def gguf(
    architecture: str = "llama", *, pairs: Mapping[str, Value] | None = None, block: int = 0
) -> bytes:
    """A whole file of one small block; `pairs` are added to its metadata."""
    metadata: dict[str, Value] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": 1,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": _WIDTH,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.feed_forward_length": _WIDTH,
        **(pairs or {}),
    }
    names = ("token_embd.weight", f"blk.{block}.attn_q.weight", "output.weight")
    holes = [Hole(name, (_WIDTH, _WIDTH)) for name in names]
    header = gguf_header(metadata, holes)
    return header.ljust(file_size(header, holes), b"\0")


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


def text_array(count: int, *, length: int) -> bytes:
    """The bytes of an array value of `count` texts, made without a list of them."""
    item = struct.pack("<Q", length) + b"x" * length
    return struct.pack("<IIQ", _ARRAY, _TEXT, count) + item * count


def pair(key: str, value: bytes) -> bytes:
    """A metadata pair whose value is already encoded."""
    return _text(key) + value


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // 32) * 32


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _entry(hole: Hole, offset: int) -> bytes:
    shape = struct.pack(f"<I{len(hole.shape)}Q", len(hole.shape), *hole.shape)
    return _text(hole.name) + shape + struct.pack("<IQ", hole.type_number, offset)


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            kind, code = (_U64, "Q") if value >= 1 << 32 else (_U32, "I")
            return struct.pack(f"<I{code}", kind, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", _TEXT) + _text(value)
        case _:
            return _array(value)


def _array(items: Sequence[str] | Sequence[int] | Sequence[float]) -> bytes:
    if items and isinstance(items[0], str):
        body = b"".join(_text(str(item)) for item in items)
        return struct.pack("<IIQ", _ARRAY, _TEXT, len(items)) + body
    if items and isinstance(items[0], bool):
        return struct.pack(f"<IIQ{len(items)}?", _ARRAY, _BOOL, len(items), *items)
    if items and isinstance(items[0], float):
        return struct.pack(f"<IIQ{len(items)}f", _ARRAY, _F32, len(items), *map(float, items))
    body = b"".join(struct.pack("<i", int(item)) for item in items)
    return struct.pack("<IIQ", _ARRAY, _I32, len(items)) + body
