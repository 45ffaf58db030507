"""What samples teach: medians with bounds, and how they correct a plan. Pure.

Speeds: only a launch that lies on one device alone teaches that device's rates, since elsewhere
nobody can tell whose time it was. Bytes: a launch with the very same key is exact.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.instances.ladder import Rung, RungKey, rung_of
from planners.lessons.rates import rates
from planners.lessons.samples import LaunchKey, LaunchSample, Learned, Lesson, RateSample, key_of
from planners.lessons.usage import Usage
from planners.model import ModelInfo
from planners.plan import DeviceBytes, LaunchPlan
from planners.reasons import Reason, ReasonKind
from planners.sizes import GIB, format_size
from planners.speed import NOTICED, format_rate, speed, times_s

LEAST_SAMPLES = 3  # of which a median is believed
MOST_OFF = 8.0  # times the default: beyond it something else was going on, such as a paused machine
MOST_FACTOR = 2.0  # times the default, or one by it: as far as a rate is corrected
MOST_MORE_SHARE = 0.25  # of predicted weights and cache: as far as they are corrected
MOST_OVERHEAD_BYTES = GIB  # above the default: as far as an overhead is corrected
MEASURED_HERE = "measured here over"
"""How each reason begins that tells of something learned."""

K = TypeVar("K")
V = TypeVar("V")


def rate_sample(
    usage: Usage,
    *,
    at: float,
    hardware: HardwareProfile,
    model: ModelInfo,
    plan: LaunchPlan,
) -> RateSample | None:
    """What a request showed; None where it was too short, or odder than any rate explains."""
    decode, prompt = usage.decode_tokens_per_s, usage.prompt_tokens_per_s
    if decode is None and prompt is None:
        return None
    bytes_per_s = flops = None
    owner = _owner(model, plan)
    if owner is not None:
        used = usage.prompt_tokens + usage.decode_tokens // 2
        explanation = _Explanation(
            owner, hardware, model, plan, usage.prompt_tokens, used_tokens=max(used, 1)
        )
        bytes_per_s = None if decode is None else explanation.bytes_per_s(1 / decode)
        flops = None if prompt is None else explanation.flops(1 / prompt)
        decode = None if bytes_per_s is None else decode
        prompt = None if flops is None else prompt
    if decode is None and prompt is None:
        return None
    return RateSample(at, plan.model_id, key_of(plan), decode, prompt, owner, bytes_per_s, flops)


def learned_from(launches: Iterable[LaunchSample], requests: Iterable[RateSample]) -> Learned:
    """The medians of all samples, oldest first."""
    requests, launches = tuple(requests), tuple(launches)
    by_owner = _grouped((sample.owner, sample) for sample in requests if sample.owner is not None)
    return Learned(
        bytes_per_s=_medians({d: [s.bytes_per_s for s in some] for d, some in by_owner.items()}),
        flops=_medians({d: [s.flops for s in some] for d, some in by_owner.items()}),
        requests={device_id: len(some) for device_id, some in by_owner.items()},
        lessons=_lessons(launches, requests),
        overhead_bytes=_overheads(launches),
        rungs=dict(_rungs(launches)),
    )


def _rungs(launches: Iterable[LaunchSample]) -> Iterator[tuple[RungKey, Rung]]:
    """Of each model and engine, the one that the next launch starts on; the last one counts."""
    for launch in launches:
        if (rung := rung_of(launch.rung)) is not None:
            yield RungKey(launch.key.model_digest, launch.key.engine_id), rung


def corrected(
    predicted: tuple[DeviceBytes, ...], lesson: Lesson, *, has_companions: bool
) -> tuple[DeviceBytes, ...]:
    """`predicted` with what launches of the same key took.

    Compute buffers become the measured ones; where a projector or draft model adds its own, which
    not every line tells, only upwards. Weights and caches on devices go upwards, within bounds; the
    host's stay, because its log counts pages of the file that nobody reads.
    """
    told = {part.device_id: part for part in lesson.measured}
    return tuple(
        _part_corrected(part, told[part.device_id], has_companions=has_companions)
        if part.device_id in told
        else part
        for part in predicted
    )


def overheads(
    usual: Mapping[DeviceId, int], learned: Learned, *, engine_id: str
) -> dict[DeviceId, int]:
    """What no buffer line shows, by device: `usual`, or more where more was measured."""
    return {
        device_id: n_bytes
        + _within(
            learned.overhead_bytes.get((engine_id, device_id), 0) - n_bytes, 0, MOST_OVERHEAD_BYTES
        )
        for device_id, n_bytes in usual.items()
    }


def taught(plan: LaunchPlan, before: tuple[DeviceBytes, ...], learned: Learned) -> LaunchPlan:
    """`plan` with the speed that its key was measured at, and a reason for each learned figure.

    `before`: its bytes without what was learned.
    """
    lesson = learned.lessons.get(key_of(plan), Lesson())
    decode, prompt = plan.predicted_decode_tokens_per_s, plan.predicted_prompt_tokens_per_s
    if lesson.decode_tokens_per_s is not None and plan.n_parallel == 1:
        decode = lesson.decode_tokens_per_s  # of one request alone, as the prediction is
    if lesson.prompt_tokens_per_s is not None:
        prompt = lesson.prompt_tokens_per_s
    texts = (
        *_byte_reasons(plan, before, lesson),
        *_speed_reasons(plan, decode, prompt, lesson),
        *_rate_reasons(plan, learned),
    )
    return replace(
        plan,
        predicted_decode_tokens_per_s=decode,
        predicted_prompt_tokens_per_s=prompt,
        reasons=(*plan.reasons, *(Reason(ReasonKind.MEASURED, text) for text in texts)),
    )


def learned_reasons(plan: LaunchPlan) -> tuple[str, ...]:
    """The reasons of a plan that tell of something learned."""
    return tuple(r.text for r in plan.reasons if r.kind is ReasonKind.MEASURED)


def _part_corrected(part: DeviceBytes, told: DeviceBytes, *, has_companions: bool) -> DeviceBytes:
    compute = max(part.compute_bytes, told.compute_bytes) if has_companions else told.compute_bytes
    if part.device_id == HOST:
        return replace(part, compute_bytes=compute)
    return replace(
        part,
        weights_bytes=_upwards(part.weights_bytes, told.weights_bytes),
        kv_bytes=_upwards(part.kv_bytes, told.kv_bytes),
        compute_bytes=compute,
    )


def _upwards(predicted: int, told: int) -> int:
    return _within(told, predicted, int(predicted * (1 + MOST_MORE_SHARE)))


def _within(number: int, least: int, most: int) -> int:
    return min(max(number, least), most)


def _byte_reasons(
    plan: LaunchPlan, before: tuple[DeviceBytes, ...], lesson: Lesson
) -> Iterator[str]:
    usual = {part.device_id: part.buffer_bytes for part in before}
    for part in plan.predicted:
        expected = usual.get(part.device_id, part.buffer_bytes)
        now, before_that = format_size(part.buffer_bytes), format_size(expected)
        if now != before_that:
            count = _counted(lesson.launches, "launch", "launches")
            where = f"of buffers on {part.device_id}"
            yield f"{MEASURED_HERE} {count}: {now} {where} rather than {before_that}"


def _speed_reasons(
    plan: LaunchPlan, decode: float | None, prompt: float | None, lesson: Lesson
) -> Iterator[str]:
    for what, usual, now in (
        ("decode", plan.predicted_decode_tokens_per_s, decode),
        ("prompt", plan.predicted_prompt_tokens_per_s, prompt),
    ):
        if usual and now and not 1 / NOTICED < now / usual < NOTICED:
            yield (
                f"{MEASURED_HERE} {_counted(lesson.requests, 'request', 'requests')}: "
                f"{format_rate(now)} tokens/s of {what} rather than {format_rate(usual)}"
            )


def _rate_reasons(plan: LaunchPlan, learned: Learned) -> Iterator[str]:
    for device_id in (HOST, *(device_id for device_id, _, _ in plan.devices)):
        if (rate := learned.bytes_per_s.get(device_id)) is not None:
            count = _counted(learned.requests.get(device_id, 0), "request", "requests")
            read = format_rate(rate / 1e9)
            yield f"{MEASURED_HERE} {count}: {device_id} reads {read} GB/s in a decode"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _lessons(
    launches: tuple[LaunchSample, ...], requests: tuple[RateSample, ...]
) -> dict[LaunchKey, Lesson]:
    loaded = _grouped((s.key, s) for s in launches if s.measured and s.load_s is not None)
    served = _grouped((s.key, s) for s in requests)
    return {key: _lesson(loaded.get(key, []), served.get(key, [])) for key in {*loaded, *served}}


def _lesson(loaded: list[LaunchSample], served: list[RateSample]) -> Lesson:
    return Lesson(
        launches=len(loaded),
        measured=loaded[-1].measured if loaded else (),
        load_s=_median([s.load_s or 0.0 for s in loaded]) if loaded else None,
        requests=len(served),
        decode_tokens_per_s=_believed(s.decode_tokens_per_s for s in served),
        prompt_tokens_per_s=_believed(s.prompt_tokens_per_s for s in served),
    )


def _overheads(launches: tuple[LaunchSample, ...]) -> dict[tuple[str, DeviceId], int]:
    seen = _grouped(
        ((sample.key.engine_id, part.device_id), float(part.overhead_bytes))
        for sample in launches
        for part in sample.measured
        if part.overhead_bytes > 0
    )
    return {place: int(rate) for place, rate in _medians(seen).items()}


def _grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


def _medians(samples: Mapping[K, Iterable[float | None]]) -> dict[K, float]:
    """Of those keys that have enough samples."""
    found = {key: _believed(values) for key, values in samples.items()}
    return {key: value for key, value in found.items() if value is not None}


def _believed(values: Iterable[float | None]) -> float | None:
    """The median; None of too few."""
    told = [value for value in values if value is not None]
    return _median(told) if len(told) >= LEAST_SAMPLES else None


def _median(values: Sequence[float]) -> float:
    """Of one or more. Not the statistics module's: fractions, decimals, 0.3 MB in every daemon."""
    ordered, half = sorted(values), len(values) // 2
    return (ordered[half] + ordered[~half]) / 2


class _Explanation(Struct, frozen=True):
    """The prediction, turned round: which rate would have made it come true."""

    owner: DeviceId
    hardware: HardwareProfile
    model: ModelInfo
    plan: LaunchPlan
    prompt_tokens: int
    used_tokens: int

    def bytes_per_s(self, token_s: float) -> float | None:
        """The rate of memory at which a token takes so long; None for what no rate explains."""
        usual = rates(self.hardware, n_threads=self.plan.n_threads)[self.owner].bytes_per_s
        fixed_s = self._token_s(inf)
        if token_s <= fixed_s:
            return None
        return _bounded(usual * (self._token_s(usual) - fixed_s) / (token_s - fixed_s), usual)

    def flops(self, token_s: float) -> float | None:
        """The rate of arithmetic at which a prompt's token takes so long."""
        usual = rates(self.hardware, n_threads=self.plan.n_threads)[self.owner].flops
        fixed_s = self._prompt_s(inf)
        if token_s <= fixed_s:
            return None
        return _bounded(usual * (self._prompt_s(usual) - fixed_s) / (token_s - fixed_s), usual)

    def _prompt_s(self, flops: float) -> float:
        """Seconds of a prompt's token by that rate, its reads hidden behind it."""
        known = dict(rates(self.hardware, n_threads=self.plan.n_threads))
        known[self.owner] = replace(known[self.owner], flops=flops, bytes_per_s=inf)
        shape = self._shape()
        read = replace(shape, n_ubatch=min(shape.n_ubatch, max(self.prompt_tokens, 1)))
        return times_s(self.model, read, rates=known, used_tokens=self.used_tokens)[0]

    def _token_s(self, bytes_per_s: float) -> float:
        known = dict(rates(self.hardware, n_threads=self.plan.n_threads))
        known[self.owner] = replace(known[self.owner], bytes_per_s=bytes_per_s)
        told = speed(self.model, self._shape(), rates=known, used_tokens=self.used_tokens)
        return 1 / told.decode_tokens_per_s

    def _shape(self) -> LaunchShape:
        """The plan with one slot busy."""
        plan = self.plan
        return LaunchShape(
            n_ctx=plan.context,
            n_parallel=1,
            n_batch=plan.n_batch,
            n_ubatch=plan.n_ubatch,
            type_k=plan.type_k,
            type_v=plan.type_v,
            split=tuple((device_id, layers) for device_id, _, layers in plan.devices),
        )


def _owner(model: ModelInfo, plan: LaunchPlan) -> DeviceId | None:
    """The one device that all layers and experts lie on; None where there are several."""
    if not plan.devices:
        return HOST
    if len(plan.devices) > 1 or plan.n_cpu_moe or plan.n_gpu_layers <= model.n_layer:
        return None
    return plan.devices[0][0]


def _bounded(rate: float, usual: float) -> float | None:
    """`rate` as far from `usual` as it may be; None for one that nothing explains."""
    if not usual / MOST_OFF <= rate <= usual * MOST_OFF:
        return None
    return min(max(rate, usual / MOST_FACTOR), usual * MOST_FACTOR)
