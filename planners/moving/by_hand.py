"""The launch that an operator spells out, from the one that runs: where, how many layers, how much.

Whatever is not named stays as it runs, KV types and flash attention above all, so that the caches
of running conversations can go along. Placement's judgement is not asked; what it takes is
predicted as for any launch.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from planners.backends import Engine, preferred
from planners.errors import PlanError
from planners.graph.kv_cache import LaunchShape, padded_context
from planners.hardware import Device, DeviceId, HardwareProfile
from planners.layout.budget import Budgets, budgets
from planners.layout.dry_runs import NO_DRY_RUNS
from planners.lessons.rates import rates
from planners.lessons.samples import Learned
from planners.model import ServedModel
from planners.moving.migration import shape_of
from planners.moving.slot_file import MAX_STREAMS
from planners.plan import LaunchPlan
from planners.reasons import Reason, ReasonKind
from planners.rpc import servers_of


class BadMove(PlanError):
    """What was asked for is no launch of this model on this machine."""


class ByHand(Struct, frozen=True):
    """What an operator names; None leaves it as it runs."""

    layers: int | None = None
    """On devices, the output layer counted; 0 is the processor alone."""
    tensor_split: tuple[float, ...] | None = None
    """The devices' shares, in their order."""
    devices: tuple[str, ...] | None = None
    """By id, by the engine's name or by the vendor's, without case."""
    context: int | None = None
    """Of one request."""
    parallel: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is named."""
        told = (self.layers, self.tensor_split, self.devices, self.context, self.parallel)
        return all(value is None for value in told)


def moved_by_hand(
    running: LaunchPlan,
    by_hand: ByHand,
    served: ServedModel,
    *,
    hardware: HardwareProfile,
    engines: Sequence[Engine],
    order: Sequence[str],
    promised: Mapping[DeviceId, int],
    held: Mapping[DeviceId, int],
    learned: Learned,
) -> LaunchPlan:
    """`running` with what was named. Whether there is room for it is the migration's question.

    `promised`, `held`: of all that runs, this one left out. Raises BadMove.
    """
    # Late: a daemon starts sooner without all that plans.
    from planners.layout.measures import Measures
    from planners.layout.prediction import Prediction
    from planners.layout.prompt_cache import prompt_cache
    from planners.layout.threads import n_threads

    engine, names = _engine(running, by_hand, hardware, engines, order)
    room = budgets(hardware, backend=engine.backend, promised=promised, held=held)
    split = _split(running, by_hand, served, room=room, wanted=names)
    shape = _shape(running, by_hand, served, split)
    threads = n_threads(hardware, served.info, n_parallel=shape.n_parallel)
    prediction = Prediction(served, hardware, NO_DRY_RUNS, learned, n_threads=threads)
    host, *others = prediction.of(engine, room, shape, is_drawn=True)
    cache = prompt_cache(served.info, shape, spare_bytes=room.host_bytes - host.upper_bytes)
    host = replace(host, overhead_bytes=host.overhead_bytes + cache.host_bytes)
    speed = Measures(served.info, served.draft).speed(
        shape, rates(hardware, n_threads=threads, learned=learned)
    )
    rpc_servers, rpc_names = servers_of(hardware, [device_id for device_id, _ in split])
    called = {budget.device_id: budget.engine_name for budget in room.devices} | rpc_names
    return replace(
        running,
        backend=engine.backend,
        engine_id=engine.engine_id,
        devices=tuple((device_id, called[device_id], n) for device_id, n in split),
        n_ctx=shape.n_ctx,
        n_parallel=shape.n_parallel,
        n_gpu_layers=shape.n_gpu_layers,
        n_threads=threads,
        n_cpu_moe=shape.n_cpu_moe,
        cache_ram_mib=cache.cache_ram_mib,
        ctx_checkpoints=cache.ctx_checkpoints,
        predicted=(host, *others),
        rpc_servers=rpc_servers,
        predicted_prompt_tokens_per_s=speed.prompt_tokens_per_s,
        predicted_decode_tokens_per_s=speed.decode_tokens_per_s,
        reasons=(Reason(ReasonKind.LAYERS, _told(served, split, shape)),),
        doubt=None,
    )


def _told(served: ServedModel, split: Sequence[tuple[DeviceId, int]], shape: LaunchShape) -> str:
    where = ", ".join(f"{n} layers on {device_id}" for device_id, n in split)
    return (
        f"as told by hand: {where or 'all layers on the processor'} of"
        f" {served.info.n_layer + 1}, context {shape.n_ctx_seq} × {shape.n_parallel}"
    )


def _engine(
    running: LaunchPlan,
    by_hand: ByHand,
    hardware: HardwareProfile,
    engines: Sequence[Engine],
    order: Sequence[str],
) -> tuple[Engine, tuple[Device, ...] | None]:
    """An engine that sees the named devices, the running one where it does, and those devices."""
    ranked = sorted(preferred(engines, order=order), key=lambda e: e.engine_id != running.engine_id)
    if not ranked:
        raise BadMove("no llama-server runs on this machine")
    if by_hand.devices is None:
        return ranked[0], None
    devices = tuple(_device(name, hardware) for name in by_hand.devices)
    for engine in ranked:
        if all(device.engine_name(engine.backend) is not None for device in devices):
            return engine, devices
    raise BadMove(f"no llama-server here sees {', '.join(by_hand.devices)}")


def _device(name: str, hardware: HardwareProfile) -> Device:
    wanted = name.lower()
    for device in hardware.devices:
        known = (device.device_id, device.name, *(called for _, called in device.engine_names))
        if wanted in (each.lower() for each in known):
            return device
    there = ", ".join(device.device_id for device in hardware.devices) or "none"
    raise BadMove(f"there is no device {name}; there are: {there}")


def _split(
    running: LaunchPlan,
    by_hand: ByHand,
    served: ServedModel,
    *,
    room: Budgets,
    wanted: tuple[Device, ...] | None,
) -> tuple[tuple[DeviceId, int], ...]:
    """Layers by device, in order."""
    most = served.info.n_layer + 1
    now = {device_id: n for device_id, _, n in running.devices}
    usable = {budget.device_id: budget for budget in room.devices}
    if wanted is not None:
        devices = tuple(device.device_id for device in wanted)
    else:
        devices = tuple(now) or tuple(usable)
    if missing := [device_id for device_id in devices if device_id not in usable]:
        raise BadMove(f"{missing[0]} may not be used; see `inferenceosctl status` and [devices]")
    layers = by_hand.layers
    if layers is None:
        moves_on_devices = wanted is not None or by_hand.tensor_split is not None
        layers = most if moves_on_devices and not now else sum(now.values())
    if layers == 0 or not devices:
        if layers:
            raise BadMove(f"{layers} layers cannot be put on a device: there is none to use")
        return ()
    shares = by_hand.tensor_split
    if shares is None:
        is_as_now = devices == tuple(now)
        shares = tuple(
            float(now[d] if is_as_now else max(1, usable[d].room_bytes)) for d in devices
        )
    if len(shares) != len(devices):
        raise BadMove(f"{len(shares)} shares do not go with {len(devices)} devices")
    if min(shares) < 0 or sum(shares) <= 0:
        raise BadMove("shares must be numbers from 0 up, and not all of them 0")
    counts = _dealt(min(layers, most), shares)
    return tuple((device_id, n) for device_id, n in zip(devices, counts, strict=True) if n)


def _dealt(n: int, shares: Sequence[float]) -> list[int]:
    """`n` in whole parts by these shares, the largest remainders rounded up."""
    exact = [n * share / sum(shares) for share in shares]
    counts = [int(part) for part in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_rest[: n - sum(counts)]:
        counts[i] += 1
    return counts


def _shape(
    running: LaunchPlan,
    by_hand: ByHand,
    served: ServedModel,
    split: tuple[tuple[DeviceId, int], ...],
) -> LaunchShape:
    n_parallel = by_hand.parallel or running.n_parallel
    if n_parallel > MAX_STREAMS:
        raise BadMove(f"{n_parallel} slots are more than the {MAX_STREAMS} that llama-server has")
    context = by_hand.context or running.context
    trained = served.info.n_ctx_train
    if by_hand.context is not None and trained and context > trained:
        raise BadMove(f"context {context} is more than the {trained} it was trained for")
    return replace(
        shape_of(running),
        n_ctx=padded_context(context) * n_parallel,
        n_parallel=n_parallel,
        n_cpu_moe=running.n_cpu_moe if split else 0,
        split=split,
    )
