"""Running models that the operator wants otherwise now: they move, streams and all, or end.

    in use, or pinned ─ has it moved just now? ─ no: another launch finds room → Move
                       └ yes: it serves on awhile    └ none does → Stop: it is drained
    nobody uses it → Stop: the next request launches it; what it had read of conversations is kept
    loading → Stop, unless its callers have waited for a turn: then they are served first
Pure.
"""

from collections.abc import Iterator
from math import inf

from msgspec.structs import replace

from planners.instances.actions import Move, Stop
from planners.instances.room import context_of, planned
from planners.instances.taken import taken
from planners.layout.budget import freed
from planners.model import ServedModel
from planners.plan import LaunchPlan
from planners.settings import PlacementRules
from planners.view import InstanceState, Observed, View
from planners.waiting.turns import may_wait_no_longer

LEAST_REST_S = 1.0  # a storm of reloads leaves half of the time for work


def replaced_engine(view: View, plan: LaunchPlan) -> str | None:
    """Why a running plan's llama-server is not the one that would be launched now.

    None where it is, and where none of its kind is there: one that runs is better than none.
    """
    there = view.engines or ()
    if plan.engine_id in view.on_trial or any(e.engine_id == plan.engine_id for e in there):
        return None
    if any(engine.backend == plan.backend for engine in there):
        return "its llama-server was replaced"
    return None


def in_use(seen: Observed) -> bool:
    """Whether somebody would miss it: its callers, or who wants it loaded for ever."""
    return seen.idle_since_s is None or bool(seen.waiting) or seen.expires_at == inf


def departures(
    view: View, seen: Observed, served: ServedModel, *, key: str, reason: str, now_s: float
) -> Iterator[Move | Stop]:
    """What becomes of an instance that is wanted otherwise: one action, or none for now.

    `key`: the launch key of what is wanted.
    """
    if seen.state is InstanceState.LOADING and may_wait_no_longer(view, served, now_s=now_s):
        return  # each reload of many would else put its callers off once more
    if seen.state is not InstanceState.READY or not in_use(seen):
        yield Stop(seen.instance_id, reason)
    elif served.file_key != seen.plan.file_key or not view.engines:
        yield Stop(seen.instance_id, reason)  # another model: nobody could go on with its replies
    elif view.unmoved.get(seen.model_id) == key:
        yield Stop(seen.instance_id, f"{reason}, and as wanted it did not come to serve")
    elif seen.model_id in view.resting:
        return
    elif (plan := wanted_plan(view, seen, served)) is not None:
        yield Move(seen.instance_id, plan, key, reason)
    else:
        yield Stop(seen.instance_id, f"{reason}, and as wanted it finds no room beside others")


def rest_s(move_s: float) -> float:
    """How long a model serves at least before it is moved once more for what is wanted."""
    return max(LEAST_REST_S, move_s)


def wanted_plan(view: View, seen: Observed, served: ServedModel) -> LaunchPlan | None:
    """The launch that its model would have now, as if it did not run; None where it finds no room.

    With the cache types it has, where the operator names none and that fits: then caches go along.
    """
    rules = view.rules
    kept = replace(
        rules,
        type_k=rules.type_k or seen.plan.type_k,
        type_v=rules.type_v or seen.plan.type_v,
    )
    return _placed(view, seen, served, kept) or _placed(view, seen, served, rules)


def _placed(
    view: View, seen: Observed, served: ServedModel, rules: PlacementRules
) -> LaunchPlan | None:
    others = tuple(other for other in view.instances if other is not seen)
    own = taken(view.hardware, (seen,))
    alone = replace(
        view,
        instances=others,
        hardware=freed(view.hardware, own.held),
        rules=rules,
        dry_runs=replace(view.dry_runs, are_made=False),
    )
    plan = planned(
        alone,
        served,
        ours=taken(view.hardware, others),
        could_free={},
        context=context_of(view, served),
    )
    return plan if isinstance(plan, LaunchPlan) else None
