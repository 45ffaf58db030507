"""What a little more memory would bring: the same model planned on the same machine, grown."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planners.backends import Engine
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.model import ServedModel
from planners.placement import plan_launch
from planners.plan import LaunchPlan, Shortfall
from planners.settings import PlacementRules
from planners.sizes import GIB, format_size

WORTH_TELLING = 1.05  # times the tokens/s


@dataclass(frozen=True, slots=True)
class More:
    """The plan with so many bytes more on one device, or on HOST."""

    device_id: DeviceId
    n_bytes: int
    plan: LaunchPlan
    gain: str
    """A sentence with numbers."""


def with_more(
    served: ServedModel,
    *,
    before: LaunchPlan | Shortfall,
    hardware: HardwareProfile,
    engines: tuple[Engine, ...],
    rules: PlacementRules,
    promised: Mapping[DeviceId, int],
    held: Mapping[DeviceId, int],
    n_bytes: int = GIB,
) -> tuple[More, ...]:
    """What `n_bytes` more would bring, device by device; those where it brings nothing left out.

    Operators' limits grow with the memory: the question is what it would be good for.
    """
    found = []
    for device_id, name, grown in _grown(hardware, n_bytes):
        plan = plan_launch(
            served, hardware=grown, engines=engines, rules=rules, promised=promised, held=held
        )
        if isinstance(plan, LaunchPlan) and (brought := _gain(before, plan)):
            gain = f"{format_size(n_bytes)} more on {name}: {brought}"
            found.append(More(device_id, n_bytes, plan, gain))
    return tuple(found)


def _grown(
    hardware: HardwareProfile, n_bytes: int
) -> Iterator[tuple[DeviceId, str, HardwareProfile]]:
    host = hardware.host
    more = replace(
        host,
        total_bytes=host.total_bytes + n_bytes,
        available_bytes=host.available_bytes + n_bytes,
        limit_bytes=None if host.limit_bytes is None else host.limit_bytes + n_bytes,
    )
    yield HOST, "the host", replace(hardware, host=more)
    for i, device in enumerate(hardware.devices):
        if not device.use or device.total_bytes is None:
            continue
        free = device.total_bytes if device.free_bytes is None else device.free_bytes
        larger = replace(
            device,
            total_bytes=device.total_bytes + n_bytes,
            free_bytes=free + n_bytes,
            limit_bytes=None if device.limit_bytes is None else device.limit_bytes + n_bytes,
        )
        devices = (*hardware.devices[:i], larger, *hardware.devices[i + 1 :])
        yield device.device_id, device.name, replace(hardware, devices=devices)


def _gain(before: LaunchPlan | Shortfall, after: LaunchPlan) -> str:
    """What is better, in words; "" where nothing is."""
    if isinstance(before, Shortfall):
        return "it would fit"
    gains = []
    if after.n_gpu_layers > before.n_gpu_layers:
        gains.append(f"{after.n_gpu_layers} layers on devices, not {before.n_gpu_layers}")
    if after.n_cpu_moe < before.n_cpu_moe:
        gains.append(f"experts of {after.n_cpu_moe} layers on the host, not {before.n_cpu_moe}")
    if after.context > before.context:
        gains.append(f"a context of {after.context} tokens, not {before.context}")
    if (after.type_k, after.type_v) != (before.type_k, before.type_v):
        gains.append(f"KV cache in {after.type_k}/{after.type_v}, not {before.type_k}")
    was, now = before.predicted_decode_tokens_per_s, after.predicted_decode_tokens_per_s
    if was and now and now > was * WORTH_TELLING:
        gains.append(f"about {now:.3g} tokens/s, not {was:.3g}")
    return ", ".join(gains)
