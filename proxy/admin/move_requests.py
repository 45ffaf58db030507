"""What an operator asks to be moved, and what memory to be left to others."""

import msgspec

from proxy.errors import BadRequest

MOST_SHARES = 16  # llama-server takes no more of them
MAX_NUMBER = 1 << 31
MOST_BYTES = 1 << 50
MOST_S = 10 * 365 * 24 * 3600.0


class MoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to change of a model that runs; None leaves it as it is."""

    model: str
    layers: int | None = None
    tensor_split: tuple[float, ...] | None = None
    devices: tuple[str, ...] | None = None
    context: int | None = None
    parallel: int | None = None

    def check(self) -> None:
        """Raises BadRequest."""
        for name, least in (("layers", 0), ("context", 1), ("parallel", 1)):
            number = getattr(self, name)
            if number is not None and not least <= number <= MAX_NUMBER:
                raise BadRequest(f"{name} must be from {least} to {MAX_NUMBER}", param=name)
        for name in ("tensor_split", "devices"):
            told = getattr(self, name)
            if told is not None and not 1 <= len(told) <= MOST_SHARES:
                raise BadRequest(f"{name} takes 1 to {MOST_SHARES} values", param=name)
        named = (self.layers, self.tensor_split, self.devices, self.context, self.parallel)
        if all(value is None for value in named):
            raise BadRequest("say what is to change: layers, devices, a split, a context or slots")


class YieldRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory that others are to have."""

    device: str | None = None
    """None: where most of ours is."""
    n_bytes: int | None = None
    all: bool = False
    """All that is there, in the place of a number."""
    for_s: float | None = None
    """None: until it is taken back."""
    back: bool = False
    """Take it back instead."""

    def check(self) -> None:
        """Raises BadRequest."""
        if (self.n_bytes is not None, self.all, self.back).count(True) != 1:
            raise BadRequest("say n_bytes, or all, or back", param="n_bytes")
        if self.n_bytes is not None and not 0 < self.n_bytes <= MOST_BYTES:
            raise BadRequest(f"n_bytes must be from 1 to {MOST_BYTES}", param="n_bytes")
        if self.for_s is not None and not 0 < self.for_s <= MOST_S:
            raise BadRequest(f"for_s must be up to {MOST_S:.0f} s", param="for_s")
