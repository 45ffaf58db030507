"""What `inferenceosctl plan` prints for people: how a model would be launched, and why. Pure."""

import shlex
from collections import Counter
from collections.abc import Sequence

from inferenceosd.commands.tables import table
from planners.plan import LaunchPlan
from planners.reasons import ReasonKind
from planners.sizes import format_size
from proxy.admin.plan import PlaceReport, PlanReport, PlansReport, ShortfallReport, UnusedReport

NOTHING = "-"
UNKNOWN = "?"
UNPREDICTED = "nobody predicted how fast it will be"
_TOLD_ELSEWHERE = (ReasonKind.DEVICE_UNUSED, ReasonKind.SPEED)  # below, and above


def plan_text(report: PlanReport) -> str:
    """The plan by place, its speed, its flags, and why; or why there is none."""
    if report.plan is None:
        said = _shortfall(report.shortfall) if report.shortfall else "no answer"
        lacks = report.shortfall is not None and report.shortfall.missing_bytes
        none = "anywhere would not make it fit" if lacks else ""
        return _sections(_origin(report.origin), said, _one_more_gib(report.one_more_gib, none))
    plan = report.plan
    stops = f"stops {', '.join(report.stops)}, which nobody uses" if report.stops else ""
    return _sections(
        _origin(report.origin),
        "\n".join(filter(None, (_head(plan), stops))),
        _places(report.places),
        report.layers,
        _numbers(plan),
        f"flags: {shlex.join(report.argv)}" if report.argv else "",
        _listed(
            "why", [reason.text for reason in plan.reasons if reason.kind not in _TOLD_ELSEWHERE]
        ),
        _listed("not used", _unused(report.unused)),
        _one_more_gib(report.one_more_gib, "would bring nothing that anybody would notice"),
    )


def plans_text(report: PlansReport) -> str:
    """Each model's places and speed, and what each concession cost; then the sum by device, and
    which of them never run at once.
    """
    plans = (_beside(each) for each in report.plans)
    return _sections(_origin(report.origin), *plans, _sums(report), "\n".join(report.apart))


def _origin(origin: str | None) -> str:
    """Where the profile of another machine is from, which is all there is to believe of it."""
    return "" if origin is None else f"planned for a profile, {origin}"


def _beside(report: PlanReport) -> str:
    plan = report.plan
    if plan is None:
        return _shortfall(report.shortfall) if report.shortfall else "no answer"
    priced = [reason.text for reason in plan.reasons if reason.price is not None]
    spared = (f"not used: {line}" for line in _unused(report.unused))
    why = (f"- {text}" for text in (*priced, *spared))
    return "\n".join((_head(plan), _places(report.places), _speed(plan), *why))


def _sums(report: PlansReport) -> str:
    rows = [
        (
            each.device,
            each.name,
            str(each.models),
            format_size(each.total_bytes),
            _size(each.free_bytes),
            _size(each.left_bytes),
        )
        for each in report.sums
    ]
    if not rows:
        return ""
    numbers = ("MODELS", "TOTAL", "FREE", "LEFT")
    return f"together:\n{table(('DEVICE', 'NAME', *numbers), rows, right=' '.join(numbers))}"


def _sections(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _head(plan: LaunchPlan) -> str:
    where = f"{plan.n_gpu_layers} layers on devices" if plan.devices else "on the processor"
    return f"{plan.model_id}: {plan.backend}, context {plan.context} × {plan.n_parallel}, {where}"


def _places(places: tuple[PlaceReport, ...]) -> str:
    rows = [
        (
            place.device,
            place.name,
            NOTHING if place.layers is None else str(place.layers),
            format_size(place.weights_bytes),
            format_size(place.kv_bytes),
            format_size(place.compute_bytes),
            format_size(place.other_bytes),
            format_size(place.total_bytes),
            _size(place.free_bytes),
            _size(place.left_bytes),
        )
        for place in places
    ]
    numbers = ("LAYERS", "WEIGHTS", "KV", "COMPUTE", "OTHER", "TOTAL", "FREE", "LEFT")
    return table(("DEVICE", "NAME", *numbers), rows, right=" ".join(numbers))


def _numbers(plan: LaunchPlan) -> str:
    return (
        f"{_speed(plan)}\n"
        f"batch {plan.n_batch}/{plan.n_ubatch},"
        f" {plan.n_threads} thread{'' if plan.n_threads == 1 else 's'},"
        f" KV cache {plan.type_k}/{plan.type_v},"
        f" flash attention {'on' if plan.flash_attn else 'off'}"
    )


def _speed(plan: LaunchPlan) -> str:
    return next((r.text for r in plan.reasons if r.kind is ReasonKind.SPEED), UNPREDICTED)


def _unused(devices: tuple[UnusedReport, ...]) -> list[str]:
    """A line a kind of device: eight equal cards have one reason."""
    alike = Counter((each.name, each.reason) for each in devices)
    return [
        f"{name}: {reason}" if count == 1 else f"{count} × {name}: {reason}"
        for (name, reason), count in alike.items()
    ]


def _one_more_gib(gains: Sequence[str], none: str) -> str:
    """What it would bring; where that is nothing, `none`, unless it is ""."""
    if gains:
        return _listed("one more GiB", gains)
    return none and f"one more GiB {none}"


def _listed(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:", *(f"- {line}" for line in lines)]) if lines else ""


def _shortfall(shortfall: ShortfallReport) -> str:
    missing = ", ".join(f"{format_size(n)} on {d}" for d, n in shortfall.missing_bytes.items())
    lacks = f" ({missing} missing)" if missing else ""
    return f"{shortfall.model} does not fit: {shortfall.reason}{lacks}"


def _size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else format_size(size_bytes)
