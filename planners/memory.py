"""Bytes that one launch takes on every device: weights, KV cache, recurrent state, buffers.

Weights, KV, state and output buffers are exact. Compute buffers are, too, where the model's graph
is drawn (planners.graph), and estimates elsewhere (planners.graph.compute); both come with a
margin, so that there is a point estimate and an upper bound. Checked against launches of
llama-server b10434.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from planners.graph.compute import (
    MARGIN_SHARE,
    device_compute_bytes,
    doubt_bytes,
    host_compute_bytes,
    n_outputs,
)
from planners.graph.fallback import host_weights, is_remote, moved_bytes
from planners.graph.families import DELTA_NETS
from planners.graph.kv_cache import F32_BYTES, LaunchShape, kept_bytes
from planners.graph.repack import repacking_bytes
from planners.graph.reservation import compute_bytes, is_known
from planners.graph.support import VULKAN
from planners.hardware import HOST, DeviceId
from planners.model import ModelInfo
from planners.plan import DeviceBytes

HOST_BASE_BYTES = 100 << 20  # a child's own memory; 61 to 72 MiB were measured
HOST_BYTES_PER_TOKEN_TEXT = 512  # its copy of the vocabulary
DRAWN_MARGIN_BYTES = 1 << 16  # alignment of a hundred small tensors; logs round to 10 KiB
DRAWN_MARGIN_SHARE = 0.02  # exact on every measured launch; another build may differ a little
DRAWN_ELSEWHERE_MARGIN_SHARE = 0.1  # CUDA and others reserve beside the graph; unmeasured
# Where one expert alone is used, local devices were seen to take up to 70 % more among delta nets,
# and 5 % among other layers: the order of work is as drawn, the cause unknown.
LONE_EXPERT_OF_DELTA_NET_SHARE = 0.8
LONE_EXPERT_SHARE = 0.1


def predict(
    model: ModelInfo,
    shape: LaunchShape,
    *,
    overhead_bytes: Mapping[DeviceId, int],
    is_drawn: bool = True,
) -> tuple[DeviceBytes, ...]:
    """Bytes on HOST and on each device of the split, in that order.

    `overhead_bytes`: what no buffer line shows, such as the driver's context. Host weights are
    those that are read from there: a mapped file's other pages are the page cache's, and a copy
    repacked for the CPU takes the place of mapped pages that are then reclaimable. `is_drawn`:
    False estimates the compute buffers, which takes a tenth of the time.
    """
    owners = layer_devices(model, shape)
    computes = _computes(model, shape, owners, is_drawn=is_drawn)
    weights = _weights(model, shape, owners, host_weights(model, shape, owners))
    kept = _kept(model, shape, owners)
    return tuple(
        _on_device(
            model, shape, device_id=device_id, weights_bytes=weights[device_id],
            kv_bytes=kept[device_id], compute=computes[device_id],
            overhead_bytes=overhead_bytes.get(device_id, 0),
        )
        for device_id in (HOST, *dict(shape.split))
    )  # fmt: skip


def layer_devices(model: ModelInfo, shape: LaunchShape) -> tuple[DeviceId, ...]:
    """Where each layer lies, output layer last: a prefix on HOST, then the devices in order."""
    devices = [device_id for device_id, layers in shape.split for _ in range(layers)]
    return (HOST,) * (model.n_layer + 1 - len(devices)) + tuple(devices)


def predict_draft(
    draft: ModelInfo, shape: LaunchShape, *, device_id: DeviceId, is_drawn: bool = True
) -> tuple[DeviceBytes, ...]:
    """A draft model's own bytes beside the launch `shape`, all of it on one device (or HOST).

    It keeps a KV cache of the launch's context and slots, and reserves buffers of its own
    (common/speculative.cpp, b11434).
    """
    split = () if device_id == HOST else ((device_id, draft.n_layer + 1),)
    alone = replace(shape, split=split, n_cpu_moe=0, on_host=(), embedding=False)
    return predict(draft, alone, overhead_bytes={}, is_drawn=is_drawn)


def joined(parts: Iterable[DeviceBytes], others: Iterable[DeviceBytes]) -> tuple[DeviceBytes, ...]:
    """`parts` with `others` added, device by device; devices of `others` alone come last."""
    sums = {part.device_id: part for part in parts}
    for other in others:
        own = sums.get(other.device_id)
        sums[other.device_id] = other if own is None else _sum(own, other)
    return tuple(sums.values())


def _sum(one: DeviceBytes, other: DeviceBytes) -> DeviceBytes:
    return DeviceBytes(
        device_id=one.device_id,
        weights_bytes=one.weights_bytes + other.weights_bytes,
        kv_bytes=one.kv_bytes + other.kv_bytes,
        compute_bytes=one.compute_bytes + other.compute_bytes,
        overhead_bytes=one.overhead_bytes + other.overhead_bytes,
        margin_bytes=one.margin_bytes + other.margin_bytes,
    )


def _on_device(
    model: ModelInfo,
    shape: LaunchShape,
    *,
    device_id: DeviceId,
    weights_bytes: int,
    kv_bytes: int,
    compute: tuple[int, int],
    overhead_bytes: int,
) -> DeviceBytes:
    n_bytes, margin = compute
    if device_id == HOST:
        n_bytes += output_buffer_bytes(model, shape)
        margin += output_growth_bytes(model, shape)
    return DeviceBytes(
        device_id=device_id,
        weights_bytes=weights_bytes,
        kv_bytes=kv_bytes,
        compute_bytes=n_bytes,
        overhead_bytes=overhead_bytes,
        margin_bytes=margin,
    )


def _computes(
    model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId], *, is_drawn: bool
) -> dict[DeviceId, tuple[int, int]]:
    """Per device the bytes of its compute buffer, and how many more they may be."""
    drawn = compute_bytes(model, shape, owners) if is_drawn else None
    if drawn is not None and is_known(model):
        share = _drawn_margin_share(model, shape)
        return {
            device_id: (n_bytes, int(n_bytes * share) + DRAWN_MARGIN_BYTES)
            for device_id, n_bytes in drawn.items()
        }
    sizes = {HOST: host_compute_bytes(model, shape)}
    if shape.split:
        sizes |= dict.fromkeys(dict(shape.split), device_compute_bytes(model, shape))
    expected = sizes if drawn is None else drawn
    if is_known(model):
        # A search's estimate, whose drawing follows, or a file that lacks a tensor.
        mosts = {device: int(max(n, sizes[device]) * (1 + MARGIN_SHARE))
                 for device, n in expected.items()}  # fmt: skip
    else:
        largest = {device: max(n, sizes[device]) for device, n in expected.items()}
        mosts = {device: n + doubt_bytes(model, shape, n) for device, n in largest.items()}
    return {device: (n, mosts[device] - n) for device, n in expected.items()}


def _drawn_margin_share(model: ModelInfo, shape: LaunchShape) -> float:
    """The part of a drawn buffer that it may be short by."""
    if not shape.split:
        return DRAWN_MARGIN_SHARE
    if model.n_expert_used == 1 and not all(is_remote(device) for device, _ in shape.split):
        is_delta_net = model.architecture in DELTA_NETS
        return LONE_EXPERT_OF_DELTA_NET_SHARE if is_delta_net else LONE_EXPERT_SHARE
    is_measured = shape.backend == VULKAN
    return DRAWN_MARGIN_SHARE if is_measured else DRAWN_ELSEWHERE_MARGIN_SHARE


def _kept(model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId]) -> Counter[DeviceId]:
    """KV cache and recurrent state on each device."""
    kept = kept_bytes(model, shape)
    if shape.kv_on_host:
        return Counter({HOST: sum(kept)})
    found = dict.fromkeys(owners, 0)
    for n_bytes, owner in zip(kept, owners, strict=False):
        found[owner] += n_bytes
    return Counter(found)


def _weights(
    model: ModelInfo,
    shape: LaunchShape,
    owners: Sequence[DeviceId],
    left: Sequence[frozenset[str]],
) -> Counter[DeviceId]:
    """Bytes of weights on each device, or read from host memory."""
    sums = dict.fromkeys((HOST, *owners), 0)
    sums[HOST] = model.input_bytes
    for layer, owner in zip(model.layers, owners, strict=False):
        sums[owner] += layer.weight_bytes
    for owner, moved in _moved(model, shape, owners, left):
        sums[HOST] += moved
        sums[owner] -= moved
    found = Counter(sums)
    found[HOST] += repacking_bytes(model, shape, owners, left)
    if owners[-1] == HOST:
        found[HOST] += model.output_bytes - model.tied_bytes
        return found
    # token_embd, where it is tied, is not held twice on the host.
    moved = sum(weight.n_bytes for weight in model.ends if weight.name in left[-1])
    found[owners[-1]] += model.output_bytes - moved
    found[HOST] += moved - (model.tied_bytes if "token_embd.weight" in left[-1] else 0)
    return found


def _moved(
    model: ModelInfo,
    shape: LaunchShape,
    owners: Sequence[DeviceId],
    left: Sequence[frozenset[str]],
) -> Iterator[tuple[DeviceId, int]]:
    """By layer: whose it is, and the bytes of its weights that stay on the host all the same."""
    if not (shape.n_cpu_moe or any(left)):
        return
    known: dict[tuple[int, frozenset[str]], int] = {}  # few kinds of layer make up a model
    for i, (layer, owner, names) in enumerate(zip(model.layers, owners, left, strict=False)):
        if owner == HOST or (layer.weights and not names):
            continue
        key = (id(layer), names)
        if (n_bytes := known.get(key)) is None:
            n_bytes = moved_bytes(layer, i, shape, names)
            if layer.weights:  # of others its number decides, too
                known[key] = n_bytes
        yield owner, n_bytes


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
