"""Whose turn it is on memory that several models want: who may be stopped for whom, and when. Pure.

A model with callers keeps its memory for a turn after it became ready. Once another one's callers
have waited for a turn too, it takes no new request, ends those that run, and makes way. So each
load is followed by a turn of answers, and a model waits for the turns of those before it.
"""

from planners.instances.groups import conflict
from planners.model import ModelId, ServedModel
from planners.view import RELEASING, InstanceState, Observed, View

LINGER_S = 0.5  # a program that talks to one model asks again within this
WARM_S = 60.0  # a load whose callers left stays at least so long: they come back


def patience_s(view: View, model_id: ModelId, *, now_s: float) -> float:
    """How long callers have waited for the model since its last turn; 0.0 without callers."""
    demand = view.demand.get(model_id)
    if demand is None:
        return 0.0
    ended_s = view.yielded_s.get(model_id)
    return demand.oldest_wait_s if ended_s is None else min(demand.oldest_wait_s, now_s - ended_s)


def is_turn_over(view: View, seen: Observed, *, now_s: float) -> bool:
    """Whether it was ready for a turn: turn_s, or as long as it took to load where that is more."""
    if seen.ready_since_s is None:
        return True
    turn_s = max(view.settings.turn_s, seen.load_s or 0.0)
    return now_s - seen.ready_since_s >= turn_s


def may_wait_no_longer(view: View, served: ServedModel, *, now_s: float) -> bool:
    """Whether the model's callers have waited for a turn, so that busy ones make way."""
    return patience_s(view, served.model_id, now_s=now_s) >= view.settings.turn_s


def evictable(view: View, *, now_s: float, lingering: bool = False) -> list[Observed]:
    """Instances that nobody uses, asks for or pinned, the longest idle first.

    With `lingering` those too whose callers may come back in a moment.
    """
    return sorted(
        (
            seen
            for seen in view.instances
            if seen.state is InstanceState.READY
            and seen.idle_since_s is not None
            and seen.model_id not in view.moving
            and not seen.waiting
            and not is_pinned(view, seen)
            and not _is_kept_warm(seen, now_s=now_s)
            and (lingering or not _lingers(view, seen, now_s=now_s))
        ),
        key=lambda seen: seen.idle_since_s or 0.0,
    )


def yielding(view: View, served: ServedModel, *, now_s: float) -> list[Observed]:
    """Instances in use whose turn is over, while the callers of `served` have waited for one."""
    if not may_wait_no_longer(view, served, now_s=now_s):
        return []
    return [
        seen
        for seen in view.instances
        if seen.state is InstanceState.READY
        and seen.model_id not in view.moving
        and not is_pinned(view, seen)
        and (seen.idle_since_s is None or seen.waiting)
        and is_turn_over(view, seen, now_s=now_s)
    ]


def rivals(view: View, served: ServedModel) -> list[tuple[Observed, str]]:
    """Living instances that may not run beside `served`, each with the reason."""
    found = []
    for seen in view.instances:
        other = view.models.get(seen.model_id)
        if other is None or seen.state.is_down or seen.model_id == served.model_id:
            continue
        if (why := conflict(served, other, view.settings.groups)) is not None:
            found.append((seen, why))
    return found


def rival_that_stays(view: View, seen: Observed) -> str | None:
    """Why an idle instance goes: beside it runs what a new group of the operator's forbids."""
    if seen.idle_since_s is None:
        return None
    for other, why in rivals(view, view.models[seen.model_id]):
        is_in_use = is_pinned(view, other) or other.idle_since_s is None or other.waiting
        is_later = (other.last_used_s, other.instance_id) > (seen.last_used_s, seen.instance_id)
        if other.state not in RELEASING and (is_in_use or is_later):
            return f"{other.model_id} runs, and {why}"
    return None


def is_pinned(view: View, seen: Observed) -> bool:
    """Whether the operator wants its model to stay loaded."""
    served = view.models.get(seen.model_id)  # None for one that is offered no longer
    return served is not None and served.settings.pin


def pinned_for_good(view: View) -> list[Observed]:
    """Ready instances that never make way; one that loads may yet take less than was promised."""
    ready = (seen for seen in view.instances if seen.state is InstanceState.READY)
    return [seen for seen in ready if is_pinned(view, seen)]


def _lingers(view: View, seen: Observed, *, now_s: float) -> bool:
    is_fresh = seen.idle_since_s is not None and now_s - seen.idle_since_s < LINGER_S
    return is_fresh and not is_turn_over(view, seen, now_s=now_s)


def _is_kept_warm(seen: Observed, *, now_s: float) -> bool:
    """Whether all who waited for its load left it, a moment ago."""
    if seen.ready_since_s is None or seen.idle_since_s != seen.ready_since_s:
        return False
    return now_s - seen.ready_since_s < min(seen.keep_alive_s, WARM_S)
