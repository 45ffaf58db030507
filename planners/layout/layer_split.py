"""Which layers go to which device: the fastest contiguous blocks that fit, the output layer last.

llama.cpp keeps a prefix of the layers on the host and gives each device one block, in `--device`
order. Orders: all of up to three devices; of more, the fastest last, and once a shape is found each
of the next three in its stead, since only the last block is unlike the rest.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, permutations

from msgspec import Struct
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.layout.budget import Budget
from planners.layout.measures import Measures
from planners.layout.partition import Blocks, Place, fits, partition
from planners.lessons.rates import Rates
from planners.memory import host_overhead_bytes
from planners.model import ModelInfo

ASKED_FOR = 1e3  # by so much the host counts as slower where a slow device was asked for by name
FEW = 3  # devices of which every order is tried; one more would cost 24 passes

Split = tuple[tuple[DeviceId, int], ...]
"""Layers per device in `--device` order; () is none on any."""


class Layout(Struct, frozen=True):
    """A split and what placement minimises: a decode step's time, a little prompt included."""

    shape: LaunchShape
    cost_ps: int


class Splitter(Struct, frozen=True):
    """Splits of one model over devices, as the engine and the rates have it."""

    measures: Measures
    devices: tuple[Budget, ...]
    rates: Rates
    companion_bytes: int
    """What a projector takes on the first device by name, where a draft model goes too."""
    host_room_bytes: int

    @property
    def info(self) -> ModelInfo:
        """The model's facts."""
        return self.measures.info

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
        return self.measures.weights_bytes <= room

    def host_has_room(self, shape: LaunchShape, *, with_estimates: bool) -> bool:
        """False where the host lacks room for the shape wherever its layers lie; quickly told."""
        own = sum(max(0, b.room_bytes) for b in self.devices if not b.shares_host)
        rest = max(0, sum(self.measures.sizes(replace(shape, n_cpu_moe=0))) - own)
        least = self.measures.least_on_host_bytes(shape, with_estimates=with_estimates)
        return least + rest <= self.host_room_bytes

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

    def _most_on_host(self, shape: LaunchShape) -> int:
        """The longest prefix for which the host has room, as far as can be told beforehand."""
        lean = sum(layer.expert_bytes for layer in self.info.layers[: shape.n_cpu_moe])
        room = self.host_room_bytes - host_overhead_bytes(self.info) - self.info.input_bytes - lean
        ends = [*accumulate(self.measures.sizes(shape), initial=0)]
        return max(i for i, end in enumerate(ends) if end <= max(room, 0))


class _Task(Struct, frozen=True):
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
        compute = splitter.measures.compute_bytes(shape, n_gpu_layers=n_gpu_layers)
        companion = splitter.companion_bytes + splitter.measures.draft_bytes(shape)
        sizes = splitter.measures.sizes(shape)
        return cls(splitter, shape, most_on_host, compute, companion, sizes)

    def layouts(self, orders: Iterable[Sequence[Budget]]) -> Iterator[Layout]:
        """The fastest layout of each order, once for each device that could take a companion."""
        for order in self.possible(orders):
            for taker in self._takers(order):
                used = [b for b in order if not taker or b.engine_name >= taker.engine_name]
                rooms = [self._room_bytes(b, is_taker=b is taker) for b in used]
                if not (self.most_on_host or fits(self.sizes, rooms)):
                    continue
                places = [
                    self._place(b, room_bytes, is_needed=b is taker)
                    for b, room_bytes in zip(used, rooms, strict=True)
                ]
                blocks = partition(
                    self.sizes, places, host_ps=self._host_ps(), most_on_host=self.most_on_host
                )
                if blocks is not None:
                    yield Layout(replace(self.shape, split=_split(used, blocks)), blocks.cost_ps)

    def _takers(self, order: Sequence[Budget]) -> Sequence[Budget | None]:
        """The devices to try a companion on: of many with room, the first ones and the fastest."""
        if not self.companion_bytes:
            return (None,)
        least = self.compute_bytes + self.companion_bytes + min(self.sizes)
        roomy = [b for b in order if b.room_bytes - b.overhead_bytes >= least]
        first = sorted(roomy, key=lambda budget: budget.engine_name)[:FEW]
        return [b for i, b in enumerate(roomy) if b in first or i >= len(roomy) - FEW]

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

    def _room_bytes(self, budget: Budget, *, is_taker: bool) -> int:
        taken = self.companion_bytes if is_taker else 0
        return budget.room_bytes - budget.overhead_bytes - self.compute_bytes - taken

    def _place(self, budget: Budget, room_bytes: int, *, is_needed: bool) -> Place:
        measures, rates = self.splitter.measures, self.splitter.rates
        rate = rates[budget.device_id]
        return Place(
            room_bytes=room_bytes,
            layer_ps=measures.device_ps(self.shape, rate, rates[HOST]),
            entry_ps=measures.entry_ps(self.shape, rate),
            is_needed=is_needed,
        )

    def _host_ps(self) -> Sequence[int]:
        devices, rates = self.splitter.devices, self.splitter.rates
        penalty = ASKED_FOR if any(b.is_wanted for b in devices) else 1.0
        borrower = rates[devices[0].device_id]
        return self.splitter.measures.host_ps(self.shape, rates[HOST], borrower, penalty=penalty)


def companion_device(devices: Sequence[Budget]) -> DeviceId:
    """The device that takes the projector: the engine's first, whatever `--device` says."""
    return min(devices, key=lambda budget: budget.engine_name).device_id


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
