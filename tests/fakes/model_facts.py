"""What a model file's metadata says, by short keys: for those who lay out its tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Facts:
    """Metadata of one model, by short keys."""

    pairs: Mapping[str, Any]
    n_vocab: int

    @property
    def architecture(self) -> str:
        """`general.architecture`."""
        return str(self.pairs["general.architecture"])

    def get(self, key: str, default: int = 0) -> int:
        """A number of the architecture's own namespace; the largest of an array."""
        value = self.pairs.get(f"{self.architecture}.{key}", default)
        return max(value) if isinstance(value, list | tuple) else int(value)

    def at(self, key: str, layer: int) -> int:
        """One layer's number."""
        value = self.pairs.get(f"{self.architecture}.{key}", 0)
        return int(value[layer]) if isinstance(value, list | tuple) else int(value)

    @property
    def n_embd(self) -> int:
        """Width of the residual stream."""
        return self.get("embedding_length")

    @property
    def n_layer(self) -> int:
        """Repeating blocks."""
        return self.get("block_count")

    @property
    def head_widths(self) -> tuple[int, int]:
        """Of K and V."""
        default = self.n_embd // max(self.get("attention.head_count"), 1)
        key = self.get("attention.key_length", default)
        return key, self.get("attention.value_length", default)
