"""Desired against actual: one frozen view in, the actions that close the gap out. Idempotent.

LOADING ─ healthy → READY ─ stop → DRAINING ─ no leases, or drain_s spent → STOPPING ─ reaped → gone
LOADING | READY ─ exit, no progress, hung → BACKOFF ─ retry_at_s → LOADING
BACKOFF ─ too many strikes → FAILED ─ cooldown over, and a caller or a pin → LOADING, on trial
FAILED ─ changed file or settings, or retry → (gone)
LOADING ─ stop → STOPPING;  BACKOFF | FAILED ─ stop, or no longer wanted → (gone)
READY ─ wanted otherwise, and in use → moved to another launch (planners.moving.changes)
"""

from collections.abc import Iterator

from planners.instances.actions import Action, Move, Refuse, Stop
from planners.instances.last_rung import on_rungs
from planners.instances.launches import after, due_for_launch, launches
from planners.instances.stops import stops, why_otherwise
from planners.model import ModelId
from planners.moving.changes import in_use
from planners.view import InstanceState, View
from planners.waiting.contexts import regrown

GONE = "it was taken off the offer, or renamed, while its callers waited; ask again"
ASK_AGAIN_S = 1.0  # who asks anew is answered by what is on offer then


def reconcile(view: View, *, now_s: float) -> tuple[Action, ...]:
    """The next actions; () once the world is as desired, or while work under way must end first.

    Raises PlanBug.
    """
    ended: tuple[Stop | Move | Refuse, ...] = (*stops(view, now_s=now_s), *_in_vain(view))
    if view.engines is None:
        return ended
    view = after(view, ended)
    changed = tuple(regrown(view, now_s=now_s))
    view = after(view, changed)
    return (*ended, *changed, *launches(on_rungs(view), now_s=now_s))


def _in_vain(view: View) -> Iterator[Refuse]:
    """Refusals for callers of what went, runs under another name by now, or cannot be planned."""
    open_ = (InstanceState.LOADING, InstanceState.READY)
    served = {seen.model_id for seen in view.instances if seen.state in open_}
    for model_id, demand in view.demand.items():
        if model_id not in view.models:
            yield _gone(model_id, view.broken.get(model_id))
        elif model_id in view.unplannable and (demand.context or model_id not in served):
            yield Refuse(model_id, view.unplannable[model_id], retry_after_s=None)


def _gone(model_id: ModelId, broken: str | None) -> Refuse:
    if broken is None:
        return Refuse(model_id, GONE, retry_after_s=ASK_AGAIN_S)
    reason = f"its file was replaced while its callers waited, and cannot be used: {broken}"
    return Refuse(model_id, reason, retry_after_s=None)


def awaits_launch(view: View, *, now_s: float) -> bool:
    """Whether a launch, or its refusal, has to be thought about; quickly told."""
    if view.engines is None:
        return False
    if due_for_launch(view, now_s=now_s) or any(d.context for d in view.demand.values()):
        return True
    ready = (seen for seen in view.instances if seen.state is InstanceState.READY)
    return any(in_use(seen) and why_otherwise(view, seen) for seen in ready)
