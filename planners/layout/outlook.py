"""A plan with what explains it: its machine, its engine, and what more memory would bring. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from planners.backends import Engine
from planners.errors import PlanError
from planners.hardware import HOST, Device, DeviceId, HardwareProfile
from planners.instances.eviction import candidate, victims
from planners.instances.groups import Group, conflict
from planners.instances.taken import taken
from planners.layout.budget import freed
from planners.layout.dry_runs import NO_DRY_RUNS, DryRuns
from planners.lessons.samples import NOTHING_LEARNED, Learned
from planners.model import ModelId, ServedModel
from planners.plan import InstanceId, LaunchPlan, Shortfall
from planners.settings import PlacementRules
from planners.sizes import GIB
from planners.speed import NOTICED, format_rate
from planners.view import Observed

if TYPE_CHECKING:
    from planners.layout.measures import Measures

_NOTHING: Mapping[DeviceId, int] = MappingProxyType({})
MOST_TRIED = 5  # devices: each takes a plan of its own


class NamedTwice(PlanError):
    """A model cannot be planned beside itself."""

    def __init__(self, *, model_id: ModelId, names: tuple[str, str]) -> None:
        self.model_id, self.names = model_id, names
        both = "" if names[0] == names[1] else f" ({names[0]}, {names[1]})"
        super().__init__(
            f"{model_id} is named twice{both}, and a model runs once: name it once; --parallel"
            " plans more slots"
        )


class Outlook(Struct, frozen=True):
    """How a model would be launched, and on what."""

    served: ServedModel
    answer: LaunchPlan | Shortfall
    hardware: HardwareProfile
    engine: Engine | None
    """Of the plan; None where there is no plan."""
    one_more_gib: tuple[str, ...]
    """What one more GiB would bring, a sentence per place where it brings something."""
    apart: tuple[str, ...] = ()
    """Of models planned at once: a sentence per earlier one that never runs beside it."""
    stops: tuple[ModelId, ...] = ()
    """Models that nobody uses and that would be stopped for it."""


class Surroundings(Struct, frozen=True):
    """All that a plan depends on but the model and the machine."""

    engines: tuple[Engine, ...]
    rules: PlacementRules
    promised: Mapping[DeviceId, int]
    held: Mapping[DeviceId, int]
    learned: Learned = NOTHING_LEARNED
    """Rates of that machine's devices, as served requests showed them."""
    dry_runs: DryRuns = NO_DRY_RUNS
    contexts: Mapping[ModelId, int] = field(default_factory=dict)
    """Tokens that callers of a model once asked for, where the policy keeps to it."""
    others: tuple[Observed, ...] = ()
    """Running instances, whose bytes are counted in `promised` and `held`."""
    idle: frozenset[InstanceId] = frozenset()
    """Those of them that a launch may stop."""

    def beside(self, others: Iterable[Observed], hardware: HardwareProfile) -> "Surroundings":
        """The same with what running instances have of the machine."""
        there = tuple(others)
        theirs = taken(hardware, there)
        return replace(self, promised=theirs.promised, held=theirs.held, others=there)


def each_once(named: Sequence[tuple[str, ServedModel]]) -> tuple[ServedModel, ...]:
    """The models, by the names that they were asked by. Raises NamedTwice where two are of one."""
    first: dict[ModelId, str] = {}
    for name, served in named:
        if served.model_id in first:
            raise NamedTwice(model_id=served.model_id, names=(first[served.model_id], name))
        first[served.model_id] = name
    return tuple(served for _, served in named)


def asking(served: ServedModel, *, context: int | None, parallel: int | None) -> ServedModel:
    """The model with what a client asks for in place of its settings; None leaves one as it is."""
    settings = replace(
        served.settings,
        context=context or served.settings.context,
        parallel=parallel or served.settings.parallel,
    )
    return replace(served, settings=settings)


def outlook(served: ServedModel, hardware: HardwareProfile, around: Surroundings) -> Outlook:
    """The plan, its engine, and what one more GiB would bring. Raises PlanError as plan_launch."""
    from planners.layout.measures import Measures  # late: see planners.placement

    measures = Measures(served.info, served.draft)
    stopped = _stopped(served, hardware, around, measures)
    if stopped:
        hardware = freed(hardware, taken(hardware, stopped).held)
        around = around.beside((o for o in around.others if o not in stopped), hardware)
    answer = _planned(served, hardware, around, measures)
    more = tuple(_one_more_gib(served, hardware, around, measures, answer))
    told = _outlook(served, answer, hardware, around, one_more_gib=more)
    return replace(told, stops=tuple(seen.model_id for seen in stopped))


def _stopped(
    served: ServedModel, hardware: HardwareProfile, around: Surroundings, measures: "Measures"
) -> tuple[Observed, ...]:
    """The instances that a launch would stop first; () where it needs none, or none would do."""
    idle = [seen for seen in around.others if seen.instance_id in around.idle]
    candidates = [candidate(hardware, seen) for seen in idle]
    could_free = Counter[DeviceId]()
    for each in candidates:
        could_free.update(each.frees)
    answer = _planned(served, hardware, around, measures, could_free=could_free)
    chosen = victims(candidates, answer) if isinstance(answer, Shortfall) else ()
    return tuple(seen for seen in idle if seen.instance_id in chosen)


def outlooks(
    models: Sequence[ServedModel], hardware: HardwareProfile, around: Surroundings
) -> tuple[Outlook, ...]:
    """Likewise for several models beside each other, less what one more GiB would bring."""
    from planners.layout.together import plan_together  # late: see planners.placement

    answers = plan_together(
        models,
        hardware=hardware,
        engines=around.engines,
        rules=around.rules,
        promised=around.promised,
        held=around.held,
        learned=around.learned,
        dry_runs=around.dry_runs,
        least_contexts=around.contexts,
    )
    return tuple(
        _outlook(served, answers[served.model_id], hardware, around, one_more_gib=())
        for served in models
    )


def grouped(planned: Sequence[Outlook], groups: Sequence[Group]) -> tuple[Outlook, ...]:
    """The same, told of groups that keep two of them apart, however much memory there is."""
    return tuple(
        replace(each, apart=tuple(_apart(each.served, planned[:n], groups)))
        for n, each in enumerate(planned)
    )


def _apart(
    served: ServedModel, before: Iterable[Outlook], groups: Sequence[Group]
) -> Iterator[str]:
    for other in before:
        if (why := conflict(other.served, served, groups)) is not None:
            yield f"{other.served.model_id} and {served.model_id} never run at once: {why}"


def _outlook(
    served: ServedModel,
    answer: LaunchPlan | Shortfall,
    hardware: HardwareProfile,
    around: Surroundings,
    *,
    one_more_gib: tuple[str, ...],
) -> Outlook:
    engine_id = answer.engine_id if isinstance(answer, LaunchPlan) else None
    engine = next((e for e in around.engines if e.engine_id == engine_id), None)
    return Outlook(served, answer, hardware, engine, one_more_gib)


def _planned(
    served: ServedModel,
    hardware: HardwareProfile,
    around: Surroundings,
    measures: "Measures",
    *,
    could_free: Mapping[DeviceId, int] = _NOTHING,
) -> LaunchPlan | Shortfall:
    from planners.placement import plan_launch  # late: see planners.placement

    def planned(least_context: int) -> LaunchPlan | Shortfall:
        return plan_launch(
            served,
            hardware=hardware,
            engines=around.engines,
            rules=around.rules,
            promised=around.promised,
            held=around.held,
            could_free=could_free,
            learned=around.learned,
            measures=measures,
            dry_runs=around.dry_runs,
            least_context=least_context,
        )

    wanted = around.contexts.get(served.model_id, 0)
    answer = planned(wanted)
    # As a launch does: with less context than callers asked for rather than not at all.
    return planned(0) if wanted and isinstance(answer, Shortfall) else answer


def _one_more_gib(
    served: ServedModel,
    hardware: HardwareProfile,
    around: Surroundings,
    measures: "Measures",
    answer: LaunchPlan | Shortfall,
) -> Iterator[str]:
    """A sentence per pool whose next GiB would change the plan for the better."""
    for name, roomier in _roomier(hardware):
        gain = _gain(answer, _planned(served, roomier, around, measures))
        if gain:
            yield f"1 GiB more on {name}: {gain}"


def _roomier(hardware: HardwareProfile) -> Iterator[tuple[str, HardwareProfile]]:
    """The machine with one more GiB, once on each device of its own memory and once on the host.

    Of devices that are alike one is tried, and of all the MOST_TRIED largest ones.
    """
    own = [d for d in hardware.devices if d.use and d.engine_names and not d.shares_host]
    alike: dict[object, list[Device]] = {}
    for device in sorted(own, key=lambda d: -(d.total_bytes or 0)):
        alike.setdefault(_kind(device), []).append(device)
    for first, *others in list(alike.values())[:MOST_TRIED]:
        devices = tuple(_more(d) if d is first else d for d in hardware.devices)
        name = f"{first.name} or one of {len(others)} like it" if others else first.name
        yield f"{name}{_with_limit(first.limit_bytes)}", replace(hardware, devices=devices)
    host = hardware.host
    more = replace(
        host,
        total_bytes=host.total_bytes + GIB,
        available_bytes=host.available_bytes + GIB,
        cgroup_limit_bytes=_plus(host.cgroup_limit_bytes),
        limit_bytes=_plus(host.limit_bytes),
    )
    sharing = tuple(_larger(d) if d.shares_host else d for d in hardware.devices)
    where = f"{HOST}{_with_limit(host.limit_bytes)}"
    yield where, replace(hardware, host=more, devices=sharing)


def _with_limit(limit_bytes: int | None) -> str:
    """Said where memory alone would not help: the operator's limit must grow with it."""
    return "" if limit_bytes is None else " and in its limit"


def _kind(device: Device) -> object:
    """Equal where a GiB more on one device brings what it brings on another."""
    backends = tuple(backend for backend, _ in device.engine_names)
    alike = replace(device, device_id=DeviceId(""), name="", engine_names=())
    return alike, backends, device.is_loopback


def _more(device: Device) -> Device:
    return replace(_larger(device), limit_bytes=_plus(device.limit_bytes))


def _larger(device: Device) -> Device:
    """The device with one more GiB, of which its limit takes no note."""
    return replace(
        device, total_bytes=_plus(device.total_bytes), free_bytes=_plus(device.free_bytes)
    )


def _plus(n_bytes: int | None) -> int | None:
    return None if n_bytes is None else n_bytes + GIB


def _gain(now: LaunchPlan | Shortfall, then: LaunchPlan | Shortfall) -> str:
    """What is better in `then`; "" where nothing is that anybody would notice."""
    if isinstance(then, Shortfall):
        return ""
    if isinstance(now, Shortfall):
        return f"it would fit, with context {then.context} × {then.n_parallel}"
    gains = [
        *_better("layers on devices", now.n_gpu_layers, then.n_gpu_layers),
        *_better("tokens of context", now.context, then.context),
        *_better("tokens a batch", now.n_ubatch, then.n_ubatch),
    ]
    if then.n_cpu_moe < now.n_cpu_moe:
        left = f"{then.n_cpu_moe} rather than {now.n_cpu_moe}"
        gains.append(f"the experts of {left} layers in host memory")
    decode = now.predicted_decode_tokens_per_s, then.predicted_decode_tokens_per_s
    if decode[0] and decode[1] and decode[1] > decode[0] * NOTICED:
        gains.append(
            f"{format_rate(decode[1])} rather than {format_rate(decode[0])} tokens/s of decode"
        )
    return ", ".join(gains)


def _better(what: str, now: int, then: int) -> Iterator[str]:
    if then > now:
        yield f"{then} rather than {now} {what}"
