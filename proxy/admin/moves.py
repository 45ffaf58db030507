"""What migrations come to, and those under way, for people and scripts."""

from msgspec import Struct


class MoveReport(Struct, frozen=True):
    """A model that moved."""

    model: str
    order: str
    """"make-before-break" or "break-before-make"."""
    streams: int
    """That ran, and go on."""
    slots: int
    """Whose caches went along."""
    moved_bytes: int
    took_s: float
    keeps_math: bool
    """Whether replies go on byte for byte as they would have, sampling apart."""
    devices: tuple[tuple[str, int], ...]
    """Layers on each."""
    context: int
    parallel: int


class MigrationReport(Struct, frozen=True):
    """A move under way."""

    model: str
    step: str
    order: str | None
    reason: str
    since_s: float
    devices: tuple[tuple[str, int], ...]
    """Layers on each, as they will be."""
    context: int
    parallel: int


class YieldReport(Struct, frozen=True):
    """Memory that others have."""

    device: str
    n_bytes: int
    limit_bytes: int
    """What all our models together may take there."""
    ours_bytes: int
    """What they take as yet."""
    left_s: float | None
    """Until it is taken back; None: for ever."""


class YieldsReport(Struct, frozen=True):
    """All of it, or what was taken back."""

    yields: tuple[YieldReport, ...]
