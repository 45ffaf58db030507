"""Compute buffers of a launch, in bytes per device: its graph drawn, scheduled and allocated.

Exact for llama-server b10434 on the host, on Vulkan and on remote devices; other backends run the
same graph in the order in which it is drawn, and some reserve a little beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from planners.compute import n_outputs, n_tokens
from planners.fallback import host_weights, is_remote
from planners.graph.allocation import reserved_bytes
from planners.graph.architectures import KNOWN, draw
from planners.graph.blocks import Builder, Placed
from planners.graph.outline import outline
from planners.graph.reorder import reordered
from planners.graph.schedule import OFFLOAD_LEAST_BATCH, Backends, ordered, split
from planners.graph.tensors import Node, Undrawn
from planners.hardware import HOST, DeviceId
from planners.kv_cache import LaunchShape
from planners.model import ModelInfo

VULKAN = "vulkan"
MOST_DRAWN = 256  # layers in one graph; each takes a millisecond or two
_TRIED_TOKENS = 16  # of each sequence, in the graph that fused operations are tried with
_REMEMBERED = 512  # reservations; a placement tries a few dozen


def is_drawn(model: ModelInfo) -> bool:
    """Whether the model's graph is known down to its tensors."""
    return model.architecture in KNOWN and all(
        layer.weights and (layer.n_head_kv or not layer.k_width) for layer in model.layers
    )


def compute_bytes(
    model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId]
) -> Mapping[DeviceId, int] | None:
    """Bytes on HOST and on each device of the split; None where the graph is not known.

    `owners`: where each layer lies, the output layer last.
    """
    if not is_drawn(model):
        return None
    try:
        return _remembered(_Known(model), shape, tuple(owners))
    except (Undrawn, ArithmeticError):  # a file that only claims the architecture
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A model, equal to all that have its digest: hashing its tensors would take longer."""

    model: ModelInfo

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and (
            self.model is other.model
            or (bool(self.model.digest) and self.model.digest == other.model.digest)
        )

    def __hash__(self) -> int:
        return hash(self.model.digest)


@lru_cache(maxsize=_REMEMBERED)
def _remembered(
    known: _Known, shape: LaunchShape, owners: tuple[DeviceId, ...]
) -> Mapping[DeviceId, int]:
    model = known.model
    *left, output_left = host_weights(model, shape, owners)
    all_devices = [device for device, _ in shape.split]
    limits = dict(shape.binding_limits)
    part = outline(model.layers, left, owners, devices=all_devices, limits=limits)
    if len(part.layers) > MOST_DRAWN:
        raise Undrawn(f"{len(part.layers)} layers differ")
    devices = [device for device in all_devices if device in part.stand_in.values()]
    host = len(devices)
    place = {HOST: host} | {device: i for i, device in enumerate(devices)}
    build = _builder(model, shape, host=host, is_whole=HOST not in owners)
    layers = [
        _placed(model, shape, i, left[i], backend=place[owners[i]], host=host, owners=owners)
        for i in part.layers
    ]
    draw(build, layers, output=host if output_left else place[owners[-1]], host=host)
    sizes = _sizes(build, shape, devices)
    return {device: sizes[place[model_for]] for device, model_for in part.stand_in.items()}


def _builder(model: ModelInfo, shape: LaunchShape, *, host: int, is_whole: bool) -> Builder:
    n = n_tokens(shape)
    return Builder(
        model=model,
        shape=shape,
        n=n,
        n_seqs=shape.n_parallel,
        n_outputs=min(n, n_outputs(model, shape)),
        host=host,
        is_fused=is_whole or not _borrows_when_tried(shape),
    )


def _borrows_when_tried(shape: LaunchShape) -> bool:
    """Whether a device computes for layers of the host when fused delta nets are tried.

    They are given up then, for all layers (llama-context.cpp, resolve_fused_ops).
    """
    is_local = any(not is_remote(device) for device, _ in shape.split)
    return is_local and _TRIED_TOKENS * shape.n_parallel >= OFFLOAD_LEAST_BATCH


def _placed(
    model: ModelInfo,
    shape: LaunchShape,
    i: int,
    left: frozenset[str],
    *,
    backend: int,
    host: int,
    owners: Sequence[DeviceId],
) -> Placed:
    return Placed(
        layer=model.layers[i],
        backend=backend,
        kv_backend=host if shape.kv_on_host else backend,
        host=host,
        on_host=left,
        is_pinned=HOST not in owners,
    )


def _sizes(build: Builder, shape: LaunchShape, devices: Sequence[DeviceId]) -> tuple[int, ...]:
    host = len(devices)
    is_local = (*(not is_remote(device) for device in devices), False)
    limits = dict(shape.binding_limits)
    bindings = (*(limits.get(device) for device in devices), None)

    def supports(backend: int, node: Node) -> bool:
        if not is_local[backend]:
            return True
        return _runs(node, limit=bindings[backend], is_vulkan=shape.backend == VULKAN)

    splits = split(build.graph, Backends(host + 1, is_local, supports))
    if shape.backend == VULKAN:
        for run in splits:
            if is_local[run.backend]:
                run.nodes = reordered(run.nodes)
    return reserved_bytes(ordered(splits), build.graph.leafs, n_backends=host + 1)


def _runs(node: Node, *, limit: int | None, is_vulkan: bool) -> bool:
    """Whether a local device runs an operation; only what differs between devices is asked."""
    if node.op == "ssm_scan":
        return _can_scan(node)
    if node.op not in ("mul_mat", "mul_mat_id"):
        return True
    if limit is not None and node.src[0].n_bytes > limit:
        return False
    # Vulkan's products cannot repeat a weight over streams (ggml-vulkan.cpp, MUL_MAT).
    return not (is_vulkan and node.op == "mul_mat" and node.src[0].ne[3] != node.src[1].ne[3])


def _can_scan(node: Node) -> bool:
    """Devices scan Mamba-2's states only (ggml-vulkan.cpp, SSM_SCAN of supports_op)."""
    kept, decay = node.src[0], node.src[3]
    return decay.ne[0] == 1 and kept.ne[0] in (128, 256) and kept.ne[1] % 16 == 0


def forget() -> None:
    """Drop remembered reservations: for those who measure what one takes."""
    _remembered.cache_clear()
