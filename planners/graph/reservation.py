"""Compute buffers of a launch, in bytes per device: its graph drawn, scheduled and allocated.

Exact for llama-server b10434 on the host, on Vulkan and on remote devices; other backends run the
same graph in the order in which it is drawn, and some reserve a little beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from planners.model import LayerInfo, ModelInfo

VULKAN = "vulkan"
MOST_DRAWN = 64  # layers in one graph; each takes half a millisecond or two
_TRIED_TOKENS = 16  # of each sequence, in the graph that fused operations are tried with
_REMEMBERED = 512  # reservations; a placement tries a few dozen
_MODELS = 64  # whose equal layers are known


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
        return _drawn(model, shape, owners)
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


def _drawn(
    model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId]
) -> Mapping[DeviceId, int]:
    known = _Known(model)
    firsts = _firsts(known)
    *left, output_left = host_weights(model, shape, owners)
    all_devices = [device for device, _ in shape.split]
    limits = dict(shape.binding_limits)
    part = outline(firsts, left, owners, devices=all_devices, limits=limits)
    if len(part.layers) > MOST_DRAWN:
        raise Undrawn(f"{len(part.layers)} layers differ")
    devices = [device for device in all_devices if device in part.stand_in.values()]
    host = len(devices)
    place = {HOST: host} | {device: i for i, device in enumerate(devices)}
    is_whole = HOST not in owners
    sketch = _Sketch(
        known=known,
        # Two splits with one outline have one graph: what tells them apart is left out.
        shape=replace(shape, split=(), n_cpu_moe=0, on_host=(), binding_limits=()),
        layers=tuple((firsts[i], place[owners[i]], left[i]) for i in part.layers),
        is_local=tuple(not is_remote(device) for device in devices),
        bindings=tuple(limits.get(device) for device in devices),
        output=host if output_left else place[owners[-1]],
        is_whole=is_whole,
        is_fused=is_whole or not _borrows_when_tried(shape),
    )
    sizes = _reserved(sketch)
    return {device: sizes[place[model_for]] for device, model_for in part.stand_in.items()}


@dataclass(frozen=True, slots=True)
class _Sketch:
    """All that a reservation depends on, its devices without names."""

    known: _Known
    shape: LaunchShape
    layers: tuple[tuple[int, int, frozenset[str]], ...]
    """Each layer drawn: one like it, its backend, and its weights that stay in host memory."""
    is_local: tuple[bool, ...]
    bindings: tuple[int | None, ...]
    output: int
    """The output layer's backend."""
    is_whole: bool
    """Whether no layer lies on the host."""
    is_fused: bool

    @property
    def host(self) -> int:
        """The number of the host's backend: the last."""
        return len(self.is_local)


@lru_cache(maxsize=_REMEMBERED)
def _reserved(sketch: _Sketch) -> tuple[int, ...]:
    """Bytes per backend."""
    model, shape, host = sketch.known.model, sketch.shape, sketch.host
    n = n_tokens(shape)
    build = Builder(
        model=model,
        shape=shape,
        n=n,
        n_seqs=shape.n_parallel,
        n_outputs=min(n, n_outputs(model, shape)),
        host=host,
        is_fused=sketch.is_fused,
    )
    layers = [
        Placed(
            layer=model.layers[i],
            backend=backend,
            kv_backend=host if shape.kv_on_host else backend,
            host=host,
            on_host=left,
            is_pinned=sketch.is_whole,
        )
        for i, backend, left in sketch.layers
    ]
    draw(build, layers, output=sketch.output, host=host)
    return _sizes(build, sketch)


@lru_cache(maxsize=_MODELS)
def _firsts(known: _Known) -> tuple[int, ...]:
    """For each layer the first one that equals it."""
    first: dict[LayerInfo, int] = {}
    number: dict[int, int] = {}  # equal layers mostly are one object: hash it once
    for i, layer in enumerate(known.model.layers):
        if id(layer) not in number:
            number[id(layer)] = first.setdefault(layer, i)
    return tuple(number[id(layer)] for layer in known.model.layers)


def _borrows_when_tried(shape: LaunchShape) -> bool:
    """Whether a device computes for layers of the host when fused delta nets are tried.

    They are given up then, for all layers (llama-context.cpp, resolve_fused_ops).
    """
    is_local = any(not is_remote(device) for device, _ in shape.split)
    return is_local and _TRIED_TOKENS * shape.n_parallel >= OFFLOAD_LEAST_BATCH


def _sizes(build: Builder, sketch: _Sketch) -> tuple[int, ...]:
    host, is_vulkan = sketch.host, sketch.shape.backend == VULKAN
    is_local, bindings = (*sketch.is_local, False), (*sketch.bindings, None)

    def supports(backend: int, node: Node) -> bool:
        if not is_local[backend]:
            return True
        return _runs(node, limit=bindings[backend], is_vulkan=is_vulkan)

    splits = split(build.graph, Backends(host + 1, is_local, supports))
    if is_vulkan:
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
    _reserved.cache_clear()
    _firsts.cache_clear()
