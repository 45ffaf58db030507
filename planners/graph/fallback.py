"""Weights that stay in host memory though their layer lies on a device, and why.

The operator moves some (`--cpu-moe`, `-ot`), llama.cpp moves others: what a device cannot run an
operation on is loaded to the host (llama-model-loader.cpp, weight_buft_supported, b11434).
"""

import re
from collections.abc import Sequence
from itertools import chain, repeat

from planners.ggml.layers import is_expert
from planners.graph.kinds import kinds
from planners.graph.kv_cache import F32_BYTES, LaunchShape
from planners.hardware import HOST, DeviceId, DeviceKind, HardwareProfile
from planners.model import LayerInfo, ModelInfo, RecurrentShape, WeightInfo
from planners.reasons import Reason, ReasonKind
from planners.rpc import ID_PREFIX
from planners.sizes import format_size

_NONE: frozenset[str] = frozenset()
SOFTWARE_BINDING_BYTES = 128 << 20  # maxStorageBufferRange of Mesa's software Vulkan device
_TRIED_ROWS = 512  # llama-model-loader.cpp, weight_buft_supported


def binding_limits(hardware: HardwareProfile) -> tuple[tuple[DeviceId, int], ...]:
    """Bytes of the largest tensor that a device can bind, where its kind tells."""
    return tuple(
        (device.device_id, SOFTWARE_BINDING_BYTES)
        for device in hardware.devices
        if device.kind is DeviceKind.SOFTWARE
    )


def is_remote(device: DeviceId) -> bool:
    """True for a device behind a ggml-rpc-server, which is taken to run every operation."""
    return device.startswith(ID_PREFIX)


def host_weights(
    model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId]
) -> tuple[frozenset[str], ...]:
    """Names of the weights that each layer leaves on the host, the output layer last.

    Empty for layers of which no tensors are known, but for their experts, see `moved_bytes`.
    """
    if not (shape.on_host or shape.n_cpu_moe or shape.binding_limits or kinds(model).scans):
        return (_NONE,) * (model.n_layer + 1)
    limits = dict(shape.binding_limits)
    places = {owner: (_is_local(owner), limits.get(owner)) for owner in {*owners}}
    # Patterns may name a layer's number; all else is alike in one layer and the next.
    numbers = range(model.n_layer) if shape.on_host else repeat(None)
    is_lean = chain(repeat(True, shape.n_cpu_moe), repeat(False))
    marks = zip(map(id, model.layers), map(places.get, owners), numbers, is_lean, strict=False)
    known: dict[object, frozenset[str]] = {}
    found = []
    for i, mark in enumerate(marks):
        if (left := known.get(mark)) is None:
            left = known[mark] = _left(
                f"blk.{i}.", i, model.layers[i].weights, shape,
                owner=owners[i], limit=limits.get(owners[i]), recurrent=model.recurrent,
            )  # fmt: skip
        found.append(left)
    outputs = [w for w in model.ends if w.name.startswith("output")]
    if not any(w.name == "output.weight" for w in outputs) and model.tied_bytes:
        outputs += [w for w in model.ends if w.name == "token_embd.weight"]
    last = _left("", len(found), outputs, shape, owner=owners[-1], limit=limits.get(owners[-1]))
    return (*found, last)


def moved_bytes(layer: LayerInfo, i: int, shape: LaunchShape, left: frozenset[str]) -> int:
    """Bytes of one layer's weights that stay on the host."""
    if not layer.weights:
        return layer.expert_bytes if i < shape.n_cpu_moe else 0
    if not left:
        return 0
    return sum(weight.n_bytes for weight in layer.weights if weight.name in left)


def fallbacks(
    model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId]
) -> tuple[Reason, ...]:
    """Each kind of weight that a device's limits keep on the host."""
    if not (shape.binding_limits or kinds(model).scans):
        return ()
    asked = LaunchShape(
        shape.n_ctx, shape.n_parallel, shape.n_batch, shape.n_ubatch,
        n_cpu_moe=shape.n_cpu_moe, on_host=shape.on_host,
    )  # fmt: skip
    wanted = host_weights(model, asked, [HOST] * len(owners))
    told: dict[str, list[int]] = {}
    for i, (left, chosen) in enumerate(
        zip(host_weights(model, shape, owners), wanted, strict=True)
    ):
        weights = model.layers[i].weights if i < model.n_layer else model.ends
        for weight in weights:
            if weight.name in left and weight.name not in chosen:
                told.setdefault(weight.name, []).append(weight.n_bytes)
    return tuple(_kept(name, sizes) for name, sizes in told.items())


def _kept(name: str, sizes: Sequence[int]) -> Reason:
    many = f"{name} of {len(sizes)} layers" if len(sizes) > 1 else name
    why = "too large for the device to bind"
    if name == "ssm_a":
        why = "no device scans such states"
    text = f"{many} stays in host memory ({format_size(sum(sizes))}): {why}"
    return Reason(ReasonKind.KEPT_ON_HOST, text)


def _left(
    prefix: str,
    i: int,
    weights: Sequence[WeightInfo],
    shape: LaunchShape,
    *,
    owner: DeviceId,
    limit: int | None,
    recurrent: RecurrentShape | None = None,
) -> frozenset[str]:
    moves_experts = bool(prefix) and i < shape.n_cpu_moe
    found = [w.name for w in weights if _is_unscannable(w, recurrent)] if _is_local(owner) else []
    if moves_experts:
        found += [weight.name for weight in weights if is_expert(weight.name)]
    for pattern in shape.on_host:
        found += [w.name for w in weights if re.search(pattern, prefix + w.name)]
    if limit is not None:
        found += [weight.name for weight in weights if _bound_bytes(weight) > limit]
    return frozenset(found) if found else _NONE


def _is_local(owner: DeviceId) -> bool:
    """True for a device of this machine: its limits are known, a server's are taken on trust."""
    return owner != HOST and not is_remote(owner)


def _bound_bytes(weight: WeightInfo) -> int:
    """The larger of a weight and the result that its loader tries it with: 512 rows of f32.

    Experts are tried with fewer rows than would matter.
    """
    if len(weight.shape) != 2:
        return weight.n_bytes
    return max(weight.n_bytes, weight.shape[1] * _TRIED_ROWS * F32_BYTES)


def _is_unscannable(weight: WeightInfo, recurrent: RecurrentShape | None) -> bool:
    """True for A, a matrix, of states that no device scans: the loader tries it with the scan."""
    if weight.name != "ssm_a" or len(weight.shape) < 2:
        return False
    if weight.shape[0] > 1 or recurrent is None or not recurrent.n_head:
        return True
    head = recurrent.d_inner // recurrent.n_head
    return not can_scan(is_mamba_2=True, d_state=recurrent.d_state, head=head)


def can_scan(*, is_mamba_2: bool, d_state: int, head: int) -> bool:
    """Whether devices scan such states (ggml-vulkan.cpp and ggml-cuda.cu, SSM_SCAN)."""
    return is_mamba_2 and d_state in (128, 256) and head % 16 == 0
