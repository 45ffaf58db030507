"""Bytes that one launch takes on every device: weights, KV cache, recurrent state, buffers.

Weights, KV, state and output buffers are exact; compute buffers are estimates with a margin
(checked against launches of llama-server b10434; the rules are those of the source, b11434).
"""

from collections.abc import Mapping, Sequence

from planners.compute import MARGIN_SHARE, device_compute_bytes, host_compute_bytes, n_outputs
from planners.hardware import HOST, DeviceId
from planners.kv_cache import F32_BYTES, LaunchShape, layer_kv_bytes, layer_state_bytes
from planners.model import ModelInfo
from planners.plan import DeviceBytes

HOST_BASE_BYTES = 100 << 20  # a child's own memory; 61 to 72 MiB were measured
HOST_BYTES_PER_TOKEN_TEXT = 512  # its copy of the vocabulary


def predict(
    model: ModelInfo, shape: LaunchShape, *, overhead_bytes: Mapping[DeviceId, int]
) -> tuple[DeviceBytes, ...]:
    """Bytes on HOST and on each device of the split, in that order.

    `overhead_bytes`: what no buffer line shows, such as the driver's context. Host weights are
    those that are read from there: a mapped file's other pages are the page cache's, and a copy
    repacked for the CPU takes the place of mapped pages that are then reclaimable.
    """
    owners = layer_devices(model, shape)
    return tuple(
        _on_device(model, shape, owners, device_id=device_id, overhead_bytes=overhead_bytes)
        for device_id in (HOST, *dict(shape.split))
    )


def layer_devices(model: ModelInfo, shape: LaunchShape) -> tuple[DeviceId, ...]:
    """Where each layer lies, output layer last: a prefix on HOST, then the devices in order."""
    devices = [device_id for device_id, layers in shape.split for _ in range(layers)]
    return (HOST,) * (model.n_layer + 1 - len(devices)) + tuple(devices)


def _on_device(
    model: ModelInfo,
    shape: LaunchShape,
    owners: Sequence[DeviceId],
    *,
    device_id: DeviceId,
    overhead_bytes: Mapping[DeviceId, int],
) -> DeviceBytes:
    on_host = device_id == HOST
    compute = host_compute_bytes(model, shape) if on_host else device_compute_bytes(model, shape)
    margin = int(compute * MARGIN_SHARE)
    if on_host:
        compute += output_buffer_bytes(model, shape)
        margin += output_growth_bytes(model, shape)
    return DeviceBytes(
        device_id=device_id,
        weights_bytes=weights_bytes(model, shape, owners, device_id=device_id),
        kv_bytes=sum(
            layer_kv_bytes(model, layer, shape) + layer_state_bytes(layer, shape)
            for layer, owner in zip(model.layers, owners, strict=False)
            if owner == device_id
        ),
        compute_bytes=compute,
        overhead_bytes=overhead_bytes.get(device_id, 0),
        margin_bytes=margin,
    )


def weights_bytes(
    model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId], *, device_id: DeviceId
) -> int:
    """Bytes of weights on one device, or read from host memory."""
    total = 0
    for i, layer in enumerate(model.layers):
        moved = layer.expert_bytes if i < shape.n_cpu_moe else 0
        if owners[i] == device_id:
            total += layer.weight_bytes - (moved if device_id != HOST else 0)
        elif device_id == HOST:
            total += moved
    if device_id == HOST:
        total += model.input_bytes
    if owners[-1] == device_id:
        total += model.output_bytes - (model.tied_bytes if device_id == HOST else 0)
    return total


def output_buffer_bytes(model: ModelInfo, shape: LaunchShape) -> int:
    """Host bytes of the output buffer at start: logits, and embeddings where they are asked for."""
    return F32_BYTES * shape.n_parallel * _output_width(model, shape)


def output_growth_bytes(model: ModelInfo, shape: LaunchShape) -> int:
    """By how much the output buffer can grow: an embedding server puts out every token."""
    most = F32_BYTES * n_outputs(model, shape) * _output_width(model, shape)
    return max(0, most - output_buffer_bytes(model, shape))


def _output_width(model: ModelInfo, shape: LaunchShape) -> int:
    has_embedding = shape.embedding or model.architecture == "t5"
    return model.n_vocab + (model.n_embd if has_embedding else 0)


def host_overhead_bytes(model: ModelInfo) -> int:
    """A child's host memory that no buffer line shows."""
    return HOST_BASE_BYTES + HOST_BYTES_PER_TOKEN_TEXT * model.n_vocab
