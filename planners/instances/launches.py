"""Which models are to be launched now, with which plan, and who makes room or waits for it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from msgspec.structs import replace

from planners.hardware import HOST, DeviceId
from planners.instances.actions import Action, Move, Refuse, Restart, Start, Stop, Yield
from planners.instances.groups import conflict
from planners.instances.last_rung import has_just_died_of, least_plan, with_cause
from planners.instances.restart import tries_by_itself
from planners.instances.room import (
    Departures,
    Waiting,
    claim_of,
    context_of,
    freeable,
    make_rivals_leave,
    make_room,
    make_room_by_count,
    make_turn,
    planned,
)
from planners.instances.taken import Taken, taken
from planners.launch_key import launch_key
from planners.model import ModelId, ServedModel
from planners.plan import LaunchPlan, Shortfall
from planners.view import RELEASING, InstanceState, Observed, View
from planners.waiting.turns import (
    evictable,
    is_pinned,
    may_wait_no_longer,
    patience_s,
    pinned_for_good,
    rivals,
)

_NOBODYS_BYTES = 1 << 62  # promised of a device that nobody after may take room on
NO_ENGINE = (
    "no llama-server runs on this machine; build one with scripts/build_backends.sh cpu "
    "(inferenceosctl status tells why each one found was refused)"
)


def launches(view: View, *, now_s: float) -> Iterator[Action]:
    """Starts, restarts, refusals and the departures they need, longest wait first."""
    present = {seen.model_id: seen for seen in view.instances}
    leaving = any(seen.state in RELEASING for seen in view.instances)
    alive = sum(not seen.state.is_down for seen in view.instances)
    ours = taken(view.hardware, view.instances)
    first: list[ServedModel] = []  # they start now, or room is being made for them
    joint = _joint(view, ours=ours, alive=alive, leaving=leaving, now_s=now_s)
    for served in wanted(view, now_s=now_s):
        seen = present.get(served.model_id)
        if seen is not None and not _is_due(view, seen, now_s=now_s):
            if seen.state is InstanceState.FAILED and seen.waiting:
                yield _refusal(seen, now_s=now_s)
            continue
        if any(conflict(served, other, view.settings.groups) for other in first):
            continue
        plan = joint.get(served.model_id)
        launch = _launch(
            view, served, seen, plan, ours=ours, alive=alive, leaving=leaving, now_s=now_s
        )
        if isinstance(launch, Refuse) and first and view.engines:
            continue  # it may fit beside less than what takes room in this very pass
        match launch:
            case (Start(plan) | Restart(_, plan)) as action:
                yield action
                alive += 1
                first.append(served)
                ours.promised.update({p.device_id: p.upper_bytes for p in plan.predicted})
            case Refuse() as refusal:
                if _is_to_be_told(view, served):
                    yield refusal
            case Waiting(claims, is_next):
                if is_next:
                    first.append(served)
                ours.promised.update(dict.fromkeys(claims, _NOBODYS_BYTES))
            case (departures, Waiting(claims, _)):
                yield from departures
                view = after(view, departures)
                leaving = True
                first.append(served)
                ours.promised.update(dict.fromkeys(claims, _NOBODYS_BYTES))


def _is_to_be_told(view: View, served: ServedModel) -> bool:
    """Whether somebody waits for a refusal; who pinned the model is told once."""
    if served.model_id in view.demand:
        return True
    was_told = view.told.get(served.model_id) == launch_key(served, view.rules)
    return served.settings.pin and not was_told


def _joint(
    view: View, *, ours: Taken, alive: int, leaving: bool, now_s: float
) -> Mapping[ModelId, LaunchPlan]:
    """Plans beside each other for models that are to be launched at once, so that none takes all.

    {} where each is planned by itself, the longest wait first: there is one, they do not all fit,
    some may not run beside others, a caller wants a context, or room is still to be made.
    """
    due = due_for_launch(view, now_s=now_s)
    if not _may_start_together(view, due, alive=alive, leaving=leaving, now_s=now_s):
        return {}
    from planners.layout.together import plan_together  # late: see planners.placement

    answers = plan_together(
        due,
        hardware=view.hardware,
        engines=view.engines or (),
        rules=view.rules,
        promised=ours.promised,
        held=ours.held,
        learned=view.learned,
        dry_runs=view.dry_runs,
    )
    plans = {name: plan for name, plan in answers.items() if isinstance(plan, LaunchPlan)}
    return plans if len(plans) == len(due) else {}


def _may_start_together(
    view: View, due: list[ServedModel], *, alive: int, leaving: bool, now_s: float
) -> bool:
    most, groups = view.settings.max_loaded, view.settings.groups
    return (
        len(due) > 1
        and bool(view.engines)
        and not (leaving or view.settling)
        and not evictable(view, now_s=now_s, lingering=True)
        and (most is None or alive + len(due) <= most)
        and not any(rivals(view, served) or context_of(view, served) for served in due)
        and not any(conflict(a, b, groups) for a, b in combinations(due, 2))
    )


def due_for_launch(view: View, *, now_s: float) -> list[ServedModel]:
    """Wanted models whose launch has to be thought about now."""
    present = {seen.model_id: seen for seen in view.instances}
    return [
        served
        for served in wanted(view, now_s=now_s)
        if (seen := present.get(served.model_id)) is None or _is_due(view, seen, now_s=now_s)
    ]


def wanted(view: View, *, now_s: float) -> list[ServedModel]:
    """Models that somebody waits for, the longest wait for a turn first, then pinned ones.

    Those whose planning failed are left out, and those that move.
    """

    def rank(served: ServedModel) -> tuple[float, str]:
        waits = served.model_id in view.demand
        waited_s = patience_s(view, served.model_id, now_s=now_s) if waits else -1.0
        return (-waited_s, served.model_id)

    left_out = view.moving.union(view.unplannable)
    models = [m for m in view.models.values() if m.model_id not in left_out]
    asked = (m for m in models if m.settings.pin or m.model_id in view.demand)
    in_backoff = {i.model_id for i in view.instances if i.state is InstanceState.BACKOFF}
    kept = (m for m in models if m.model_id in in_backoff)
    return sorted({m.model_id: m for m in (*asked, *kept)}.values(), key=rank)


def _is_due(view: View, seen: Observed, *, now_s: float) -> bool:
    if not seen.state.is_down or seen.retry_at_s is None or now_s < seen.retry_at_s:
        return False
    if seen.state is InstanceState.BACKOFF or seen.waiting:
        return True
    return tries_by_itself(seen.openings, is_pinned=is_pinned(view, seen))


def _refusal(seen: Observed, *, now_s: float) -> Refuse:
    reason = seen.cause.summary if seen.cause else "it failed to start"
    log_tail = seen.cause.log_tail if seen.cause else ()
    retry_after_s = None if seen.retry_at_s is None else max(0.0, seen.retry_at_s - now_s)
    return Refuse(seen.model_id, reason, retry_after_s, log_tail)


def _launch(
    view: View,
    served: ServedModel,
    seen: Observed | None,
    joint: LaunchPlan | None,
    *,
    ours: Taken,
    alive: int,
    leaving: bool,
    now_s: float,
) -> Start | Restart | Refuse | Waiting | tuple[Departures, Waiting]:
    # One that died, and that nobody asks for now, comes back only into room that is free anyway.
    is_asked_for = served.settings.pin or served.model_id in view.demand
    if not view.engines:
        return Refuse(served.model_id, NO_ENGINE, retry_after_s=None)
    if others := rivals(view, served):
        if not is_asked_for:
            return Waiting()
        return make_rivals_leave(view, served, others, now_s=now_s)
    if view.settings.max_loaded is not None and alive >= view.settings.max_loaded:
        if leaving or not is_asked_for:
            return Waiting()
        return make_room_by_count(view, served, now_s=now_s)
    context = context_of(view, served)
    plan = joint or _placed(
        view, served, seen, ours=ours, leaving=leaving, context=context, now_s=now_s
    )
    if not isinstance(plan, LaunchPlan):
        return plan
    if _comes_back(view, [device for device, _, _ in plan.devices] or [HOST]):
        return Waiting()
    if seen is not None:
        return Restart(seen.instance_id, plan, _why_again(seen), context)
    reason = "pinned" if served.model_id not in view.demand else "asked for"
    if plan.context < min(context, served.info.n_ctx_train):
        reason += f", with less than the context of {context} that finds no room"
    return Start(plan, launch_key(served, view.rules), reason, context)


def _why_again(seen: Observed) -> str:
    if seen.state is InstanceState.BACKOFF:
        return "its child ended unasked"
    whom = "a request waits" if seen.waiting else "it is pinned"
    return f"its cooldown is over and {whom}: one load is tried"


def _placed(
    view: View,
    served: ServedModel,
    seen: Observed | None,
    *,
    ours: Taken,
    leaving: bool,
    context: int,
    now_s: float,
) -> LaunchPlan | Refuse | Waiting | tuple[Departures, Waiting]:
    """The launch there is room for, or what becomes of a model without one."""
    is_asked_for = served.settings.pin or served.model_id in view.demand
    could_free = freeable(view, now_s=now_s) + Counter(view.settling) if is_asked_for else {}
    plan = planned(view, served, ours=ours, could_free=could_free, context=context)
    if isinstance(plan, LaunchPlan):
        return plan
    if not is_asked_for:
        return Waiting()
    claim = claim_of(view, plan)
    if leaving or _comes_back(view, plan.missing_bytes):
        return claim
    if stops := make_room(view, served, plan, now_s=now_s):
        return stops, claim
    if make_room(view, served, plan, now_s=now_s, lingering=True):
        return claim
    plan = _beside_all(view, served, ours=ours, context=context)
    if isinstance(plan, LaunchPlan):
        return plan
    answer = with_cause(_wait_or_refuse(view, served, plan, now_s=now_s), seen)
    is_waited_for = served.model_id in view.demand
    is_own_trial = seen is not None and not is_waited_for
    if not (is_own_trial or (is_waited_for and isinstance(answer, Refuse))):
        return answer
    least = least_plan(view, served, plan, ours=ours, context=context)
    if least is None or (seen and has_just_died_of(seen, least, now_s=now_s)):
        return answer
    return least


def _comes_back(view: View, devices: Iterable[DeviceId]) -> bool:
    """Whether memory of any of them still comes back from what was stopped."""
    return any(device in view.settling for device in devices)


def _beside_all(
    view: View, served: ServedModel, *, ours: Taken, context: int
) -> LaunchPlan | Shortfall:
    """Beside all that stays, with less context than was asked for rather than not at all.

    A Shortfall is of the least that is acceptable.
    """
    plan = planned(view, served, ours=ours, could_free={}, context=context)
    if isinstance(plan, Shortfall) and context:
        plan = planned(view, served, ours=ours, could_free={}, context=0)
    return plan


def _wait_or_refuse(
    view: View, served: ServedModel, shortfall: Shortfall, *, now_s: float
) -> Refuse | Waiting | tuple[Departures, Waiting]:
    claim = claim_of(view, shortfall)
    if departures := make_turn(view, served, shortfall, now_s=now_s):
        return departures, claim
    pinned = pinned_for_good(view)
    staying = (*evictable(view, now_s=now_s), *pinned)
    if any(not seen.state.is_down and seen not in staying for seen in view.instances):
        # A busy or loading one may still give its memory back; the wait is bounded. What becomes
        # free of itself meanwhile goes to who has waited for a turn, where that can be enough.
        return claim if may_wait_no_longer(view, served, now_s=now_s) else Waiting()
    beside = ", ".join(seen.model_id for seen in pinned)
    reason = f"{shortfall}, beside what is pinned: {beside}" if beside else str(shortfall)
    return Refuse(served.model_id, reason, retry_after_s=None)


def after(view: View, actions: Iterable[Action]) -> View:
    """The view with those that are told to stop as good as draining."""
    leaving = {a.instance_id for a in actions if isinstance(a, Stop | Yield)}
    moving = {a.instance_id for a in actions if isinstance(a, Move)}
    instances = tuple(
        replace(seen, state=InstanceState.DRAINING) if seen.instance_id in leaving else seen
        for seen in view.instances
    )
    moved = {seen.model_id for seen in instances if seen.instance_id in moving}
    return replace(view, instances=instances, moving=view.moving | moved)
