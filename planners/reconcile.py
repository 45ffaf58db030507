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

from planners.durations import format_duration
from planners.eviction import Candidate, victims
from planners.hardware import HOST, DeviceId, DeviceKind, HardwareProfile
from planners.model import ModelId, ServedModel
from planners.placement import plan_launch
from planners.plan import InstanceId, LaunchPlan, Shortfall
from planners.settings import PlacementRules
from planners.together import plan_together
from planners.view import InstanceState, Observed, View

_RELEASING = (InstanceState.DRAINING, InstanceState.STOPPING)


@dataclass(frozen=True, slots=True)
class Taken:
    """What our own instances have of the machine, by how the machine counts it."""

    promised: Counter[DeviceId]
    """Spoken for though it still counts as free: all of a loading instance's; of the others what
    free figures never show, which is file-backed weights (the kernel counts them as available)
    and everything on devices that report no use."""
    held: Counter[DeviceId]
    """The rest, which the machine counts as used; it counts against the operator's limits."""


@dataclass(frozen=True, slots=True)
class Start:
    """Launch a new instance."""

    plan: LaunchPlan
    launch_key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Launch an instance in BACKOFF again, by a fresh plan."""

    instance_id: InstanceId
    plan: LaunchPlan
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Drain an instance, stop its child, forget it."""

    instance_id: InstanceId
    reason: str
    room_for: ModelId | None = None
    """The model that gets its room; None where it ends on its own account."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell everyone in a model's line that it cannot be served."""

    model_id: ModelId
    reason: str
    retry_after_s: float | None


Action = Start | Restart | Stop | Refuse

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
    stopping = {stop.instance_id for stop in stops}
    if view.engines is None:
        return stops
    instances = tuple(
        replace(seen, state=InstanceState.DRAINING) if seen.instance_id in stopping else seen
        for seen in view.instances
    )
    return stops + tuple(_launches(replace(view, instances=instances), now_s=now_s))


def awaits_launch(view: View, *, now_s: float) -> bool:
    """Whether a launch, or its refusal, has to be thought about; quickly told."""
    return view.engines is not None and bool(_due(view, now_s=now_s))


def _stops(view: View, *, now_s: float) -> Iterator[Stop]:
    for seen in view.instances:
        if seen.state not in _RELEASING and (reason := why_stop(view, seen, now_s=now_s)):
            yield Stop(seen.instance_id, reason)


def why_stop(view: View, seen: Observed, *, now_s: float) -> str | None:
    """Why a running instance is to end on its own account; None where it is not."""
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


def _launches(view: View, *, now_s: float) -> Iterator[Action]:
    """Starts, restarts, refusals and the evictions they need, longest wait first."""
    present = {seen.model_id: seen for seen in view.instances}
    leaving = any(seen.state in _RELEASING for seen in view.instances)
    alive = sum(not seen.state.is_down for seen in view.instances)
    ours = taken(view.hardware, view.instances)
    joint = _joint(view, ours=ours, alive=alive, leaving=leaving, now_s=now_s)
    for served in wanted(view):
        seen = present.get(served.model_id)
        if seen is not None and not _is_due(seen, now_s=now_s):
            if seen.state is InstanceState.FAILED and seen.waiting:
                yield _refusal(seen)
            continue
        plan = joint.get(served.model_id)
        match _launch(view, served, seen, plan, ours=ours, alive=alive, leaving=leaving):
            case (Start(plan) | Restart(_, plan)) as action:
                yield action
                alive += 1
                ours.promised.update({p.device_id: p.upper_bytes for p in plan.predicted})
            case Refuse() as refusal:
                yield refusal
            case tuple() as evictions:
                yield from evictions
                leaving = leaving or bool(evictions)


def _joint(
    view: View, *, ours: Taken, alive: int, leaving: bool, now_s: float
) -> Mapping[ModelId, LaunchPlan]:
    """Plans beside each other for models that are to be launched at once, so that none takes all.

    {} where each is planned by itself, the longest wait first: there is one, they do not all fit,
    or room is still to be made.
    """
    due = _due(view, now_s=now_s)
    most = view.settings.max_loaded
    if leaving or len(due) < 2 or not view.engines or evictable(view):
        return {}
    if most is not None and alive + len(due) > most:
        return {}
    answers = plan_together(
        due,
        hardware=view.hardware,
        engines=view.engines,
        rules=view.rules,
        promised=ours.promised,
        held=ours.held,
        learned=view.learned,
        dry_runs=view.dry_runs,
    )
    plans = {name: plan for name, plan in answers.items() if isinstance(plan, LaunchPlan)}
    return plans if len(plans) == len(due) else {}


def _due(view: View, *, now_s: float) -> list[ServedModel]:
    """Wanted models whose launch has to be thought about now."""
    present = {seen.model_id: seen for seen in view.instances}
    return [
        served
        for served in wanted(view)
        if (seen := present.get(served.model_id)) is None or _is_due(seen, now_s=now_s)
    ]


def wanted(view: View) -> list[ServedModel]:
    """Models that somebody waits for, then pinned ones; the longest wait first."""

    def rank(served: ServedModel) -> tuple[float, str]:
        demand = view.demand.get(served.model_id)
        return (-demand.oldest_wait_s if demand else 1.0, served.model_id)

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


def _refusal(seen: Observed) -> Refuse:
    reason = seen.cause.summary if seen.cause else "it failed to start"
    return Refuse(seen.model_id, reason, retry_after_s=None)


def _launch(
    view: View,
    served: ServedModel,
    seen: Observed | None,
    joint: LaunchPlan | None,
    *,
    ours: Taken,
    alive: int,
    leaving: bool,
) -> Start | Restart | Refuse | tuple[Stop, ...]:
    if not view.engines:
        return Refuse(served.model_id, NO_ENGINE, retry_after_s=None)
    if view.settings.max_loaded is not None and alive >= view.settings.max_loaded:
        return () if leaving else _make_room_by_count(view, served)
    plan = joint or _planned(view, served, ours=ours, could_free=_could_free(view))
    if isinstance(plan, Shortfall):
        if leaving:
            return ()
        if stops := _make_room(view, served, plan):
            return stops
        plan = _planned(view, served, ours=ours, could_free={})  # beside all that stays, then
    if isinstance(plan, Shortfall):
        return _wait_or_refuse(view, served, plan)
    if seen is not None:
        return Restart(seen.instance_id, plan, "its child ended unasked")
    reason = "pinned" if served.model_id not in view.demand else "asked for"
    return Start(plan, launch_key(served, view.rules), reason)


def _planned(
    view: View, served: ServedModel, *, ours: Taken, could_free: Mapping[DeviceId, int]
) -> LaunchPlan | Shortfall:
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
    )


def evictable(view: View) -> list[Observed]:
    """Idle, unpinned, unasked-for instances, the longest idle first."""
    return sorted(
        (
            seen
            for seen in view.instances
            if seen.state is InstanceState.READY
            and seen.idle_since_s is not None
            and not seen.waiting
            and (served := view.models.get(seen.model_id)) is not None
            and not served.settings.pin
        ),
        key=lambda seen: seen.idle_since_s or 0.0,
    )


def _could_free(view: View) -> Counter[DeviceId]:
    freed: Counter[DeviceId] = Counter()
    for seen in evictable(view):
        freed.update(_candidate(seen).frees)
    return freed


def _make_room_by_count(view: View, served: ServedModel) -> tuple[Stop, ...]:
    idle = evictable(view)[:1]
    reason = f"to load {served.model_id}: {view.settings.max_loaded} models at once is the limit"
    return tuple(Stop(seen.instance_id, reason, served.model_id) for seen in idle)


def _make_room(view: View, served: ServedModel, shortfall: Shortfall) -> tuple[Stop, ...]:
    """The evictions that close a shortfall; () where none would."""
    chosen = victims([_candidate(seen) for seen in evictable(view)], shortfall)
    reason = f"to make room for {served.model_id}: {shortfall.reason}"
    return tuple(Stop(instance_id, reason, served.model_id) for instance_id in chosen)


def _wait_or_refuse(view: View, served: ServedModel, shortfall: Shortfall) -> Refuse | tuple[()]:
    idle = evictable(view)
    if any(not seen.state.is_down and seen not in idle for seen in view.instances):
        return ()  # a busy or loading one may still give its memory back; the wait is bounded
    if served.model_id not in view.demand:
        return ()  # pinned and too big for now: nobody to tell, the next pass looks again
    return Refuse(served.model_id, str(shortfall), retry_after_s=None)


def _candidate(seen: Observed) -> Candidate:
    return Candidate(
        instance_id=seen.instance_id,
        frees={p.device_id: p.total_bytes for p in seen.measured or seen.plan.predicted},
        reload_s=seen.load_s or 0.0,
        last_used_s=seen.last_used_s,
    )


def taken(hardware: HardwareProfile, instances: Iterable[Observed]) -> Taken:
    """Bytes of all living instances, each byte in one of the two counts."""
    silent = (DeviceKind.SOFTWARE, DeviceKind.REMOTE)
    blind = {device.device_id for device in hardware.devices if device.kind in silent}
    ours = Taken(Counter(), Counter())
    for seen in instances:
        if seen.state.is_down:
            continue
        for part in seen.plan.predicted:
            unseen_bytes = part.weights_bytes if part.device_id == HOST else 0
            if seen.state is InstanceState.LOADING or part.device_id in blind:
                unseen_bytes = part.upper_bytes
            ours.promised[part.device_id] += unseen_bytes
            ours.held[part.device_id] += max(0, part.total_bytes - unseen_bytes)
    return ours
