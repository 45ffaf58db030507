"""Room for one more launch: the plan beside what stays, and who goes so that there is one. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from planners.durations import format_duration
from planners.errors import blamed_on
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.instances.actions import Refuse, Stop, Yield
from planners.instances.eviction import candidate, victims
from planners.instances.taken import Taken, taken
from planners.layout.budget import budgets, freed
from planners.model import ServedModel
from planners.plan import LaunchPlan, Shortfall
from planners.settings import ContextPolicy
from planners.view import RELEASING, Observed, View
from planners.waiting.turns import evictable, is_pinned, patience_s, pinned_for_good, yielding

Departures = tuple[Stop | Yield, ...]


class Waiting(Struct, frozen=True):
    """A model that waits: for room on devices that is being made for it, or for what may come."""

    claims: frozenset[DeviceId] = frozenset()
    """Where nobody after it may take what becomes free."""
    is_next: bool = False
    """Whether nobody after it may start that would keep it from starting."""


def context_of(view: View, served: ServedModel) -> int:
    """Tokens that callers of the model want, now or once before; 0 where they leave it to us."""
    demand = view.demand.get(served.model_id)
    now = demand.context if demand else 0
    if view.settings.context_policy is ContextPolicy.CLIENT:
        return now
    return max(now, view.contexts.get(served.model_id, 0))


def planned(
    view: View,
    served: ServedModel,
    *,
    ours: Taken,
    could_free: Mapping[DeviceId, int],
    context: int,
) -> LaunchPlan | Shortfall:
    """The launch of a model in `view`, with `context` tokens a request at least. Raises PlanBug."""
    from planners.placement import plan_launch  # late: see planners.placement

    if context and view.settings.context_policy is ContextPolicy.CLIENT:
        served = replace(served, settings=replace(served.settings, context=context))
    with blamed_on(served.model_id):
        return plan_launch(
            served,
            hardware=view.hardware,
            engines=view.engines or (),
            rules=view.rules,
            promised=ours.promised,
            held=ours.held,
            could_free=could_free,
            learned=view.learned,
            dry_runs=view.dry_runs,
            least_context=context,
        )


def room_beside(
    plan: LaunchPlan, hardware: HardwareProfile, others: Iterable[Observed]
) -> dict[DeviceId, int]:
    """What `plan` may take beside other instances, on each of its devices and on HOST.

    By what counts as free; a device that is no longer there is left out.
    """
    ours = taken(hardware, others)
    found = budgets(hardware, backend=plan.backend, promised=ours.promised, held=ours.held)
    there = {HOST, *(budget.device_id for budget in found.devices)}
    places = (part.device_id for part in plan.predicted if part.device_id in there)
    return {device_id: found.room_bytes(device_id) for device_id in places}


def freeable(view: View, *, now_s: float) -> Counter[DeviceId]:
    """Bytes that instances nobody uses would give back, by device."""
    given: Counter[DeviceId] = Counter()
    for seen in evictable(view, now_s=now_s, lingering=True):
        given.update(candidate(view.hardware, seen).frees)
    return given


def make_rivals_leave(
    view: View, served: ServedModel, others: list[tuple[Observed, str]], *, now_s: float
) -> Refuse | Waiting | tuple[Departures, Waiting]:
    """The departure of all that may not run beside `served`, once all of them may be told to go."""
    idle = evictable(view, now_s=now_s)
    busy = yielding(view, served, now_s=now_s)
    departures: list[Stop | Yield] = []
    for seen, why in others:
        reason = f"to load {served.model_id}: {why}"
        if seen in idle:
            departures.append(Stop(seen.instance_id, reason, served.model_id))
        elif seen in busy:
            departures.append(Yield(seen.instance_id, reason, served.model_id))
        elif view.models[seen.model_id].settings.pin and served.model_id in view.demand:
            pinned = f"{why}, and {seen.model_id} is pinned"
            return Refuse(served.model_id, pinned, retry_after_s=None)
        elif seen.state not in RELEASING:
            return Waiting()
    claim = Waiting(is_next=True)
    return (tuple(departures), claim) if departures else claim


def make_room_by_count(
    view: View, served: ServedModel, *, now_s: float
) -> Refuse | Waiting | tuple[Departures, Waiting]:
    """The departure of one where only so many may be loaded; not for what cannot be loaded."""
    if (never := _unfit(view, served)) is not None:
        return Refuse(served.model_id, str(never), retry_after_s=None)
    reason = f"to load {served.model_id}: {view.settings.max_loaded} models at once is the limit"
    for seen in evictable(view, now_s=now_s)[:1]:
        return (Stop(seen.instance_id, reason, served.model_id),), Waiting()
    if not evictable(view, now_s=now_s, lingering=True):
        busy = yielding(view, served, now_s=now_s)
        for seen in sorted(busy, key=lambda seen: seen.ready_since_s or 0.0)[:1]:
            return (Yield(seen.instance_id, reason, served.model_id),), Waiting()
    pinned = pinned_for_good(view)
    if all(seen.state.is_down or seen in pinned for seen in view.instances):
        names = ", ".join(seen.model_id for seen in pinned)
        why = f"{view.settings.max_loaded} models at once is the limit, and pinned are {names}"
        return Refuse(served.model_id, why, retry_after_s=None)
    return Waiting()


def make_room(
    view: View, served: ServedModel, shortfall: Shortfall, *, now_s: float, lingering: bool = False
) -> Departures:
    """The evictions that close a shortfall; () where none would."""
    idle = evictable(view, now_s=now_s, lingering=lingering)
    chosen = victims([candidate(view.hardware, seen) for seen in idle], shortfall)
    reason = f"to make room for {served.model_id}: {shortfall.reason}"
    return tuple(Stop(instance_id, reason, served.model_id) for instance_id in chosen)


def make_turn(view: View, served: ServedModel, shortfall: Shortfall, *, now_s: float) -> Departures:
    """Likewise with those whose turn is over, though they are in use."""
    idle = evictable(view, now_s=now_s)
    busy = {seen.instance_id for seen in yielding(view, served, now_s=now_s)}
    candidates = [seen for seen in view.instances if seen in idle or seen.instance_id in busy]
    chosen = victims([candidate(view.hardware, seen) for seen in candidates], shortfall)
    waited = format_duration(patience_s(view, served.model_id, now_s=now_s))
    reason = f"its turn is over: {served.model_id} was waited for {waited}, {shortfall.reason}"
    return tuple((Yield if i in busy else Stop)(i, reason, served.model_id) for i in chosen)


def claim_of(view: View, shortfall: Shortfall) -> Waiting:
    """A place before others where room is made; none for who would find none without them."""
    others = [i for i in view.instances if not (i.state.is_down or is_pinned(view, i))]
    if not victims([candidate(view.hardware, seen) for seen in others], shortfall):
        return Waiting()
    return Waiting(frozenset(shortfall.missing_bytes), is_next=True)


def _unfit(view: View, served: ServedModel) -> Shortfall | None:
    """What the model lacks though all others but the pinned ones were gone; None where it fits."""
    pinned = [seen for seen in view.instances if is_pinned(view, seen)]
    others = taken(view.hardware, [seen for seen in view.instances if seen not in pinned])
    room = replace(view, hardware=freed(view.hardware, others.held))
    kept = taken(view.hardware, pinned)
    plan = planned(room, served, ours=kept, could_free={}, context=0)
    return plan if isinstance(plan, Shortfall) else None
