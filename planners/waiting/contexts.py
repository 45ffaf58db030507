"""Callers who want another context than is loaded: a launch with more, or what there is.

    in use ─ more finds room beside what it has → Move: its replies go on, nobody waits for them
           └ not so, or it did not come to serve → Stop: they are finished first
    nobody uses it → Stop: the next launch has more; no room anywhere → Allow
Pure.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from planners.instances.actions import Allow, Move, Stop, Yield
from planners.instances.room import freeable, make_room, planned
from planners.instances.taken import taken
from planners.layout.budget import freed
from planners.moving.changes import wanted_plan
from planners.plan import Shortfall
from planners.settings import ContextPolicy
from planners.view import InstanceState, Observed, View
from planners.waiting.turns import is_pinned, is_turn_over


def regrown(view: View, *, now_s: float) -> Iterator[Stop | Yield | Move | Allow]:
    """What becomes of instances whose callers wait for another context than the loaded one."""
    for seen in view.instances:
        demand = view.demand.get(seen.model_id)
        if seen.state is not InstanceState.READY or demand is None or not demand.context:
            continue
        if seen.model_id in view.unplannable or seen.model_id in view.moving | view.resting:
            continue
        follows = view.settings.context_policy is ContextPolicy.CLIENT
        if follows and seen.running and not is_turn_over(view, seen, now_s=now_s):
            continue
        yield _with_context(view, seen, demand.context, now_s=now_s)


def _with_context(
    view: View, seen: Observed, context: int, *, now_s: float
) -> Stop | Yield | Move | Allow:
    served, loaded = view.models[seen.model_id], seen.plan.context
    others = replace(view, instances=tuple(i for i in view.instances if i is not seen))
    alone = taken(view.hardware, (seen,))
    room = replace(others, hardware=freed(view.hardware, alone.held))
    plan = planned(
        room,
        served,
        ours=taken(view.hardware, others.instances),
        could_free=freeable(others, now_s=now_s),
        context=context,
    )
    asked = f"context {context} is asked for, {loaded} is loaded"
    if isinstance(plan, Shortfall) and not make_room(others, served, plan, now_s=now_s):
        return Allow(seen.instance_id, context, f"{asked}, more finds no room: {plan.reason}")
    if view.settings.context_policy is ContextPolicy.CLIENT:
        if is_pinned(view, seen):
            return Stop(seen.instance_id, asked, finishes=True)
        return Yield(seen.instance_id, asked)  # other models' callers come before the next size
    if seen.running and seen.model_id not in view.unmoved:
        larger = wanted_plan(view, seen, served)
        if larger is not None and larger.context >= context:
            return Move(seen.instance_id, larger, seen.launch_key, asked)
    return Stop(seen.instance_id, asked, finishes=True)
