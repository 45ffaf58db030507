"""Which instances end or move of their own accord: unwanted, wanted otherwise, or unused."""

from collections.abc import Iterator

from planners.durations import format_duration
from planners.instances.actions import Move, Stop
from planners.launch_key import launch_key
from planners.moving.changes import departures, replaced_engine
from planners.plan import LaunchPlan
from planners.view import RELEASING, InstanceState, Observed, View
from planners.waiting.turns import is_pinned, rival_that_stays


def stops(view: View, *, now_s: float) -> Iterator[Stop | Move]:
    """An end, or a move to another launch, for each instance that is not to run on as it is."""
    for seen in view.instances:
        if seen.state in RELEASING or seen.model_id in view.moving:
            continue
        if reason := _why_not_at_all(view, seen):
            yield Stop(seen.instance_id, reason)
        elif reason := why_otherwise(view, seen):
            served = view.models[seen.model_id]
            key = launch_key(served, view.rules)
            yield from departures(view, seen, served, key=key, reason=reason, now_s=now_s)
        elif reason := _why_unused(view, seen, now_s=now_s):
            yield Stop(seen.instance_id, reason, is_unused=True)


def why_stop(view: View, seen: Observed, *, now_s: float) -> str | None:
    """Why a running instance is to end on its own account; None where it is not."""
    unwanted = _why_not_at_all(view, seen) or why_otherwise(view, seen)
    return unwanted or _why_unused(view, seen, now_s=now_s)


def why_moved(view: View, seen: Observed) -> str | None:
    """Why a running instance is to make way for another launch of its model; None: it is not."""
    return None if _why_not_at_all(view, seen) else why_otherwise(view, seen)


def _why_not_at_all(view: View, seen: Observed) -> str | None:
    """Why the operator wants none of it now, or not beside what else runs."""
    served = view.models.get(seen.model_id)
    if served is None:
        broken = view.broken.get(seen.model_id)
        return "the model is no longer offered" + (f"; its file: {broken}" if broken else "")
    return None if served.settings.pin or seen.waiting else rival_that_stays(view, seen)


def why_otherwise(view: View, seen: Observed) -> str | None:
    """Why the operator wants another launch of it."""
    served = view.models.get(seen.model_id)
    if served is None:
        return None
    if (rule := _broken_rule(view, seen.plan)) is not None:
        return rule
    key = launch_key(served, view.rules)
    if view.unmoved.get(seen.model_id) == key:
        return None  # that launch did not come to serve, and this one does
    if key != seen.launch_key:
        return "its file or its settings changed"
    return replaced_engine(view, seen.plan)


def _why_unused(view: View, seen: Observed, *, now_s: float) -> str | None:
    """By its keep_alive."""
    if is_pinned(view, seen) or seen.waiting:
        return None
    if seen.state is InstanceState.READY and seen.idle_since_s is not None:
        idle_s = now_s - seen.idle_since_s
        return _expired(idle_s, keep_alive_s=seen.keep_alive_s)
    if seen.state is InstanceState.BACKOFF:
        return _expired(now_s - seen.last_used_s, keep_alive_s=seen.keep_alive_s)
    return None


def _expired(idle_s: float, *, keep_alive_s: float) -> str | None:
    if idle_s < keep_alive_s:
        return None
    idle, keep_alive = format_duration(idle_s), format_duration(keep_alive_s)
    return f"unused for {idle}, its keep_alive is {keep_alive}"


def _broken_rule(view: View, plan: LaunchPlan) -> str | None:
    """Why the operator's rules no longer allow a running plan; None where they do."""
    if not (view.rules.allows_cpu_fallback or plan.devices):
        return "models.cpu_fallback is deny: it may no longer run on the processor alone"
    if gone := set(plan.rpc_servers).difference(view.rules.rpc_servers):
        return f"{min(gone)} is no longer one of rpc.servers"
    for device in view.hardware.devices:
        ours_bytes = plan.bytes_on(device.device_id)
        if ours_bytes and not device.use:
            return f"{device.name} may no longer be used"
    return None
