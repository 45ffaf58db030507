"""A plan's decisions as sentences with their numbers, for status, logs and `plan`."""

from collections.abc import Iterator
from dataclasses import replace

from planners.compute import MARGIN_SHARE, device_compute_bytes
from planners.hardware import HOST
from planners.kv_cache import LaunchShape, kv_cache_bytes, state_bytes
from planners.layout.asked import CONTEXTS, DEVICE_UBATCHES, Asked
from planners.layout.budget import Budget, Budgets
from planners.layout.prompt_cache import PromptCache
from planners.model import LayerKind, ModelInfo
from planners.plan import DeviceBytes
from planners.sizes import format_size
from planners.speed import NOTICED, Rates, Speed, format_rate
from planners.speed import speed as predicted_speed


def explained(
    info: ModelInfo,
    asked: Asked,
    shape: LaunchShape,
    *,
    room: Budgets,
    predicted: tuple[DeviceBytes, ...],
    cache: PromptCache,
    rates: Rates,
    speed: Speed,
) -> tuple[str, ...]:
    """Why the launch is what it is, in the order in which it was decided; concessions priced."""
    return (
        *asked.notes,
        *room.notes,
        *_spared(info, shape, room=room, rates=rates),
        _context(info, asked, shape),
        *_cache_type(info, asked, shape),
        *_layers(info, shape, room=room, predicted=predicted),
        *_price_of_host(info, shape, room=room, rates=rates, speed=speed),
        _batch(info, shape, rates=rates, speed=speed),
        *_windows(info, shape),
        _prompt_cache(cache),
        f"predicted: {_rate(speed.prompt_tokens_per_s)} of prompt and"
        f" {_rate(speed.decode_tokens_per_s)} of decode over all slots, by "
        f"{_rates_used(shape, room=room, rates=rates)}",
    )


def _rate(tokens_per_s: float) -> str:
    return f"{format_rate(tokens_per_s)} tokens/s"


def _rates_used(shape: LaunchShape, *, room: Budgets, rates: Rates) -> str:
    labels = {HOST: "the processor", **{b.device_id: b.label for b in room.devices}}
    used = [device_id for device_id, _ in shape.split] or [HOST]
    return ", ".join(f"{rates[d].bytes_per_s / 1e9:.3g} GB/s on {labels[d]}" for d in used)


def _spared(info: ModelInfo, shape: LaunchShape, *, room: Budgets, rates: Rates) -> Iterator[str]:
    """Each device that could be used and is not, and why."""
    used = dict(shape.split)
    for budget in room.devices:
        if budget.device_id in used:
            continue
        if not _holds_a_layer(info, shape, budget):
            spare = format_size(max(0, budget.room_bytes))
            yield f"{budget.label} is not used: {spare} hold no layer beside its buffers"
        elif used and shape.n_gpu_layers > info.n_layer:
            yield f"{budget.label} is not used: the model fits without it, and a hop costs time"
        else:
            rate = rates[budget.device_id].bytes_per_s / 1e9
            yield f"{budget.label} is not used: at {rate:.3g} GB/s it would make the launch slower"


def _holds_a_layer(info: ModelInfo, shape: LaunchShape, budget: Budget) -> bool:
    compute = device_compute_bytes(info, replace(shape, split=((budget.device_id, 1),)))
    spare = budget.room_bytes - budget.overhead_bytes - int(compute * (1 + MARGIN_SHARE))
    return spare >= min((layer.weight_bytes for layer in info.layers), default=0)


def _cache_type(info: ModelInfo, asked: Asked, shape: LaunchShape) -> tuple[str, ...]:
    k, v = asked.types[0]
    if (shape.type_k, shape.type_v) == (k, v):
        return ()
    saved = kv_cache_bytes(info, replace(shape, type_k=k, type_v=v)) - kv_cache_bytes(info, shape)
    return (
        f"KV cache in {shape.type_k}/{shape.type_v}, not {k}/{v}: {format_size(saved)} less, for a "
        "little precision; saved slots of the other type cannot be restored",
    )


def _price_of_host(
    info: ModelInfo, shape: LaunchShape, *, room: Budgets, rates: Rates, speed: Speed
) -> tuple[str, ...]:
    """What leaving weights to the host costs, against a fastest device with room for all."""
    on_host = shape.n_gpu_layers <= info.n_layer or shape.n_cpu_moe
    if not room.devices or not on_host:
        return ()
    fastest = max((b.device_id for b in room.devices), key=lambda d: rates[d].bytes_per_s)
    whole = replace(shape, split=((fastest, info.n_layer + 1),), n_cpu_moe=0)
    roomy = predicted_speed(info, whole, rates=rates).decode_tokens_per_s
    if roomy <= speed.decode_tokens_per_s:
        return ()
    return (f"its price: decode at {_rate(speed.decode_tokens_per_s)} rather than {_rate(roomy)}",)


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
    labelled = dict(shape.split)
    if shape.n_cpu_moe:
        told.append(f"experts of the first {shape.n_cpu_moe} layers in host memory, to make room")
    on_host = n_all - shape.n_gpu_layers
    if on_host:
        why = "no room is left on a device" if room.devices else "there is no device for them"
        if any(_holds_a_layer(info, shape, b) for b in room.devices if b.device_id not in labelled):
            why = "no device with room would be faster"
        told.append(f"{on_host} of {n_all} layers on the processor: {why}")
    told.append(
        f"host memory: {format_size(needs[HOST].total_bytes)} of the "
        f"{format_size(room.host_bytes)} it can give"
    )
    return told


def _batch(info: ModelInfo, shape: LaunchShape, *, rates: Rates, speed: Speed) -> str:
    told = f"batches of {shape.n_ubatch} tokens"
    if shape.embedding:
        return f"{told}: an input must fit into one"
    step_s = shape.n_ubatch / speed.prompt_tokens_per_s
    told += f": a caller who leaves in prefill frees the slot within {step_s:.2g} s"
    if not shape.split or shape.n_ubatch >= DEVICE_UBATCHES[0]:
        return told
    wide = replace(shape, n_batch=DEVICE_UBATCHES[0], n_ubatch=DEVICE_UBATCHES[0])
    wider = predicted_speed(info, wide, rates=rates).prompt_tokens_per_s
    if wider < speed.prompt_tokens_per_s * NOTICED:
        return f"{told}; {DEVICE_UBATCHES[0]} would read prompts no faster"
    return (
        f"{told}; {DEVICE_UBATCHES[0]} would read prompts at {_rate(wider)}, not "
        f"{_rate(speed.prompt_tokens_per_s)}"
    )


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
