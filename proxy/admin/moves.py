"""What migrations come to, and those under way, for people and scripts."""

import math
from dataclasses import dataclass

from planners.by_hand import ByHand
from planners.plan import LaunchPlan
from proxy.errors import BadRequest
from supervisor.migrating import Moved, MoveSeen
from supervisor.pressure_watch import Yielded

MOST_SHARES = 16  # llama-server takes no more of them
MAX_NUMBER = 1 << 31
MOST_BYTES = 1 << 50
MOST_S = 10 * 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """What is to change of a model that runs; None leaves it as it is."""

    model: str
    layers: int | None = None
    tensor_split: tuple[float, ...] | None = None
    devices: tuple[str, ...] | None = None
    context: int | None = None
    parallel: int | None = None

    def by_hand(self) -> ByHand:
        """The same, checked. Raises BadRequest."""
        for name, least in (("layers", 0), ("context", 1), ("parallel", 1)):
            number = getattr(self, name)
            if number is not None and not least <= number <= MAX_NUMBER:
                raise BadRequest(f"{name} must be from {least} to {MAX_NUMBER}", param=name)
        for name in ("tensor_split", "devices"):
            told = getattr(self, name)
            if told is not None and not 1 <= len(told) <= MOST_SHARES:
                raise BadRequest(f"{name} takes 1 to {MOST_SHARES} values", param=name)
        found = ByHand(self.layers, self.tensor_split, self.devices, self.context, self.parallel)
        if found.is_empty:
            raise BadRequest("say what is to change: layers, devices, a split, a context or slots")
        return found


@dataclass(frozen=True, slots=True)
class MoveReport:
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


@dataclass(frozen=True, slots=True)
class MigrationReport:
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


def move_report(moved: Moved, plan: LaunchPlan) -> MoveReport:
    """A move that is over; `plan` is what runs now."""
    return MoveReport(
        model=moved.model_id,
        order=moved.order.value,
        streams=moved.streams,
        slots=moved.slots,
        moved_bytes=moved.moved_bytes,
        took_s=moved.took_s,
        keeps_math=moved.keeps_math,
        devices=_devices(plan),
        context=plan.context,
        parallel=plan.n_parallel,
    )


def migration_report(seen: MoveSeen, *, now_s: float) -> MigrationReport:
    """One under way; `now_s` is monotonic."""
    return MigrationReport(
        model=seen.model_id,
        step=seen.step.value,
        order=seen.order.value if seen.order is not None else None,
        reason=seen.reason,
        since_s=round(now_s - seen.began_s, 3),
        devices=_devices(seen.wanted),
        context=seen.wanted.context,
        parallel=seen.wanted.n_parallel,
    )


def _devices(plan: LaunchPlan) -> tuple[tuple[str, int], ...]:
    return tuple((device_id, layers) for device_id, _, layers in plan.devices)


@dataclass(frozen=True, slots=True)
class YieldRequest:
    """Memory that others are to have."""

    device: str | None = None
    """None: where most of ours is."""
    n_bytes: int | None = None
    """None: all of it."""
    for_s: float | None = None
    """None: until it is taken back."""
    back: bool = False
    """Take it back instead."""

    def check(self) -> None:
        """Raises BadRequest."""
        if self.n_bytes is not None and not 0 < self.n_bytes <= MOST_BYTES:
            raise BadRequest(f"n_bytes must be from 1 to {MOST_BYTES}", param="n_bytes")
        if self.for_s is not None and not 0 < self.for_s <= MOST_S:
            raise BadRequest(f"for_s must be up to {MOST_S:.0f} s", param="for_s")


@dataclass(frozen=True, slots=True)
class YieldReport:
    """Memory that others have."""

    device: str
    n_bytes: int
    limit_bytes: int
    """What all our models together may take there."""
    ours_bytes: int
    """What they take as yet."""
    left_s: float | None
    """Until it is taken back; None: for ever."""


@dataclass(frozen=True, slots=True)
class YieldsReport:
    """All of it, or what was taken back."""

    yields: tuple[YieldReport, ...]


def yield_report(given: Yielded, *, ours_bytes: int, now_s: float) -> YieldReport:
    """One; `now_s` is monotonic."""
    left_s = None if math.isinf(given.until_s) else round(max(0.0, given.until_s - now_s), 1)
    return YieldReport(given.device_id, given.n_bytes, given.limit_bytes, ours_bytes, left_s)
