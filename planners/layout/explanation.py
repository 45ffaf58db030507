"""A plan's decisions as sentences with their numbers, for status, logs and `plan`."""

from planners.hardware import HOST
from planners.kv_cache import LaunchShape, kv_cache_bytes, state_bytes
from planners.layout.asked import CONTEXTS, Asked
from planners.layout.budget import Budgets
from planners.layout.prompt_cache import PromptCache
from planners.model import LayerKind, ModelInfo
from planners.plan import DeviceBytes
from planners.sizes import format_size


def explained(
    info: ModelInfo,
    asked: Asked,
    shape: LaunchShape,
    *,
    room: Budgets,
    predicted: tuple[DeviceBytes, ...],
    cache: PromptCache,
) -> tuple[str, ...]:
    """Why the launch is what it is, in the order in which it was decided."""
    return (
        *asked.notes,
        *room.notes,
        _context(info, asked, shape),
        *_layers(info, shape, room=room, predicted=predicted),
        _batch(shape),
        *_windows(info, shape),
        _prompt_cache(cache),
    )


def _context(info: ModelInfo, asked: Asked, shape: LaunchShape) -> str:
    context, slots = shape.n_ctx_seq, shape.n_parallel
    kept = format_size(kv_cache_bytes(info, shape) + state_bytes(info, shape))
    many = f"{slots} slots of {context} tokens" if slots > 1 else f"one slot of {context} tokens"
    if asked.is_context_fixed:
        return f"{many}, as configured: {kept} of KV cache in {shape.type_k}/{shape.type_v}"
    if context >= info.n_ctx_train:
        return f"{many}, all it was trained for: {kept} of KV cache"
    largest = CONTEXTS[0] if not asked.embedding else asked.contexts[0]
    why = "the most that is given unasked" if context >= largest else "more finds no room"
    return f"{many}, chosen by room ({why}): {kept} of KV cache"


def _layers(
    info: ModelInfo, shape: LaunchShape, *, room: Budgets, predicted: tuple[DeviceBytes, ...]
) -> list[str]:
    n_all = info.n_layer + 1
    needs = {part.device_id: part for part in predicted}
    labels = {budget.device_id: budget.label for budget in room.devices}
    told = [
        f"{layers} of {n_all} layers on {labels[device_id]}: "
        f"{format_size(needs[device_id].total_bytes)} of the "
        f"{format_size(room.room_bytes(device_id))} it can give"
        for device_id, layers in shape.split
    ]
    if shape.n_cpu_moe:
        told.append(f"experts of the first {shape.n_cpu_moe} layers in host memory, to make room")
    on_host = n_all - shape.n_gpu_layers
    if on_host:
        why = "no room is left on a device" if room.devices else "there is no device for them"
        told.append(f"{on_host} of {n_all} layers on the processor: {why}")
    told.append(
        f"host memory: {format_size(needs[HOST].total_bytes)} of the "
        f"{format_size(room.host_bytes)} it can give"
    )
    return told


def _batch(shape: LaunchShape) -> str:
    if shape.embedding:
        return f"batches of {shape.n_ubatch} tokens: an input must fit into one"
    return f"batches of {shape.n_ubatch} tokens"


def _windows(info: ModelInfo, shape: LaunchShape) -> tuple[str, ...]:
    if not any(layer.kind is LayerKind.SWA for layer in info.layers):
        return ()
    if shape.swa_full:
        return ("sliding windows are kept whole: slots can be saved and moved",)
    return (f"sliding windows of {info.sliding_window} tokens: whole ones find no room",)


def _prompt_cache(cache: PromptCache) -> str:
    return (
        f"prompt cache of {cache.cache_ram_mib} MiB and {cache.ctx_checkpoints} checkpoints a slot "
        f"({format_size(cache.host_bytes)} of host memory at most)"
    )
