"""What the layers of one model take and cost, worked out once for all engines and tries of a plan.

Nothing here depends on the room there is, nor on the engine: only on the shape and on rates.
"""

from collections.abc import Hashable
from functools import cached_property
from itertools import accumulate
from operator import add, sub

from msgspec import Struct
from msgspec.structs import replace

from planners.graph.compute import MARGIN_SHARE, device_compute_bytes, host_compute_bytes
from planners.graph.kv_cache import LaunchShape, kept_bytes
from planners.hardware import DeviceId
from planners.lessons.rates import Rate, Rates
from planners.memory import (
    host_overhead_bytes,
    output_buffer_bytes,
    output_growth_bytes,
    predict_draft,
)
from planners.model import ModelInfo
from planners.speed import (
    PROMPT_WEIGHT,
    USED_TOKENS,
    Load,
    Speed,
    entry_prompt_s,
    entry_s,
    experts_s,
    layer_prompt_s,
    loads,
    speed,
    step_s,
)

MOST_DRAWINGS = 24  # graphs in one search; two are usual, and each may take 30 ms
_ANY = DeviceId("any")

_Key = tuple[Hashable, ...]


class Drawings:
    """How many graphs were drawn for one search."""

    def __init__(self) -> None:
        self._n = 0

    def stop(self) -> "Drawings":
        """The same with none left: estimates have to do from here on."""
        self._n = MOST_DRAWINGS
        return self

    def has_one_more(self) -> bool:
        """Whether another graph may be drawn; from then on estimates have to do."""
        self._n += 1
        return self._n <= MOST_DRAWINGS


class Measures:
    """Of one model; what was asked once is remembered, for one plan or for several."""

    def __init__(self, info: ModelInfo, draft: ModelInfo | None = None) -> None:
        self.info, self.draft = info, draft
        self._sizes: dict[_Key, list[int]] = {}
        self._kept: dict[_Key, list[int]] = {}
        self._compute: dict[_Key, int] = {}
        self._draft: dict[_Key, int] = {}
        self._host: dict[_Key, tuple[int, int]] = {}
        self._asked: dict[_Key, _Loads] = {}
        self._on_host_ps: dict[_Key, list[int]] = {}
        self._on_device_ps: dict[_Key, list[int]] = {}

    def sizes(self, shape: LaunchShape) -> list[int]:
        """Bytes that each layer takes on a device, the output layer last."""
        key = *_key(shape), shape.n_cpu_moe
        if (found := self._sizes.get(key)) is None:
            found = self._sizes[key] = self._sizes_of(shape)
        return found

    def _sizes_of(self, shape: LaunchShape) -> list[int]:
        sizes = [*map(add, self._weights, self._kept_bytes(shape))]
        if n_lean := min(shape.n_cpu_moe, len(sizes)):
            sizes[:n_lean] = map(sub, sizes[:n_lean], self._experts)
        return [*sizes, self.info.output_bytes]

    @cached_property
    def weights_bytes(self) -> int:
        """Weights of all layers, the output layer's among them."""
        return sum(self._weights) + self.info.output_bytes

    @cached_property
    def _weights(self) -> list[int]:
        return [layer.weight_bytes for layer in self.info.layers]

    @cached_property
    def _experts(self) -> list[int]:
        return [layer.expert_bytes for layer in self.info.layers]

    @cached_property
    def _expert_ends(self) -> list[int]:
        return [*accumulate(self._experts, initial=0)]

    def _kept_bytes(self, shape: LaunchShape) -> list[int]:
        key = _key(shape)
        if (found := self._kept.get(key)) is None:
            found = self._kept[key] = kept_bytes(self.info, shape)
        return found

    def compute_bytes(self, shape: LaunchShape, *, n_gpu_layers: int) -> int:
        """What each device takes before its first layer, the margin included."""
        has_all = n_gpu_layers > self.info.n_layer and not shape.n_cpu_moe
        key = *_key(shape), has_all
        if (found := self._compute.get(key)) is None:
            split = ((_ANY, n_gpu_layers),)
            compute = device_compute_bytes(self.info, replace(shape, split=split))
            found = self._compute[key] = compute + int(compute * MARGIN_SHARE)
        return found

    def draft_bytes(self, shape: LaunchShape) -> int:
        """What the draft model takes beside it on the device that has it; 0 without one."""
        if self.draft is None:
            return 0
        key = _key(shape)
        if (found := self._draft.get(key)) is None:
            parts = predict_draft(self.draft, shape, device_id=_ANY, is_drawn=False)
            found = self._draft[key] = parts[-1].upper_bytes
        return found

    def least_on_host_bytes(self, shape: LaunchShape, *, with_estimates: bool) -> int:
        """Host memory that the shape takes however many of its layers lie on devices.

        Without estimates: no compute buffer, whose size the search may yet learn exactly.
        """
        key = _key(shape)
        if (found := self._host.get(key)) is None:
            whole = replace(shape, n_cpu_moe=0, split=((_ANY, self.info.n_layer + 1),))
            compute = host_compute_bytes(self.info, whole)
            outputs = output_buffer_bytes(self.info, whole)
            outputs += output_growth_bytes(self.info, whole)
            fixed = self.info.input_bytes + host_overhead_bytes(self.info)
            found = self._host[key] = fixed + outputs, compute + int(compute * MARGIN_SHARE)
        known, estimated = found
        experts = self._expert_ends[min(shape.n_cpu_moe, self.info.n_layer)]
        return known + experts + (estimated if with_estimates else 0)

    def host_ps(
        self, shape: LaunchShape, host: Rate, borrower: Rate, *, penalty: float
    ) -> list[int]:
        """What each layer costs on the host, in picoseconds."""
        key = *_asked_key(shape), shape.n_ubatch, host, borrower, penalty
        if (found := self._on_host_ps.get(key)) is None:
            told = self._loads(shape)
            costs = [_ps(penalty * _host_s(load, shape, host, borrower)) for load in told.kinds]
            found = self._on_host_ps[key] = [costs[n] for n in told.numbers]
        return found

    def device_ps(self, shape: LaunchShape, rate: Rate, host: Rate) -> list[int]:
        """What each layer costs on a device of that rate, in picoseconds."""
        key = *_asked_key(shape), shape.n_ubatch, shape.n_cpu_moe, rate, host
        if (found := self._on_device_ps.get(key)) is None:
            told = self._loads(shape)
            n_lean = shape.n_cpu_moe
            whole = [_ps(_device_s(load, shape, rate, host, is_lean=False)) for load in told.kinds]
            found = [whole[n] for n in told.numbers]
            if n_lean:
                lean = [
                    _ps(_device_s(load, shape, rate, host, is_lean=True)) for load in told.kinds
                ]
                found[:n_lean] = [lean[n] for n in told.numbers[:n_lean]]
            self._on_device_ps[key] = found
        return found

    def entry_ps(self, shape: LaunchShape, rate: Rate) -> int:
        """What going to a device of that rate costs, in picoseconds."""
        prompt = entry_prompt_s(self.info, rate, n_ubatch=shape.n_ubatch)
        return _ps(entry_s(self.info, shape, rate) + PROMPT_WEIGHT * prompt)

    def speed(self, shape: LaunchShape, rates: Rates) -> Speed:
        """Predicted tokens/s."""
        return speed(self.info, shape, rates=rates, asked=self._loads(shape).asked)

    def _loads(self, shape: LaunchShape) -> "_Loads":
        key = _asked_key(shape)
        if (found := self._asked.get(key)) is None:
            asked = loads(self.info, shape)
            kinds = tuple(dict.fromkeys(asked))
            index = {load: number for number, load in enumerate(kinds)}
            found = _Loads(asked, kinds, [index[load] for load in asked])
            self._asked[key] = found
        return found


class _Loads(Struct, frozen=True):
    """What each layer asks of its device; few kinds make up a model."""

    asked: tuple[Load, ...]
    kinds: tuple[Load, ...]
    numbers: list[int]
    """The kind of each layer."""


def _key(shape: LaunchShape) -> _Key:
    """What decides a layer's bytes and cost, apart from where it lies; quicker than the whole."""
    return (
        shape.n_ctx, shape.n_parallel, shape.n_batch, shape.n_ubatch, shape.type_k, shape.type_v,
        shape.flash_attn, shape.embedding, shape.kv_unified, shape.swa_full,
    )  # fmt: skip


def _asked_key(shape: LaunchShape) -> _Key:
    """What decides `loads`: a context counts up to the tokens of it that are in use."""
    return min(USED_TOKENS, shape.n_ctx_seq), shape.n_parallel, shape.type_k, shape.type_v


def _device_s(load: Load, shape: LaunchShape, rate: Rate, host: Rate, *, is_lean: bool) -> float:
    n = shape.n_parallel
    step = step_s(load, rate, n_parallel=n, has_experts=not is_lean)
    if is_lean:
        step += experts_s(load, host, rate, n_parallel=n)
    return step + PROMPT_WEIGHT * layer_prompt_s(
        load, rate, host, n_ubatch=shape.n_ubatch, is_lean=is_lean
    )


def _host_s(load: Load, shape: LaunchShape, host: Rate, borrower: Rate) -> float:
    prompt = layer_prompt_s(load, None, host, borrower, n_ubatch=shape.n_ubatch)
    return step_s(load, host, n_parallel=shape.n_parallel) + PROMPT_WEIGHT * prompt


def _ps(seconds: float) -> int:
    """Seconds as whole picoseconds."""
    return round(seconds * 1e12)
