"""The end of the ladder: what becomes of a model whose launches died of memory. Pure."""

from msgspec.structs import replace

from planners.instances.actions import Refuse
from planners.instances.exits import OUT_OF_MEMORY
from planners.instances.ladder import MUTE, RungKey
from planners.instances.room import Departures, Waiting, planned
from planners.instances.taken import Taken
from planners.model import ServedModel
from planners.plan import LaunchPlan, Shortfall
from planners.view import Observed, View

OOM_RETRY_S = 30.0  # what did not fit is tried again on demand: memory may be back


def on_rungs(view: View) -> View:
    """The view in which launches that died just now count, beside those that are remembered."""
    tried = {
        RungKey(seen.plan.model_digest, seen.plan.engine_id): seen.rung
        for seen in view.instances
        if seen.rung is not None
    }
    if not tried:
        return view
    return replace(view, learned=replace(view.learned, rungs={**view.learned.rungs, **tried}))


def least_plan(
    view: View, served: ServedModel, shortfall: Shortfall, *, ours: Taken, context: int
) -> LaunchPlan | None:
    """The least that is acceptable, though launches died of more than would be left for it.

    A rung may lie far below the one before it; and what those died of may be long over.
    """
    known, digest = view.learned, served.info.digest
    rungs = {
        key: rung.less(shortfall.missing_bytes) if key.model_digest == digest else rung
        for key, rung in known.rungs.items()
    }
    if rungs == known.rungs:
        return None
    roomier = replace(view, learned=replace(known, rungs=rungs))
    plan = planned(roomier, served, ours=ours, could_free={}, context=context)
    return plan if isinstance(plan, LaunchPlan) else None


def has_just_died_of(seen: Observed, plan: LaunchPlan, *, now_s: float) -> bool:
    """Whether a load of no more than that died of memory within the last OOM_RETRY_S."""
    died = seen.cause is not None and seen.cause.kind in OUT_OF_MEMORY
    if not died or seen.ready_since_s is not None:
        return False
    is_less = _buffer_bytes(plan) < _buffer_bytes(seen.plan)
    return not is_less and now_s < (seen.retry_at_s or 0.0) + OOM_RETRY_S


def _buffer_bytes(plan: LaunchPlan) -> int:
    return sum(part.buffer_bytes for part in plan.predicted)


def with_cause(
    answer: Refuse | Waiting | tuple[Departures, Waiting], seen: Observed | None
) -> Refuse | Waiting | tuple[Departures, Waiting]:
    """A refusal tells what the last launch died of, where that is why nothing fits any more."""
    cause = seen.cause if seen else None
    if not isinstance(answer, Refuse) or cause is None or cause.kind not in OUT_OF_MEMORY | MUTE:
        return answer
    reason = f"{cause.summary}; with less memory than that, {answer.reason}"
    return Refuse(answer.model_id, reason, OOM_RETRY_S, cause.log_tail)
