"""Which layers go to which device: the fastest contiguous blocks that fit, the output layer last.

llama.cpp keeps a prefix of the layers on the host and gives each device one block, in `--device`
order. Orders: all of up to three devices; of more, the fastest last, and once a shape is found each
of the next three in its stead, since only the last block is unlike the rest.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, permutations

from planners.compute import MARGIN_SHARE, device_compute_bytes
from planners.hardware import HOST, DeviceId
from planners.kv_cache import LaunchShape, kept_bytes
from planners.layout.budget import Budget
from planners.layout.partition import Blocks, Place, fits, partition
from planners.memory import host_overhead_bytes, predict_draft
from planners.model import ModelInfo
from planners.speed import (
    PROMPT_WEIGHT,
    Load,
    Rate,
    Rates,
    entry_prompt_s,
    entry_s,
    experts_s,
    layer_prompt_s,
    loads,
    step_s,
)

ASKED_FOR = 1e3  # by so much the host counts as slower where a slow device was asked for by name
FEW = 3  # devices of which every order is tried; one more would cost 24 passes

Split = tuple[tuple[DeviceId, int], ...]
"""Layers per device in `--device` order; () is none on any."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A split and what placement minimises: a decode step's time, a little prompt included."""

    shape: LaunchShape
    cost_ps: int


@dataclass(frozen=True, slots=True)
class Splitter:
    """Splits of one model over devices, as the engine and the rates have it."""

    info: ModelInfo
    devices: tuple[Budget, ...]
    rates: Rates
    companion_bytes: int
    """What a projector takes on the first device by name."""
    host_room_bytes: int
    draft: ModelInfo | None = None
    """A draft model, which goes there too."""

    def full(self, shape: LaunchShape) -> Layout | None:
        """All layers on the fastest devices that hold them; None where they do not fit."""
        return self._best(shape, n_gpu_layers=self.info.n_layer + 1, most_on_host=0)

    def partial(self, shape: LaunchShape) -> Layout | None:
        """The fastest blocks with a prefix on the host; None where not one layer can leave it."""
        most = min(self._most_on_host(shape), self.info.n_layer)
        return self._best(shape, n_gpu_layers=1, most_on_host=most)

    def sparse(self, shape: LaunchShape) -> Layout | None:
        """All layers on devices and as few experts on the host as it takes; None where none do."""
        holders = [i for i, layer in enumerate(self.info.layers) if layer.expert_bytes]
        if not holders:
            return None
        counts = range(holders[0] + 1, holders[-1] + 2)
        index = bisect_left(
            counts, True, key=lambda count: self._fits(replace(shape, n_cpu_moe=count))
        )
        if index == len(counts):
            return None
        return self.full(replace(shape, n_cpu_moe=counts[index]))

    def reordered(self, shape: LaunchShape) -> Layout | None:
        """The same shape in the best of the orders that were left out; None where none fits."""
        most = 0 if shape.n_gpu_layers > self.info.n_layer else self._most_on_host(shape)
        task = _Task.of(self, shape, n_gpu_layers=shape.n_gpu_layers, most_on_host=most)
        layouts = task.layouts(_other_orders(self.devices, self.rates))
        return min(layouts, key=lambda each: each.cost_ps, default=None)

    @property
    def holds_weights(self) -> bool:
        """False where no shape whatever has all layers on devices; quickly told."""
        room = sum(max(0, b.room_bytes - b.overhead_bytes) for b in self.devices)
        weights = sum(layer.weight_bytes for layer in self.info.layers)
        return weights + self.info.output_bytes <= room

    @property
    def is_host_slower(self) -> bool:
        """True where no device is slower than the host at anything: all is best on devices."""
        host = self.rates[HOST]
        rates = [self.rates[budget.device_id] for budget in self.devices]
        return all(r.bytes_per_s > host.bytes_per_s and r.flops > host.flops for r in rates)

    def _fits(self, shape: LaunchShape) -> bool:
        """Whether all layers find room on devices."""
        task = _Task.of(self, shape, n_gpu_layers=self.info.n_layer + 1, most_on_host=0)
        if task.companion_bytes:
            return self.full(shape) is not None
        return bool(task.possible(_first_orders(self.devices)))

    def _best(self, shape: LaunchShape, *, n_gpu_layers: int, most_on_host: int) -> Layout | None:
        """The fastest of the first orders; for a companion, of all devices that could take it."""
        task = _Task.of(self, shape, n_gpu_layers=n_gpu_layers, most_on_host=most_on_host)
        layouts = task.layouts(_first_orders(self.devices))
        return min(layouts, key=lambda each: each.cost_ps, default=None)

    def compute_bytes(self, shape: LaunchShape, *, n_gpu_layers: int) -> int:
        """What each device takes before its first layer, the margin included."""
        split = ((self.devices[0].device_id, n_gpu_layers),)
        compute = device_compute_bytes(self.info, replace(shape, split=split))
        return compute + int(compute * MARGIN_SHARE)

    def companion_bytes_beside(self, shape: LaunchShape) -> int:
        """What projector and draft model take on the device that has them."""
        if self.draft is None:
            return self.companion_bytes
        device_id = self.devices[0].device_id
        parts = predict_draft(self.draft, shape, device_id=device_id, is_drawn=False)
        return self.companion_bytes + parts[-1].upper_bytes

    def _most_on_host(self, shape: LaunchShape) -> int:
        """The longest prefix for which the host has room, as far as can be told beforehand."""
        lean = sum(layer.expert_bytes for layer in self.info.layers[: shape.n_cpu_moe])
        room = self.host_room_bytes - host_overhead_bytes(self.info) - self.info.input_bytes - lean
        ends = [*accumulate(layer_sizes(self.info, shape), initial=0)]
        return max(i for i, end in enumerate(ends) if end <= max(room, 0))


@dataclass(frozen=True, slots=True)
class _Task:
    """One shape to be laid out."""

    splitter: Splitter
    shape: LaunchShape
    most_on_host: int
    compute_bytes: int
    companion_bytes: int
    sizes: Sequence[int]

    @classmethod
    def of(
        cls, splitter: Splitter, shape: LaunchShape, *, n_gpu_layers: int, most_on_host: int
    ) -> "_Task":
        """`n_gpu_layers`: as far as it decides the compute buffers."""
        compute = splitter.compute_bytes(shape, n_gpu_layers=n_gpu_layers)
        companion = splitter.companion_bytes_beside(shape)
        sizes = layer_sizes(splitter.info, shape)
        return cls(splitter, shape, most_on_host, compute, companion, sizes)

    def layouts(self, orders: Iterable[Sequence[Budget]]) -> Iterator[Layout]:
        """The fastest layout of each order, once for each device that could take a companion."""
        splitter = self.splitter
        orders = self.possible(orders)
        if not orders:
            return
        host_ps, costs = _costs(splitter, self.shape)
        for order in orders:
            for taker in order if self.companion_bytes else (None,):
                used = [b for b in order if not taker or b.engine_name >= taker.engine_name]
                places = [self._place(b, costs[b.device_id], is_taker=b is taker) for b in used]
                blocks = partition(
                    self.sizes, places, host_ps=host_ps, most_on_host=self.most_on_host
                )
                if blocks is not None:
                    yield Layout(replace(self.shape, split=_split(used, blocks)), blocks.cost_ps)

    def possible(self, orders: Iterable[Sequence[Budget]]) -> tuple[Sequence[Budget], ...]:
        """The orders that have room for all, a companion left out; quickly told."""
        if self.most_on_host:
            return tuple(orders)
        fixed = self.compute_bytes
        return tuple(
            order
            for order in orders
            if fits(self.sizes, [b.room_bytes - b.overhead_bytes - fixed for b in order])
        )

    def _place(self, budget: Budget, layer_ps: Sequence[int], *, is_taker: bool) -> Place:
        taken = self.companion_bytes if is_taker else 0
        rate = self.splitter.rates[budget.device_id]
        return Place(
            room_bytes=budget.room_bytes - budget.overhead_bytes - self.compute_bytes - taken,
            layer_ps=layer_ps,
            entry_ps=_ps(_entry_s(self.splitter.info, self.shape, rate)),
            is_needed=is_taker,
        )


def companion_device(devices: Sequence[Budget]) -> DeviceId:
    """The device that takes the projector: the engine's first, whatever `--device` says."""
    return min(devices, key=lambda budget: budget.engine_name).device_id


def layer_sizes(info: ModelInfo, shape: LaunchShape) -> list[int]:
    """Bytes that each layer takes on a device, the output layer last."""
    sizes = [
        layer.weight_bytes + kept
        for layer, kept in zip(info.layers, kept_bytes(info, shape), strict=True)
    ]
    for i, layer in enumerate(info.layers[: shape.n_cpu_moe]):
        sizes[i] -= layer.expert_bytes
    return [*sizes, info.output_bytes]


def _costs(splitter: Splitter, shape: LaunchShape) -> tuple[list[int], dict[DeviceId, list[int]]]:
    """What each layer costs on the host, and what it costs on each device, in picoseconds."""
    rates, asked = splitter.rates, loads(splitter.info, shape)
    kinds = list(dict.fromkeys(asked))  # few kinds of layer make up a model
    index = {load: number for number, load in enumerate(kinds)}
    numbers = [index[load] for load in asked]
    n_lean = shape.n_cpu_moe
    borrower = rates[splitter.devices[0].device_id]
    penalty = ASKED_FOR if any(b.is_wanted for b in splitter.devices) else 1.0
    on_host = [_ps(penalty * _host_s(load, shape, rates[HOST], borrower)) for load in kinds]
    alike: dict[Rate, list[int]] = {}
    for rate in dict.fromkeys(rates[b.device_id] for b in splitter.devices):
        lean, whole = (
            [_ps(_device_s(load, shape, rate, rates[HOST], is_lean=is_lean)) for load in kinds]
            for is_lean in (True, False)
        )
        alike[rate] = [lean[n] for n in numbers[:n_lean]] + [whole[n] for n in numbers[n_lean:]]
    costs = {b.device_id: alike[rates[b.device_id]] for b in splitter.devices}
    return [on_host[n] for n in numbers], costs


def _device_s(load: Load, shape: LaunchShape, rate: Rate, host: Rate, *, is_lean: bool) -> float:
    n = shape.n_parallel
    step = step_s(load, rate, n_parallel=n, has_experts=not is_lean)
    if is_lean:
        step += experts_s(load, host, rate, n_parallel=n)
    return step + PROMPT_WEIGHT * layer_prompt_s(
        load, rate, host, n_ubatch=shape.n_ubatch, is_lean=is_lean
    )


def _entry_s(info: ModelInfo, shape: LaunchShape, rate: Rate) -> float:
    prompt = entry_prompt_s(info, rate, n_ubatch=shape.n_ubatch)
    return entry_s(info, shape, rate) + PROMPT_WEIGHT * prompt


def _host_s(load: Load, shape: LaunchShape, host: Rate, borrower: Rate) -> float:
    prompt = layer_prompt_s(load, None, host, borrower, n_ubatch=shape.n_ubatch)
    return step_s(load, host, n_parallel=shape.n_parallel) + PROMPT_WEIGHT * prompt


def _ps(seconds: float) -> int:
    """Seconds as whole picoseconds."""
    return round(seconds * 1e12)


def _first_orders(devices: Sequence[Budget]) -> Iterator[Sequence[Budget]]:
    """Orders to look for a shape in, the fastest device last in the first of them."""
    base = tuple(reversed(devices))
    return permutations(base) if len(base) <= FEW else iter((base,))


def _other_orders(devices: Sequence[Budget], rates: Rates) -> Iterator[Sequence[Budget]]:
    """The orders left out: one of the next fastest devices last, one of each kind."""
    if len(devices) <= FEW:
        return
    base = tuple(reversed(devices))
    kinds = {(base[-1].room_bytes, rates[base[-1].device_id])}
    for i in range(len(base) - 2, len(base) - 2 - FEW, -1):
        kind = (base[i].room_bytes, rates[base[i].device_id])
        if kind not in kinds:
            kinds.add(kind)
            yield (*base[:i], *base[i + 1 :], base[i])


def _split(order: Sequence[Budget], blocks: Blocks) -> Split:
    pairs = zip(order, blocks.counts, strict=True)
    return tuple((budget.device_id, count) for budget, count in pairs if count)
