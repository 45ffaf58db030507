"""Desired against actual: one frozen view in, the actions that close the gap out. Idempotent.

LOADING ─ healthy → READY ─ stop → DRAINING ─ no leases, or drain_s spent → STOPPING ─ reaped → gone
LOADING | READY ─ exit, no progress for load_s → BACKOFF ─ retry_at_s → LOADING
BACKOFF ─ restart intensity spent → FAILED ─ changed file or settings, or retry → (gone)
LOADING ─ stop → STOPPING;  BACKOFF | FAILED ─ stop, or no longer wanted → (gone)
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from planners.actions import Action, Allow, Refuse, Restart, Start, Stop, Yield
from planners.durations import format_duration
from planners.eviction import Candidate, victims
from planners.groups import conflict
from planners.hardware import HOST, DeviceId
from planners.layout.budget import freed
from planners.model import ServedModel
from planners.placement import plan_launch
from planners.plan import LaunchPlan, Shortfall
from planners.settings import ContextPolicy, PlacementRules
from planners.taken import Taken, taken
from planners.turns import (
    evictable,
    is_pinned,
    is_turn_over,
    may_wait_no_longer,
    patience_s,
    rivals,
    yielding,
)
from planners.view import InstanceState, Observed, View

_RELEASING = (InstanceState.DRAINING, InstanceState.STOPPING)
_NOBODYS_BYTES = 1 << 62  # promised of a device that nobody after may take room on


Departures = tuple[Stop | Yield, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A model that waits: for room on devices that is being made for it, or for what may come."""

    claims: frozenset[DeviceId] = frozenset()
    """Where nobody after it may take what becomes free."""


NO_ENGINE = (
    "no llama-server runs on this machine; build one with scripts/build_backends.sh cpu "
    "(inferenceosctl status tells why each one found was refused)"
)


def launch_key(served: ServedModel, rules: PlacementRules) -> str:
    """12 hex digits that change when what the operator or the file says calls for another launch.

    Free memory, and settings that act without a launch (keep_alive, pin), are left out.
    """
    settings = replace(served.settings, keep_alive_s=0.0, pin=False)
    effective = (served.path, served.file_key, settings, rules.context, rules.parallel)
    told = (*effective, rules.type_k, rules.type_v)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


def reconcile(view: View, *, now_s: float) -> tuple[Action, ...]:
    """The next actions; () once the world is as desired, or while work under way must end first."""
    stops = tuple(_stops(view, now_s=now_s))
    if view.engines is None:
        return stops
    view = _after(view, stops)
    regrown = tuple(_regrown(view, now_s=now_s))
    view = _after(view, regrown)
    return (*stops, *regrown, *_launches(view, now_s=now_s))


def _after(view: View, actions: Iterable[Action]) -> View:
    """The view with those that are told to stop as good as draining."""
    leaving = {a.instance_id for a in actions if isinstance(a, Stop | Yield)}
    instances = tuple(
        replace(seen, state=InstanceState.DRAINING) if seen.instance_id in leaving else seen
        for seen in view.instances
    )
    return replace(view, instances=instances)


def _stops(view: View, *, now_s: float) -> Iterator[Stop]:
    for seen in view.instances:
        if seen.state not in _RELEASING and (reason := _why_stop(view, seen, now_s=now_s)):
            yield Stop(seen.instance_id, reason)


def _why_stop(view: View, seen: Observed, *, now_s: float) -> str | None:
    served = view.models.get(seen.model_id)
    if served is None:
        return "the model is no longer offered"
    if launch_key(served, view.rules) != seen.launch_key:
        return "its file or its settings changed"
    if (rule := _broken_rule(view, seen.plan)) is not None:
        return rule
    if served.settings.pin or seen.waiting:
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
        if device.limit_bytes is not None and ours_bytes > device.limit_bytes:
            return f"it uses more than the limit of {device.name} allows"
    return None


def _regrown(view: View, *, now_s: float) -> Iterator[Stop | Allow]:
    """What becomes of instances whose callers wait for another context than the loaded one."""
    for seen in view.instances:
        demand = view.demand.get(seen.model_id)
        if seen.state is not InstanceState.READY or demand is None or not demand.context:
            continue
        follows = view.settings.context_policy is ContextPolicy.CLIENT
        if follows and seen.running and not is_turn_over(view, seen, now_s=now_s):
            continue
        yield _with_context(view, seen, demand.context, now_s=now_s)


def _with_context(view: View, seen: Observed, context: int, *, now_s: float) -> Stop | Allow:
    served, loaded = view.models[seen.model_id], seen.plan.context
    others = replace(view, instances=tuple(i for i in view.instances if i is not seen))
    alone = taken(view.hardware, (seen,))
    room = replace(others, hardware=freed(view.hardware, alone.held))
    plan = _planned(
        room,
        served,
        ours=taken(view.hardware, others.instances),
        could_free=_could_free(others, now_s=now_s),
        context=context,
    )
    wanted = f"context {context} is asked for, {loaded} is loaded"
    if isinstance(plan, Shortfall) and not _make_room(others, served, plan, now_s=now_s):
        return Allow(seen.instance_id, context, f"{wanted}, more finds no room: {plan.reason}")
    return Stop(seen.instance_id, wanted, finishes=True)


def _launches(view: View, *, now_s: float) -> Iterator[Action]:
    """Starts, restarts, refusals and the departures they need, longest wait first."""
    present = {seen.model_id: seen for seen in view.instances}
    leaving = any(seen.state in _RELEASING for seen in view.instances)
    alive = sum(not seen.state.is_down for seen in view.instances)
    ours = taken(view.hardware, view.instances)
    first: list[ServedModel] = []  # they start now, or room is being made for them
    for served in _wanted(view, now_s=now_s):
        seen = present.get(served.model_id)
        if seen is not None and not _is_due(seen, now_s=now_s):
            if seen.state is InstanceState.FAILED and seen.waiting:
                yield _refusal(seen, now_s=now_s)
            continue
        if any(conflict(served, other, view.settings.groups) for other in first):
            continue
        match _launch(view, served, seen, ours=ours, alive=alive, leaving=leaving, now_s=now_s):
            case (Start(plan) | Restart(_, plan)) as action:
                yield action
                alive += 1
                first.append(served)
                ours.promised.update({p.device_id: p.upper_bytes for p in plan.predicted})
            case Refuse() as refusal:
                yield refusal
            case Waiting(claims):
                if leaving or claims:
                    first.append(served)
                ours.promised.update(dict.fromkeys(claims, _NOBODYS_BYTES))
            case (departures, Waiting(claims)):
                yield from departures
                view = _after(view, departures)
                leaving = True
                first.append(served)
                ours.promised.update(dict.fromkeys(claims, _NOBODYS_BYTES))


def _wanted(view: View, *, now_s: float) -> list[ServedModel]:
    """Models that somebody waits for, the longest wait for a turn first, then pinned ones."""

    def rank(served: ServedModel) -> tuple[float, str]:
        waits = served.model_id in view.demand
        waited_s = patience_s(view, served.model_id, now_s=now_s) if waits else -1.0
        return (-waited_s, served.model_id)

    wanted = (m for m in view.models.values() if m.settings.pin or m.model_id in view.demand)
    in_backoff = {i.model_id for i in view.instances if i.state is InstanceState.BACKOFF}
    kept = (m for m in view.models.values() if m.model_id in in_backoff)
    return sorted({m.model_id: m for m in (*wanted, *kept)}.values(), key=rank)


def _is_due(seen: Observed, *, now_s: float) -> bool:
    if seen.state is InstanceState.BACKOFF:
        return seen.retry_at_s is not None and now_s >= seen.retry_at_s
    if seen.state is InstanceState.FAILED:
        return bool(seen.waiting) and seen.retry_at_s is not None and now_s >= seen.retry_at_s
    return False


def _refusal(seen: Observed, *, now_s: float) -> Refuse:
    reason = seen.cause.summary if seen.cause else "it failed to start"
    retry_after_s = None if seen.retry_at_s is None else max(0.0, seen.retry_at_s - now_s)
    return Refuse(seen.model_id, reason, retry_after_s=retry_after_s)


def _launch(
    view: View,
    served: ServedModel,
    seen: Observed | None,
    *,
    ours: Taken,
    alive: int,
    leaving: bool,
    now_s: float,
) -> Start | Restart | Refuse | Waiting | tuple[Departures, Waiting]:
    if not view.engines:
        return Refuse(served.model_id, NO_ENGINE, retry_after_s=None)
    if others := rivals(view, served):
        return _make_rivals_leave(view, served, others, now_s=now_s)
    if view.settings.max_loaded is not None and alive >= view.settings.max_loaded:
        return Waiting() if leaving else _make_room_by_count(view, served, now_s=now_s)
    context = _context(view, served)
    could_free = _could_free(view, now_s=now_s) + Counter(view.settling)
    plan = _planned(view, served, ours=ours, could_free=could_free, context=context)
    if isinstance(plan, Shortfall):
        claim = Waiting(frozenset(plan.missing_bytes))
        if leaving or _comes_back(view, plan.missing_bytes):
            return claim
        if stops := _make_room(view, served, plan, now_s=now_s):
            return stops, claim
        if _make_room(view, served, plan, now_s=now_s, lingering=True):
            return claim
        plan, context = _beside_all(view, served, ours=ours, context=context)
    if isinstance(plan, Shortfall):
        return _wait_or_refuse(view, served, plan, now_s=now_s)
    if _comes_back(view, [device for device, _, _ in plan.devices] or [HOST]):
        return Waiting()
    if seen is not None:
        return Restart(seen.instance_id, plan, "its child ended unasked", context)
    reason = "pinned" if served.model_id not in view.demand else "asked for"
    return Start(plan, launch_key(served, view.rules), reason, context)


def _comes_back(view: View, devices: Iterable[DeviceId]) -> bool:
    """Whether memory of any of them still comes back from what was stopped."""
    return any(device in view.settling for device in devices)


def _beside_all(
    view: View, served: ServedModel, *, ours: Taken, context: int
) -> tuple[LaunchPlan | Shortfall, int]:
    """Beside all that stays, with less context than was asked for rather than not at all.

    A Shortfall is of the least that is acceptable.
    """
    plan = _planned(view, served, ours=ours, could_free={}, context=context)
    if isinstance(plan, Shortfall) and context:
        plan = _planned(view, served, ours=ours, could_free={}, context=0)
    return plan, context


def _context(view: View, served: ServedModel) -> int:
    """Tokens that callers of the model want, now or once before; 0 where they leave it to us."""
    demand = view.demand.get(served.model_id)
    now = demand.context if demand else 0
    if view.settings.context_policy is ContextPolicy.CLIENT:
        return now
    return max(now, view.contexts.get(served.model_id, 0))


def _planned(
    view: View,
    served: ServedModel,
    *,
    ours: Taken,
    could_free: Mapping[DeviceId, int],
    context: int,
) -> LaunchPlan | Shortfall:
    if context and view.settings.context_policy is ContextPolicy.CLIENT:
        served = replace(served, settings=replace(served.settings, context=context))
    return plan_launch(
        served,
        hardware=view.hardware,
        engines=view.engines or (),
        rules=view.rules,
        promised=ours.promised,
        held=ours.held,
        could_free=could_free,
        learned=view.learned,
        least_context=context,
    )


def _could_free(view: View, *, now_s: float) -> Counter[DeviceId]:
    freed: Counter[DeviceId] = Counter()
    for seen in evictable(view, now_s=now_s, lingering=True):
        freed.update(_candidate(seen).frees)
    return freed


def _make_rivals_leave(
    view: View, served: ServedModel, others: list[tuple[Observed, str]], *, now_s: float
) -> Refuse | Waiting | tuple[Departures, Waiting]:
    """The departure of all that may not run beside `served`, once all of them may be told to go."""
    idle = evictable(view, now_s=now_s)
    busy = yielding(view, served, now_s=now_s)
    departures: list[Stop | Yield] = []
    for seen, why in others:
        reason = f"to load {served.model_id}: {why}"
        if seen in idle:
            departures.append(Stop(seen.instance_id, reason))
        elif seen in busy:
            departures.append(Yield(seen.instance_id, reason))
        elif view.models[seen.model_id].settings.pin and served.model_id in view.demand:
            pinned = f"{why}, and {seen.model_id} is pinned"
            return Refuse(served.model_id, pinned, retry_after_s=None)
        elif seen.state not in _RELEASING:
            return Waiting()
    return (tuple(departures), Waiting()) if departures else Waiting()


def _make_room_by_count(
    view: View, served: ServedModel, *, now_s: float
) -> Waiting | tuple[Departures, Waiting]:
    reason = f"to load {served.model_id}: {view.settings.max_loaded} models at once is the limit"
    for seen in evictable(view, now_s=now_s)[:1]:
        return (Stop(seen.instance_id, reason),), Waiting()
    if not evictable(view, now_s=now_s, lingering=True):
        busy = yielding(view, served, now_s=now_s)
        for seen in sorted(busy, key=lambda seen: seen.ready_since_s or 0.0)[:1]:
            return (Yield(seen.instance_id, reason),), Waiting()
    return Waiting()


def _make_room(
    view: View, served: ServedModel, shortfall: Shortfall, *, now_s: float, lingering: bool = False
) -> Departures:
    """The evictions that close a shortfall; () where none would."""
    idle = evictable(view, now_s=now_s, lingering=lingering)
    chosen = victims([_candidate(seen) for seen in idle], shortfall)
    reason = f"to make room for {served.model_id}: {shortfall.reason}"
    return tuple(Stop(instance_id, reason) for instance_id in chosen)


def _make_turn(
    view: View, served: ServedModel, shortfall: Shortfall, *, now_s: float
) -> Departures:
    """Likewise with those whose turn is over, though they are in use."""
    idle = evictable(view, now_s=now_s)
    busy = {seen.instance_id for seen in yielding(view, served, now_s=now_s)}
    candidates = [seen for seen in view.instances if seen in idle or seen.instance_id in busy]
    chosen = victims([_candidate(seen) for seen in candidates], shortfall)
    waited = format_duration(patience_s(view, served.model_id, now_s=now_s))
    reason = f"its turn is over: {served.model_id} was waited for {waited}, {shortfall.reason}"
    return tuple(Yield(i, reason) if i in busy else Stop(i, reason) for i in chosen)


def _wait_or_refuse(
    view: View, served: ServedModel, shortfall: Shortfall, *, now_s: float
) -> Refuse | Waiting | tuple[Departures, Waiting]:
    claim = Waiting(frozenset(shortfall.missing_bytes))
    if departures := _make_turn(view, served, shortfall, now_s=now_s):
        return departures, claim
    idle = evictable(view, now_s=now_s)
    if any(not seen.state.is_down and seen not in idle for seen in view.instances):
        # A busy or loading one may still give its memory back; the wait is bounded. What becomes
        # free of itself meanwhile goes to who has waited for a turn, where that can be enough.
        others = [i for i in view.instances if not (i.state.is_down or is_pinned(view, i))]
        can_fit = victims([_candidate(seen) for seen in others], shortfall)
        is_first = can_fit and may_wait_no_longer(view, served, now_s=now_s)
        return claim if is_first else Waiting()
    if served.model_id not in view.demand:
        return Waiting()  # pinned and too big for now: nobody to tell, the next pass looks again
    return Refuse(served.model_id, str(shortfall), retry_after_s=None)


def _candidate(seen: Observed) -> Candidate:
    return Candidate(
        instance_id=seen.instance_id,
        frees={p.device_id: p.total_bytes for p in seen.measured or seen.plan.predicted},
        reload_s=seen.load_s or 0.0,
        last_used_s=seen.last_used_s,
    )
