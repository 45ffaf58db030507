"""Migrations and yields, as `inferenceosctl` shows them."""

import math

from planners.plan import LaunchPlan
from proxy.admin.moves import MigrationReport, MoveReport, YieldReport
from supervisor.moving.move import Moved, MoveSeen
from supervisor.moving.pressure_watch import Yielded


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


def yield_report(given: Yielded, *, ours_bytes: int, now_s: float) -> YieldReport:
    """One; `now_s` is monotonic."""
    left_s = None if math.isinf(given.until_s) else round(max(0.0, given.until_s - now_s), 1)
    return YieldReport(given.device_id, given.n_bytes, given.limit_bytes, ours_bytes, left_s)
