"""What can be done about memory that others want: which of our launches could take less, and how.

A yield, a lowered limit and pressure come to the same: so many bytes too much on a place. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from planners.errors import PlanError, blamed_on
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.instances.taken import taken
from planners.layout.budget import freed
from planners.layout.prompt_cache import saved_prompts_bytes
from planners.moving.migration import shape_of
from planners.plan import InstanceId, LaunchPlan
from planners.pressure import DEFAULT_RULES, Kind, Option, Rise
from planners.settings import PlacementRules
from planners.speed import PROMPT_WEIGHT
from planners.view import InstanceState, Observed, View
from planners.waiting.turns import evictable

LEAST_GAIN = 0.1  # tokens/s
LEAST_CACHE_BYTES = 64 << 20  # of saved prompts: for fewer no launch is worth its while
LEAST_CONTEXT = 4096  # that an automatic context shrinks to, as placement leaves no less by itself
SHRINKS = (2, 4, 8)  # parts of the context that are tried


class Way(Struct, frozen=True):
    """An option, and the launch that it takes; None where it is to end."""

    option: Option
    seen: Observed
    plan: LaunchPlan | None


def key_of(seen: Observed) -> InstanceId:
    """By what pressure remembers a model: its instances change when it moves."""
    return InstanceId(str(seen.model_id))


def ours_bytes(hardware: HardwareProfile, instances: Iterable[Observed]) -> Counter[DeviceId]:
    """What our launches take, by place."""
    ours = taken(hardware, instances)
    return ours.promised + ours.held


def over_limits(hardware: HardwareProfile, instances: Iterable[Observed]) -> dict[DeviceId, int]:
    """By how many bytes our launches together exceed each place's limit."""
    ours = ours_bytes(hardware, instances)
    limits = {device.device_id: device.limit_bytes for device in hardware.devices}
    limits[HOST] = hardware.host.limit_bytes
    return {
        place: ours[place] - limit
        for place, limit in limits.items()
        if limit is not None and ours[place] > limit
    }


def limited(hardware: HardwareProfile, limits: Mapping[DeviceId, int]) -> HardwareProfile:
    """The machine with these limits, where they are lower than its own."""
    if not limits:
        return hardware

    def lower(place: DeviceId, own: int | None) -> int | None:
        told = [limit for limit in (own, limits.get(place)) if limit is not None]
        return min(told, default=None)

    host = replace(hardware.host, limit_bytes=lower(HOST, hardware.host.limit_bytes))
    devices = tuple(
        replace(device, limit_bytes=lower(device.device_id, device.limit_bytes))
        for device in hardware.devices
    )
    return replace(hardware, host=host, devices=devices)


def ways(
    view: View,
    missing: Mapping[DeviceId, int],
    *,
    now_s: float,
    warm_s: float = DEFAULT_RULES.warm_s,
    caches: Mapping[InstanceId, int] | None = None,
) -> list[Way]:
    """What each ready instance could do for the places that are short of `missing` bytes.

    `warm_s`: for how long after its last answer a model is let go last. `caches`: what saved
    prompts really take of the host, by instance, where they are counted; else as much counts as
    they may.
    """
    evicted = {seen.instance_id for seen in evictable(view, now_s=now_s, lingering=True)}
    found: list[Way] = []
    for seen in view.instances:
        mine = ours_bytes(view.hardware, (seen,))
        if seen.state is not InstanceState.READY or seen.model_id in view.moving:
            continue
        if not any(mine[place] for place in missing):
            continue
        if seen.idle_since_s is not None and not seen.waiting and HOST in missing:
            found += _without_prompts(view, seen, caches)
        if seen.instance_id in evicted:
            is_warm = now_s - seen.last_used_s < warm_s
            kind = Kind.UNLOAD_WARM if is_warm else Kind.UNLOAD
            option = Option(kind, key_of(seen), mine, last_used_s=seen.last_used_s)
            found.append(Way(option, seen, None))
        if (plan := lesser_plan(view, seen, missing)) is not None:
            found += _moves(view, seen, plan, missing, caches)
        if seen.idle_since_s is not None and not seen.waiting:
            found += _shrunk(view, seen, missing, caches)
    return found


def _without_prompts(
    view: View, seen: Observed, caches: Mapping[InstanceId, int] | None
) -> list[Way]:
    """The same launch with no saved prompts: llama-server lets go of them in no other way."""
    served, plan = view.models.get(seen.model_id), seen.plan
    if served is None or not plan.cache_ram_mib:
        return []
    most = saved_prompts_bytes(served.info, shape_of(plan), plan.cache_ram_mib)
    frees = most if caches is None else min(most, caches.get(seen.instance_id, 0))
    if frees < LEAST_CACHE_BYTES:
        return []
    predicted = tuple(
        replace(part, overhead_bytes=max(0, part.overhead_bytes - most))
        if part.device_id == HOST
        else part
        for part in plan.predicted
    )
    option = Option(Kind.DROP_CACHE, key_of(seen), {HOST: frees}, last_used_s=seen.last_used_s)
    return [Way(option, seen, replace(plan, cache_ram_mib=0, predicted=predicted))]


def _shrunk(
    view: View,
    seen: Observed,
    missing: Mapping[DeviceId, int],
    caches: Mapping[InstanceId, int] | None,
) -> list[Way]:
    """With less context, where nobody named one: the most of it that is enough, else the least."""
    served, plan = view.models.get(seen.model_id), seen.plan
    if served is None or plan.embedding or served.settings.context or view.rules.context:
        return []
    floor = max(LEAST_CONTEXT, view.contexts.get(seen.model_id, 0))
    best: list[Way] = []
    for part in SHRINKS:
        if (context := plan.context // part) < floor:
            break
        found = _placed(view, seen, view.hardware, context=context)
        if found is None or found.context >= plan.context:
            continue
        less = _really_less(view, seen, found, caches)
        if not any(less.get(place, 0) > 0 for place in missing):
            continue
        option = Option(Kind.SHRINK, key_of(seen), less, last_used_s=seen.last_used_s)
        best = [Way(option, seen, found)]
        if all(less.get(place, 0) >= n_bytes for place, n_bytes in missing.items()):
            break
    return best


def _moves(
    view: View,
    seen: Observed,
    plan: LaunchPlan,
    missing: Mapping[DeviceId, int],
    caches: Mapping[InstanceId, int] | None,
) -> list[Way]:
    frees = _really_less(view, seen, plan, caches)
    if not any(frees.get(place, 0) > 0 for place in missing):
        return []
    option = Option(
        Kind.MIGRATE,
        key_of(seen),
        frees,
        cost_tokens_per_s=_rate(seen.plan) - _rate(plan),
        is_idle=seen.idle_since_s is not None,
        last_used_s=seen.last_used_s,
    )
    return [Way(option, seen, plan)]


def _really_less(
    view: View, seen: Observed, after: LaunchPlan, caches: Mapping[InstanceId, int] | None
) -> dict[DeviceId, int]:
    """Bytes by which `after` takes less, by place.

    Room for prompts that were never saved is no memory that anybody gets.
    """
    less = _less(seen.plan, after)
    served = view.models.get(seen.model_id)
    if caches is None or served is None:
        return less
    held = caches.get(seen.instance_id, 0)
    most = [
        saved_prompts_bytes(served.info, shape_of(plan), plan.cache_ram_mib)
        for plan in (seen.plan, after)
    ]
    promised, freed_bytes = most[0] - most[1], min(held, most[0]) - min(held, most[1])
    return {**less, HOST: less.get(HOST, 0) - promised + freed_bytes}


def lesser_plan(view: View, seen: Observed, missing: Mapping[DeviceId, int]) -> LaunchPlan | None:
    """A launch of the same context and slots that takes so much less; None where there is none."""
    ours = ours_bytes(view.hardware, view.instances)
    limits = {place: max(0, ours[place] - n_bytes) for place, n_bytes in missing.items()}
    hardware = limited(view.hardware, limits)
    found = _placed(view, seen, hardware, context=seen.plan.context)
    if found is None or found.digest == seen.plan.digest:
        return None
    less = _less(seen.plan, found)
    return found if any(less.get(place, 0) > 0 for place in missing) else None


def rise(view: View, seen: Observed) -> tuple[Rise, LaunchPlan] | None:
    """The launch that its model would have now, where that is another one than it has.

    What placement prefers is a gain, also where predicted rates hardly tell the two apart.
    """
    found = _placed(view, seen, view.hardware, context=None)
    if found is None or found.digest == seen.plan.digest:
        return None
    gain = max(_rate(found) - _rate(seen.plan), LEAST_GAIN)
    takes = {place: -n for place, n in _less(seen.plan, found).items()}
    is_idle = seen.idle_since_s is not None and not seen.waiting
    return Rise(key_of(seen), takes, gain, is_idle), found


def _placed(
    view: View, seen: Observed, hardware: HardwareProfile, *, context: int | None
) -> LaunchPlan | None:
    """Its model placed anew, as if it did not run: with the slots and cache types it has, so that
    what runs can go along. `context`: None is what its model would have now.
    """
    from planners.placement import plan_launch  # late: a daemon starts sooner without it

    served = view.models.get(seen.model_id)
    if served is None or not view.engines:
        return None
    others = [other for other in view.instances if other is not seen]
    theirs, own = taken(view.hardware, others), taken(view.hardware, (seen,))
    rules: PlacementRules = replace(view.rules, type_k=seen.plan.type_k, type_v=seen.plan.type_v)
    settings = replace(served.settings, parallel=seen.plan.n_parallel)
    if context is not None:
        settings = replace(settings, context=context)
    try:
        with blamed_on(seen.model_id):
            answer = plan_launch(
                replace(served, settings=settings),
                hardware=freed(hardware, own.held),
                engines=view.engines,
                rules=rules,
                promised=theirs.promised,
                held=theirs.held,
                learned=view.learned,
                dry_runs=replace(view.dry_runs, are_made=False),
            )
    except PlanError:
        return None
    return answer if isinstance(answer, LaunchPlan) else None


def last_resort(
    view: View, missing: Mapping[DeviceId, int], chosen: Sequence[Way]
) -> list[Observed]:
    """Who must end, the longest unused first, where an operator's limit is not met by `chosen`."""
    left = dict(missing)
    for way in chosen:
        for place in left:
            left[place] -= way.option.frees.get(place, 0)
    ends: list[Observed] = []
    spared = {way.seen.instance_id for way in chosen}
    ranked = sorted(view.instances, key=lambda seen: seen.last_used_s)
    for seen in ranked:
        short = [place for place, n_bytes in left.items() if n_bytes > 0]
        mine = ours_bytes(view.hardware, (seen,))
        is_ready = seen.state is InstanceState.READY and seen.model_id not in view.moving
        if seen.instance_id in spared or not is_ready or not any(mine[place] for place in short):
            continue
        ends.append(seen)
        for place in left:
            left[place] -= mine[place]
    return ends


def _less(before: LaunchPlan, after: LaunchPlan) -> dict[DeviceId, int]:
    """Bytes by which `after` takes less, by place; below 0 where it takes more."""
    places = {part.device_id for plan in (before, after) for part in plan.predicted}
    return {place: before.bytes_on(place) - after.bytes_on(place) for place in places}


def _rate(plan: LaunchPlan) -> float:
    """Predicted tokens/s by what placement goes by: decoding, and a little of the prompt."""
    decode, prompt = plan.predicted_decode_tokens_per_s, plan.predicted_prompt_tokens_per_s
    if not decode or not prompt:
        return 0.0
    return 1 / (1 / decode + PROMPT_WEIGHT / prompt)
