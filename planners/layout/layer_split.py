"""Which layers go to which device: contiguous blocks from the last layer back.

llama.cpp keeps a prefix of the layers on the host and gives each device one block, in `--device`
order; the output layer comes last.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planners.compute import MARGIN_SHARE, device_compute_bytes
from planners.hardware import DeviceId
from planners.kv_cache import LaunchShape, layer_kv_bytes, layer_state_bytes
from planners.layout.budget import Budget
from planners.model import ModelInfo

Split = tuple[tuple[DeviceId, int], ...]
"""Layers per device in `--device` order; () is none on any."""


@dataclass(frozen=True, slots=True)
class Splitter:
    """Splits of one model over devices, fastest first."""

    info: ModelInfo
    devices: tuple[Budget, ...]
    companion_bytes: int
    """What a projector or draft model takes on the first device by name."""

    def full(self, shape: LaunchShape) -> Split:
        """All layers on as few devices as hold them; () where they do not fit."""
        n_all = self.info.n_layer + 1
        costs = _layer_costs(self.info, shape)
        compute = self._compute_bytes(shape, n_gpu_layers=n_all)
        for n_devices in range(1, len(self.devices) + 1):
            split = _filled(costs, self._rooms(n_devices, compute))
            if sum(layers for _, layers in split) == n_all:
                return split
        return ()

    def partial(self, shape: LaunchShape) -> Split:
        """As many layers as fit, a prefix left to the host; () where not one fits."""
        compute = self._compute_bytes(shape, n_gpu_layers=1)
        rooms = self._rooms(len(self.devices), compute)
        return _filled(_layer_costs(self.info, shape), rooms)

    def sparse(self, shape: LaunchShape) -> LaunchShape | None:
        """`shape` split with all layers on devices and as few experts on the host as it takes."""
        holders = [i for i, layer in enumerate(self.info.layers) if layer.expert_bytes]
        if not holders:
            return None
        counts = range(holders[0] + 1, holders[-1] + 2)
        shapes = [replace(shape, n_cpu_moe=count) for count in counts]
        index = bisect_left(shapes, True, key=lambda moved: bool(self.full(moved)))
        if index == len(shapes):
            return None
        return replace(shapes[index], split=self.full(shapes[index]))

    def _compute_bytes(self, shape: LaunchShape, *, n_gpu_layers: int) -> int:
        split = ((self.devices[0].device_id, n_gpu_layers),)
        compute = device_compute_bytes(self.info, replace(shape, split=split))
        return compute + int(compute * MARGIN_SHARE)

    def _rooms(self, n_devices: int, compute_bytes: int) -> list[tuple[DeviceId, int]]:
        """Bytes left for layers on the first `n_devices`."""
        used = self.devices[:n_devices]
        first = companion_device(used)
        rooms = []
        for budget in used:
            room = budget.room_bytes - budget.overhead_bytes - compute_bytes
            if budget.device_id == first:
                room -= self.companion_bytes
            rooms.append((budget.device_id, room))
        return rooms


def companion_device(devices: Sequence[Budget]) -> DeviceId:
    """The device that takes the projector: the engine's first, whatever `--device` says."""
    return min(devices, key=lambda budget: budget.engine_name).device_id


def _layer_costs(info: ModelInfo, shape: LaunchShape) -> list[int]:
    """Bytes that each layer takes on a device, the output layer last."""
    costs = []
    for i, layer in enumerate(info.layers):
        moved = layer.expert_bytes if i < shape.n_cpu_moe else 0
        kept = layer_kv_bytes(info, layer, shape) + layer_state_bytes(layer, shape)
        costs.append(layer.weight_bytes - moved + kept)
    return [*costs, info.output_bytes]


def _filled(costs: list[int], rooms: list[tuple[DeviceId, int]]) -> Split:
    """Blocks taken greedily from the end, the fastest device first, each as full as it gets."""
    counts, next_layer = [], len(costs) - 1
    for device_id, room in rooms:
        count = 0
        while next_layer >= 0 and costs[next_layer] <= room:
            room -= costs[next_layer]
            next_layer -= 1
            count += 1
        if count:
            counts.append((device_id, count))
    return tuple(reversed(counts))
