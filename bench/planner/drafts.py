"""Files of any architecture, by their keys and the shapes of their tensors: holes, no weights.

They are sparse: the engine loads them, reserves its buffers, and would decode zeros.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from planners.ggml.types import TENSOR_TYPES
from tests.fakes.gguf_writer import Hole, Value, file_size, gguf_header
from tests.fakes.recipes import is_f32
from tests.fakes.tiny_models import TinyModel, tokenizer

Shape = tuple[int, ...]
ALL_BLOCKS = "*"
_F16 = 1
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_KEPT_WHOLE = ("time_mix_", "channel_mix_lerp", "altup_", "sinks", "exp_probs", "hc_", "ape")
"""Parts of names that converters leave in f32, beside those of the recipes."""
_WORD_PIECES = frozenset({
    "nomic-bert-moe", "modern-bert", "neo-bert", "jina-bert-v2", "jina-bert-v3",
})  # fmt: skip
_SHARED_KEYS = ("tokenizer.", "general.", "xielu.")


class Draft(Struct, frozen=True):
    """A model in the making."""

    name: str
    architecture: str
    numbers: Mapping[str, Value]
    """Metadata, without the architecture's prefix."""
    n_vocab: int
    shapes: Mapping[str, Shape]
    type_number: int = _F16

    @property
    def n_layer(self) -> int:
        """Repeating blocks."""
        found = self.numbers["block_count"]
        assert isinstance(found, int)
        return found

    @property
    def pairs(self) -> dict[str, Value]:
        """Metadata by its full keys."""
        own = {self.key(key): value for key, value in self.numbers.items()}
        return {"general.architecture": self.architecture, **own}

    def key(self, name: str) -> str:
        """A key as the file has it."""
        return name if name.startswith(_SHARED_KEYS) else f"{self.architecture}.{name}"

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Its tensors."""
        return tuple(Hole(name, shape, self._type(name, shape)) for name, shape in self.sorted)

    @property
    def sorted(self) -> list[tuple[str, Shape]]:
        """Names and shapes in one order, whatever order they were learned in."""
        return sorted(self.shapes.items())

    def _type(self, name: str, shape: Shape) -> int:
        if is_f32(name, shape) or not name.endswith(".weight"):
            return 0
        if any(part in name for part in _KEPT_WHOLE):
            return 0
        is_whole = shape[0] % TENSOR_TYPES[self.type_number].block == 0
        return self.type_number if is_whole else _F16


def write_draft(draft: Draft, folder: Path) -> Path:
    """The draft as a file in `folder`."""
    path, holes = folder / f"{draft.name}.gguf", draft.holes
    spoken = "bert" if draft.architecture in _WORD_PIECES else "llama"
    words = tokenizer(TinyModel("", spoken, 0, 0, {}, n_vocab=draft.n_vocab))
    head = gguf_header(draft.pairs, holes, encoded=words)
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(file_size(head, holes))
    return path


def described(draft: Draft) -> Mapping[str, Any]:
    """The draft in a row's words: metadata, and tensors by name, those of equal blocks once."""
    told: dict[str, Any] = {}
    by_part: dict[str, dict[str, tuple[Shape, str]]] = {}
    for hole in draft.holes:
        block, part = _block_of(hole.name)
        kind = TENSOR_TYPES[hole.type_number].name
        by_part.setdefault(part, {})[block] = (hole.shape, kind)
    everywhere = {str(i) for i in range(draft.n_layer)}
    for part, found in by_part.items():
        is_alike = found.keys() == everywhere and len({*found.values()}) == 1
        kept = {ALL_BLOCKS: next(iter(found.values()))} if is_alike else found
        told |= {f"blk.{i}.{part}" if i else part: value for i, value in kept.items()}
    file_bytes = file_size(b"", draft.holes)
    return {"kv": {**draft.pairs, "n_vocab": draft.n_vocab}, "tensors": told,
            "file_bytes": file_bytes}  # fmt: skip


def _block_of(name: str) -> tuple[str, str]:
    """The number of its block, "" outside of blocks, and its name within."""
    match = _BLOCK.fullmatch(name)
    return ("", name) if match is None else (match[1], match[2])
