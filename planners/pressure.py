"""Is memory running out, and what is to be done about it? Samples in, at most one answer out.

    CALM ─ below low_bytes, or stalls, for dwell_s → TIGHT ─ above high_bytes for dwell_s → CALM
    TIGHT → relieve: the least disturbing answer that frees enough, then cooldown_s of rest
    CALM for calm_s → rise: one idle model back to its faster plan, then its own cooldown_s of rest

Each place (a device, or the host) has a course of its own. What cannot be read is no pressure.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.plan import InstanceId
from planners.sizes import format_size


class PressureRules(Struct, frozen=True):
    """When memory counts as short, and how long one waits before one believes it."""

    low_bytes: int = 512 << 20
    """Less free than this is short."""
    high_bytes: int = 1536 << 20
    """Only more than this is plenty again: what one answer frees must not call for its return."""
    stalled_percent: float = 10.0
    """Of the last 10 s in which some task waited for memory (PSI some avg10)."""
    stall_bytes: int = 4 << 30
    """That counts only where less than this is free: on a busy machine pages of files come and go,
    and 8 percent were seen with 13 GiB available."""
    choked_percent: float = 5.0
    """Of the last 10 s in which every task did (PSI full avg10)."""
    dwell_s: float = 5.0
    """A state is believed once it has lasted for so long."""
    cooldown_s: float = 30.0
    """Between two answers to pressure: memory comes back late, and figures are averages."""
    calm_s: float = 120.0
    """Memory must have been plenty for so long before anything moves up."""
    rise_cooldown_s: float = 600.0
    """Between two upward moves of one model, and from a move down to the next one up."""
    warm_s: float = 30.0
    """After its last answer a model is no idle one: somebody reads it, and asks again."""


DEFAULT_RULES = PressureRules()


class Sample(Struct, frozen=True):
    """Readings at one moment; None where a source tells nothing."""

    at_s: float
    """Monotonic."""
    free: Mapping[DeviceId, int | None]
    """By device; of HOST what can be had (MemAvailable), cut to the control group's headroom."""
    some_percent: float | None = None
    full_percent: float | None = None


class Level(Enum):
    """How a place stands."""

    CALM = "calm"
    TIGHT = "tight"


class PlaceCourse(Struct, frozen=True):
    """What is known of one place."""

    level: Level = Level.CALM
    differs_since_s: float | None = None
    """Since when readings have spoken for the other level; None while they do not."""
    calm_since_s: float | None = None
    """Since when memory has been plenty without a break; None while it is not."""
    free_bytes: int | None = None
    """As last read."""
    is_short: bool = False
    """By the last reading."""


class Course(Struct, frozen=True):
    """What is known since the daemon began to look."""

    places: Mapping[DeviceId, PlaceCourse] = field(
        default_factory=lambda: MappingProxyType(dict[DeviceId, PlaceCourse]())
    )
    answered_s: float | None = None
    """Of the last answer to pressure."""
    rose_s: float | None = None
    """Of the last upward move."""
    moved_s: Mapping[InstanceId, float] = field(
        default_factory=lambda: MappingProxyType(dict[InstanceId, float]())
    )
    """When each instance was last moved, either way."""


class Kind(Enum):
    """What can be done, the least disturbing first."""

    DROP_CACHE = "drop-cache"  # an idle model's prompt cache
    UNLOAD = "unload"  # a model that nobody uses
    MIGRATE = "migrate"  # to a plan that takes less there, streams and all
    SHRINK = "shrink"  # an idle model's context
    UNLOAD_WARM = "unload-warm"  # a model that answered a moment ago: its caller may come back


_ORDER = (Kind.DROP_CACHE, Kind.UNLOAD, Kind.MIGRATE, Kind.SHRINK, Kind.UNLOAD_WARM)


class Option(Struct, frozen=True):
    """One thing that can be done to one instance."""

    kind: Kind
    instance_id: InstanceId
    frees: Mapping[DeviceId, int]
    """Bytes, by place; what it takes elsewhere is below 0."""
    cost_tokens_per_s: float = 0.0
    """Predicted tokens/s that are lost by it, over all slots."""
    is_idle: bool = True
    last_used_s: float = 0.0
    """Monotonic."""


class Rise(Struct, frozen=True):
    """A faster plan that one instance could go back to."""

    instance_id: InstanceId
    takes: Mapping[DeviceId, int]
    """Bytes more than it has now, by place."""
    gain_tokens_per_s: float
    is_idle: bool


class Relieve(Struct, frozen=True):
    """Do these, all at once; they free what is short."""

    options: tuple[Option, ...]
    reason: str
    is_enough: bool = True
    """False where no set of options would be: then what there is, is better than nothing."""


class MoveUp(Struct, frozen=True):
    """Move one idle instance back to its faster plan."""

    instance_id: InstanceId
    reason: str


Answer = Relieve | MoveUp


def sample_of(
    hardware: HardwareProfile, *, at_s: float, full_percent: float | None = None
) -> Sample:
    """What one reading of the machine says."""
    free: dict[DeviceId, int | None] = {d.device_id: d.free_bytes for d in hardware.devices}
    free[HOST] = hardware.host.available_bytes
    return Sample(at_s, free, hardware.host.psi_some_avg10, full_percent)


def followed(course: Course, sample: Sample, *, rules: PressureRules = DEFAULT_RULES) -> Course:
    """The course with one more sample. A place that tells nothing is calm, and not for long."""
    stalls = _stalls(sample, rules)
    places = {
        place: _place(
            course.places.get(place, PlaceCourse()),
            free,
            stalls=stalls and place == HOST,
            at_s=sample.at_s,
            rules=rules,
        )
        for place, free in sample.free.items()
    }
    return replace(course, places=MappingProxyType(places))


def _stalls(sample: Sample, rules: PressureRules) -> bool:
    some, full = sample.some_percent or 0.0, sample.full_percent or 0.0
    free = sample.free.get(HOST)
    may_be_short = free is None or free < rules.stall_bytes
    return (may_be_short and some >= rules.stalled_percent) or full >= rules.choked_percent


def _place(
    place: PlaceCourse, free: int | None, *, stalls: bool, at_s: float, rules: PressureRules
) -> PlaceCourse:
    if free is None and not stalls:
        return PlaceCourse()
    is_short = stalls or (free is not None and free < rules.low_bytes)
    is_plenty = not stalls and free is not None and free > rules.high_bytes
    differs = is_plenty if place.level is Level.TIGHT else is_short
    since_s = _since(place.differs_since_s, differs, at_s)
    calm_since_s = _since(place.calm_since_s, is_plenty, at_s)
    if since_s is None or at_s - since_s < rules.dwell_s:
        return PlaceCourse(place.level, since_s, calm_since_s, free, is_short)
    other = Level.CALM if place.level is Level.TIGHT else Level.TIGHT
    return PlaceCourse(other, None, calm_since_s, free, is_short)


def _since(since_s: float | None, holds: bool, at_s: float) -> float | None:
    """Since when something has held; None where it does not."""
    if not holds:
        return None
    return at_s if since_s is None else since_s


def missing_bytes(course: Course, *, rules: PressureRules = DEFAULT_RULES) -> dict[DeviceId, int]:
    """By how much each place that is short is short of plenty.

    One in between the two thresholds is left alone: what was done may not have come to all.
    """
    return {
        place: _missing(known.free_bytes, rules)
        for place, known in course.places.items()
        if known.level is Level.TIGHT and known.is_short
    }


def _missing(free_bytes: int | None, rules: PressureRules) -> int:
    """Where tasks stall though memory seems plenty, low_bytes is a step to see by."""
    if free_bytes is None:
        return rules.low_bytes
    return max(rules.low_bytes, rules.high_bytes - free_bytes + 1)


def decided(
    course: Course,
    *,
    options: Sequence[Option],
    rises: Sequence[Rise],
    now_s: float,
    rules: PressureRules = DEFAULT_RULES,
) -> tuple[Course, Answer | None]:
    """What to do now, and the course that remembers it; None where nothing is to be done."""
    if missing := missing_bytes(course, rules=rules):
        relief = _relief(course, missing, options, now_s=now_s, rules=rules)
        if relief is None:
            return course, None
        return replace(
            course,
            answered_s=now_s,
            moved_s=_moved(course, (o.instance_id for o in relief.options), now_s),
        ), relief
    rise = _rise(course, rises, now_s=now_s, rules=rules)
    if rise is None:
        return course, None
    moved_s = _moved(course, (rise.instance_id,), now_s)
    return replace(course, rose_s=now_s, moved_s=moved_s), rise


def _moved(
    course: Course, instances: Iterable[InstanceId], now_s: float
) -> Mapping[InstanceId, float]:
    return MappingProxyType({**course.moved_s, **dict.fromkeys(instances, now_s)})


def forgotten(course: Course, living: Iterable[InstanceId]) -> Course:
    """The course without instances that are gone."""
    kept = frozenset(living)
    moved_s = {i: at_s for i, at_s in course.moved_s.items() if i in kept}
    return replace(course, moved_s=MappingProxyType(moved_s))


def relief(options: Sequence[Option], missing: Mapping[DeviceId, int]) -> tuple[Option, ...]:
    """The least of them that make up for `missing`; all that help where they do not."""
    helpful = [o for o in options if _may(o) and _help_bytes(o, missing) > 0]
    return tuple(_least(helpful, missing))


def _relief(
    course: Course,
    missing: Mapping[DeviceId, int],
    options: Sequence[Option],
    *,
    now_s: float,
    rules: PressureRules,
) -> Relieve | None:
    if course.answered_s is not None and now_s - course.answered_s < rules.cooldown_s:
        return None
    helpful = [o for o in options if _may(o) and _help_bytes(o, missing) > 0]
    chosen = _least(helpful, missing)
    if not chosen:
        return None
    short = ", ".join(f"{place} is short of {format_size(n)}" for place, n in missing.items())
    told = ", ".join(f"{o.kind.value} {o.instance_id}" for o in chosen)
    is_enough = not _left(chosen, missing)
    return Relieve(tuple(chosen), f"{short}: {told}", is_enough)


def _may(option: Option) -> bool:
    """Only a migration may touch what is in use: its streams go on."""
    return option.is_idle or option.kind is Kind.MIGRATE


def _help_bytes(option: Option, missing: Mapping[DeviceId, int]) -> int:
    return sum(min(option.frees.get(place, 0), n) for place, n in missing.items())


def _left(chosen: Iterable[Option], missing: Mapping[DeviceId, int]) -> dict[DeviceId, int]:
    """What is still missing after `chosen`."""
    taken = tuple(chosen)
    left = {
        place: n - sum(option.frees.get(place, 0) for option in taken)
        for place, n in missing.items()
    }
    return {place: n for place, n in left.items() if n > 0}


def _least(options: Sequence[Option], missing: Mapping[DeviceId, int]) -> list[Option]:
    """Kind by kind, until enough is free; of each kind the one alone that is enough at the least
    cost, else the one that helps most. Each instance once, and nothing that proved needless.
    """
    chosen: list[Option] = []
    for kind in _ORDER:
        left = [o for o in options if o.kind is kind]
        while left and (open_bytes := _left(chosen, missing)):
            best = min(left, key=lambda o: _rank(o, open_bytes))
            left = [o for o in left if o is not best]
            chosen = _with(chosen, best, missing)
    for spared in tuple(reversed(chosen)):
        rest = [option for option in chosen if option is not spared]
        if not _left(rest, missing):
            chosen = rest
    return chosen


def _with(chosen: list[Option], option: Option, missing: Mapping[DeviceId, int]) -> list[Option]:
    """`option` too, instead of a lesser one of its instance: unloading drops a cache as well."""
    others = [o for o in chosen if o.instance_id != option.instance_id]
    helps = sum(_left(others, missing).values()) - sum(_left((*others, option), missing).values())
    had = sum(_left(others, missing).values()) - sum(_left(chosen, missing).values())
    return [*others, option] if helps > had else chosen


def _rank(option: Option, missing: Mapping[DeviceId, int]) -> tuple[bool, int, float, float]:
    is_enough = not _left((option,), missing)
    helps = 0 if is_enough else -_help_bytes(option, missing)
    return not is_enough, helps, option.cost_tokens_per_s, option.last_used_s


def _rise(
    course: Course, rises: Sequence[Rise], *, now_s: float, rules: PressureRules
) -> MoveUp | None:
    """The idle model that gains most, where memory has been plenty for long and stays so."""
    able = [rise for rise in rises if _may_rise(course, rise, now_s=now_s, rules=rules)]
    if not able:
        return None
    best = max(able, key=lambda rise: rise.gain_tokens_per_s)
    told = ", ".join(
        f"{format_size(course.places[place].free_bytes or 0)} are free on {place}"
        for place, n in best.takes.items()
        if n > 0
    )
    reason = f"{told} for {rules.calm_s:.0f} s: {best.gain_tokens_per_s:.1f} tokens/s more"
    return MoveUp(best.instance_id, reason)


def _may_rise(course: Course, rise: Rise, *, now_s: float, rules: PressureRules) -> bool:
    moved_s = course.moved_s.get(rise.instance_id)
    if course.rose_s is not None and now_s - course.rose_s < rules.cooldown_s:
        return False  # the readings do not show yet what that one took
    if not rise.is_idle or rise.gain_tokens_per_s <= 0:
        return False
    if moved_s is not None and now_s - moved_s < rules.rise_cooldown_s:
        return False
    return all(
        _has_room(course.places.get(place), n, now_s=now_s, rules=rules)
        for place, n in rise.takes.items()
        if n > 0
    )


def _has_room(
    place: PlaceCourse | None, n_bytes: int, *, now_s: float, rules: PressureRules
) -> bool:
    """Whether so much can be taken and memory is plenty still: else it would be taken back."""
    if place is None or place.free_bytes is None or place.calm_since_s is None:
        return False
    lasts = now_s - place.calm_since_s >= rules.calm_s
    return lasts and place.free_bytes - n_bytes > rules.high_bytes
