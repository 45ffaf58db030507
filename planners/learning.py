"""What served requests teach about a device: rates, as moving averages of what was observed.

Only a launch that lies on one device alone teaches: elsewhere nobody can tell whose time it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.kv_cache import LaunchShape
from planners.model import ModelInfo
from planners.plan import LaunchPlan
from planners.speed import Learned, rates, speed, times_s

NEWEST_SHARE = 0.3  # of the moving average: some five requests make a rate
LEAST_DECODE = 16  # tokens; fewer tell more of the first one's latency
LEAST_PROMPT = 64
MOST_OFF = 8.0  # times the default: beyond it something else was going on, such as a paused machine


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that had its child to itself, by the child's own timings."""

    prompt_tokens: int
    prompt_s: float
    decode_tokens: int
    decode_s: float


def learned_from(
    exchange: Exchange,
    before: Learned,
    *,
    hardware: HardwareProfile,
    model: ModelInfo,
    plan: LaunchPlan,
) -> Learned:
    """`before`, moved towards what the exchange showed of the device that the plan lies on."""
    owner = _owner(model, plan)
    if owner is None:
        return before
    used = exchange.prompt_tokens + exchange.decode_tokens // 2
    lesson = _Lesson(owner, hardware, model, plan, exchange.prompt_tokens, max(used, 1))
    bytes_per_s, flops = before.bytes_per_s, before.flops
    if exchange.decode_tokens >= LEAST_DECODE and exchange.decode_s > 0:
        seen = lesson.bytes_per_s(exchange.decode_s / exchange.decode_tokens)
        bytes_per_s = _averaged(bytes_per_s, owner, seen)
    if exchange.prompt_tokens >= LEAST_PROMPT and exchange.prompt_s > 0:
        seen = lesson.flops(exchange.prompt_s / exchange.prompt_tokens)
        flops = _averaged(flops, owner, seen)
    return Learned(bytes_per_s, flops)


@dataclass(frozen=True, slots=True)
class _Lesson:
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
        return _credible(usual * (self._token_s(usual) - fixed_s) / (token_s - fixed_s), usual)

    def flops(self, token_s: float) -> float | None:
        """The rate of arithmetic at which a prompt's token takes so long."""
        usual = rates(self.hardware, n_threads=self.plan.n_threads)[self.owner].flops
        fixed_s = self._prompt_s(inf)
        if token_s <= fixed_s:
            return None
        return _credible(usual * (self._prompt_s(usual) - fixed_s) / (token_s - fixed_s), usual)

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


def _credible(rate: float, usual: float) -> float | None:
    return rate if usual / MOST_OFF <= rate <= usual * MOST_OFF else None


def _averaged(
    known: Mapping[DeviceId, float], owner: DeviceId, seen: float | None
) -> Mapping[DeviceId, float]:
    if seen is None:
        return known
    before = known.get(owner, seen)
    return {**known, owner: before + NEWEST_SHARE * (seen - before)}
