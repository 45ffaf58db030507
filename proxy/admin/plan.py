"""What the admin door says of a plan: the plan itself, and what explains it to people."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from planners.argv import child_argv
from planners.errors import PlanError
from planners.hardware import HOST, HardwareProfile
from planners.layout.layer_map import layer_map
from planners.layout.outlook import Outlook
from planners.plan import DeviceBytes, LaunchPlan, Shortfall
from planners.reasons import ReasonKind

NO_LAYER = "no layer fits on it"
MAX_TOGETHER = 8  # models in one question
SOCKET, FOLDER = "SOCKET", "FOLDER"  # where a flag's value is drawn anew at each launch


class ShortfallReport(Struct, frozen=True):
    """Why a model does not fit."""

    model: str
    missing_bytes: Mapping[str, int]
    reason: str


class PlaceReport(Struct, frozen=True):
    """What a plan takes on one device, or on the host, and what it leaves."""

    device: str
    name: str
    layers: int | None
    """Output layer included; None for the host, which has what devices leave."""
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    other_bytes: int
    """What no buffer shows: the driver's context, the process, a full prompt cache."""
    total_bytes: int
    upper_bytes: int
    """What placement made room for."""
    free_bytes: int | None
    left_bytes: int | None
    """Of what is free, once it is loaded; devices that share the host's memory counted there."""


class UnusedReport(Struct, frozen=True):
    """A device that the plan leaves alone."""

    device: str
    name: str
    reason: str


class PlanReport(Struct, frozen=True):
    """How a model would be launched; of `plan` and `shortfall` exactly one is there."""

    plan: LaunchPlan | None
    shortfall: ShortfallReport | None
    places: tuple[PlaceReport, ...] = ()
    layers: str = ""
    """Such as "layers 0–11 host, 12–29 Vulkan0, output Vulkan0"."""
    argv: tuple[str, ...] = ()
    """The command line; () where the engine lacks an option that the plan needs."""
    unused: tuple[UnusedReport, ...] = ()
    one_more_gib: tuple[str, ...] = ()
    """What one more GiB would bring, a sentence per place where it brings something."""
    origin: str | None = None
    """Of a recorded machine: where its profile is from ("synthetic: …"); None of this one."""
    stops: tuple[str, ...] = ()
    """Models that nobody uses and that would be stopped for it."""


class SumReport(Struct, frozen=True):
    """What several plans take of one device, or of the host, all together."""

    device: str
    name: str
    models: int
    """How many of them use it."""
    total_bytes: int
    free_bytes: int | None
    left_bytes: int | None
    """Of what is free, once all are loaded; devices that share the host's memory counted there."""


class PlansReport(Struct, frozen=True):
    """How several models would be launched beside each other."""

    plans: tuple[PlanReport, ...]
    sums: tuple[SumReport, ...]
    """Of those that fit, by device."""
    apart: tuple[str, ...] = ()
    """Which of them never run at once, and why, a sentence each."""
    origin: str | None = None
    """As of each of them."""

    @property
    def fits(self) -> bool:
        """True where every model has a plan."""
        return all(report.plan is not None for report in self.plans)


def plans_report(outlooks: Sequence[Outlook], *, origin: str | None = None) -> PlansReport:
    """The planner's answers, with what they come to. `origin`: of a recorded machine."""
    reports = tuple(plan_report(each, origin=origin) for each in outlooks)
    hardware = outlooks[0].hardware if outlooks else None
    sums = () if hardware is None else tuple(_sums(reports, hardware))
    apart = tuple(said for each in outlooks for said in each.apart)
    return PlansReport(reports, sums, apart, origin)


def _sums(reports: Sequence[PlanReport], hardware: HardwareProfile) -> Iterator[SumReport]:
    places = [place for report in reports for place in report.places]
    taken = Counter[str]()
    for place in places:
        taken[place.device] += place.total_bytes
    sharing = {device.device_id for device in hardware.devices if device.shares_host}
    for device in dict.fromkeys(place.device for place in places):
        same = [place for place in places if place.device == device]
        used = taken[device]
        if device == HOST:
            used += sum(taken[each] for each in sharing)
        free = same[0].free_bytes
        yield SumReport(
            device=device,
            name=same[0].name,
            models=len(same),
            total_bytes=taken[device],
            free_bytes=free,
            left_bytes=None if free is None else free - used,
        )


def plan_report(outlook: Outlook, *, origin: str | None = None) -> PlanReport:
    """The planner's answer, explained. `origin`: of a recorded machine."""
    match outlook.answer:
        case LaunchPlan() as plan:
            return PlanReport(
                plan=plan,
                shortfall=None,
                places=tuple(_place(part, plan, outlook.hardware) for part in plan.predicted),
                layers=layer_map(plan, n_layer=outlook.served.info.n_layer),
                argv=_argv(plan, outlook),
                unused=tuple(_unused(plan, outlook.hardware)),
                one_more_gib=outlook.one_more_gib,
                origin=origin,
                stops=tuple(map(str, outlook.stops)),
            )
        case Shortfall() as lack:
            missing = {str(device): n for device, n in lack.missing_bytes.items()}
            return PlanReport(
                plan=None,
                shortfall=ShortfallReport(lack.model_id, missing, lack.reason),
                one_more_gib=outlook.one_more_gib,
                origin=origin,
            )


def _place(part: DeviceBytes, plan: LaunchPlan, hardware: HardwareProfile) -> PlaceReport:
    free = _free_bytes(part, hardware)
    taken = part.total_bytes
    if part.device_id == HOST:
        sharing = {device.device_id for device in hardware.devices if device.shares_host}
        taken += sum(p.total_bytes for p in plan.predicted if p.device_id in sharing)
    layers = {device_id: count for device_id, _, count in plan.devices}
    return PlaceReport(
        device=part.device_id,
        name=_name(part, hardware),
        layers=layers.get(part.device_id),
        weights_bytes=part.weights_bytes,
        kv_bytes=part.kv_bytes,
        compute_bytes=part.compute_bytes,
        other_bytes=part.overhead_bytes,
        total_bytes=part.total_bytes,
        upper_bytes=part.upper_bytes,
        free_bytes=free,
        left_bytes=None if free is None else free - taken,
    )


def _name(part: DeviceBytes, hardware: HardwareProfile) -> str:
    names = {device.device_id: device.name for device in hardware.devices}
    return names.get(part.device_id, hardware.host.cpu_name)


def _free_bytes(part: DeviceBytes, hardware: HardwareProfile) -> int | None:
    if part.device_id == HOST:
        return hardware.host.available_bytes
    frees = {device.device_id: device.free_bytes for device in hardware.devices}
    return frees.get(part.device_id)


def _unused(plan: LaunchPlan, hardware: HardwareProfile) -> list[UnusedReport]:
    """Every device without a layer; the reason is the planner's where it gave one."""
    used = {device_id for device_id, _, _ in plan.devices}
    told = {r.device_id: r.because for r in plan.reasons if r.kind is ReasonKind.DEVICE_UNUSED}
    found = []
    for device in hardware.devices:
        if device.device_id in used:
            continue
        reason = told.get(device.device_id, "the model fits without it" if used else NO_LAYER)
        found.append(UnusedReport(device.device_id, device.name, reason))
    return found


def _argv(plan: LaunchPlan, outlook: Outlook) -> tuple[str, ...]:
    if outlook.engine is None:
        return ()
    try:
        return child_argv(plan, engine=outlook.engine, socket_path=SOCKET, slot_dir=FOLDER)
    except PlanError:
        return ()
