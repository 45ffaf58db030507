"""A plan's decisions with their numbers, and what each concession costs; for people and scripts."""

from collections.abc import Iterator

from msgspec.structs import replace

from planners.graph.compute import MARGIN_SHARE, device_compute_bytes
from planners.graph.kv_cache import LaunchShape, kv_cache_bytes, state_bytes
from planners.hardware import HOST, DeviceId
from planners.layout.asked import (
    BATCHES_UNTIL_FREE,
    CONTEXT_ON_HOST,
    CONTEXT_WORTH_LAYERS,
    DEVICE_UBATCHES,
    Asked,
)
from planners.layout.budget import Budget, Budgets
from planners.layout.prompt_cache import PromptCache
from planners.lessons.rates import Rates
from planners.model import LayerKind, ModelInfo
from planners.plan import DeviceBytes
from planners.reasons import Price, Reason, ReasonKind, Unit, unused
from planners.sizes import MIB, format_size
from planners.speed import NOTICED, Speed, format_rate
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
    threads: Reason | None,
) -> tuple[Reason, ...]:
    """Why the launch is what it is, in the order in which it was decided; concessions priced."""
    return (
        *asked.notes,
        *room.notes,
        *_spared(info, shape, room=room, rates=rates),
        _context(info, asked, shape, room=room),
        *_cache_type(info, asked, shape),
        *_layers(shape, n_all=info.n_layer + 1, room=room, predicted=predicted),
        *_experts_on_host(info, shape, rates=rates, speed=speed),
        *_layers_on_host(info, shape, room=room, rates=rates, speed=speed),
        _host_memory(room=room, predicted=predicted),
        _batch(info, shape, rates=rates, speed=speed),
        *filter(None, (threads,)),
        *_windows(info, shape),
        _prompt_cache(cache, shape, host=predicted[0]),
        _speed(shape, room=room, rates=rates, speed=speed),
    )


def _speed(shape: LaunchShape, *, room: Budgets, rates: Rates, speed: Speed) -> Reason:
    labels = {HOST: "the processor", **{b.device_id: b.label for b in room.devices}}
    used = [device_id for device_id, _ in shape.split] or [HOST]
    by = ", ".join(f"{_gb_per_s(rates, d)} on {labels[d]}" for d in used)
    many = "" if shape.n_parallel == 1 else f" over {shape.n_parallel} busy slots"
    text = (
        f"predicted: {_rate(speed.prompt_tokens_per_s)} of prompt and"
        f" {_rate(speed.decode_tokens_per_s)} of decode{many}, with the weights read at {by}"
    )
    return Reason(ReasonKind.SPEED, text)


def _gb_per_s(rates: Rates, device_id: DeviceId) -> str:
    return f"{format_rate(rates[device_id].bytes_per_s / 1e9)} GB/s"


def _rate(tokens_per_s: float) -> str:
    return f"{format_rate(tokens_per_s)} tokens/s"


def _spared(
    info: ModelInfo, shape: LaunchShape, *, room: Budgets, rates: Rates
) -> Iterator[Reason]:
    """Each device that could be used and is not, and why."""
    used = {device_id for device_id, _ in shape.split}
    for budget in room.devices:
        if budget.device_id not in used:
            why = _why_spared(info, shape, budget, rates=rates, has_used=bool(used))
            yield unused(budget.device_id, budget.label, why)


def _why_spared(
    info: ModelInfo, shape: LaunchShape, budget: Budget, *, rates: Rates, has_used: bool
) -> str:
    if not _holds_a_layer(info, shape, budget):
        spare = format_size(max(0, budget.room_bytes))
        return f"no layer fits into the {spare} it can give, beside buffers"
    if has_used and shape.n_gpu_layers > info.n_layer:
        return "the model fits without it, and a hop costs time"
    return f"at {_gb_per_s(rates, budget.device_id)} it would make the launch slower"


def _holds_a_layer(info: ModelInfo, shape: LaunchShape, budget: Budget) -> bool:
    compute = device_compute_bytes(info, replace(shape, split=((budget.device_id, 1),)))
    spare = budget.room_bytes - budget.overhead_bytes - int(compute * (1 + MARGIN_SHARE))
    return spare >= min((layer.weight_bytes for layer in info.layers), default=0)


def _has_one_to_spare(info: ModelInfo, shape: LaunchShape, room: Budgets) -> bool:
    used = {device_id for device_id, _ in shape.split}
    return any(_holds_a_layer(info, shape, b) for b in room.devices if b.device_id not in used)


def _cache_type(info: ModelInfo, asked: Asked, shape: LaunchShape) -> Iterator[Reason]:
    k, v = asked.types[0]
    if (shape.type_k, shape.type_v) == (k, v):
        return
    saved = kv_cache_bytes(info, replace(shape, type_k=k, type_v=v)) - kv_cache_bytes(info, shape)
    text = (
        f"KV cache in {shape.type_k}/{shape.type_v}, not {k}/{v}: {format_size(saved)} less, for a "
        "little precision; saved slots of the other type cannot be restored"
    )
    yield Reason(ReasonKind.CACHE_TYPE, text)


def _context(info: ModelInfo, asked: Asked, shape: LaunchShape, *, room: Budgets) -> Reason:
    context, slots = shape.n_ctx_seq, shape.n_parallel
    many = f"{slots} slots of {context} tokens" if slots > 1 else f"one slot of {context} tokens"
    most = asked.unheld or asked.contexts[0]
    price = None
    if context >= info.n_ctx_train:
        why = "all it was trained for"
    elif asked.is_context_fixed:
        why = "as asked for"
    elif context >= most:
        why = "the most that is given unasked"
    else:
        why = _why_no_more_context(info, asked, shape, room=room, most=most)
        price = Price(Unit.CONTEXT, had=context, would_be=most)
    return Reason(ReasonKind.CONTEXT, f"{many}, {_kept(info, shape)}: {why}", price=price)


def _kept(info: ModelInfo, shape: LaunchShape) -> str:
    """What the slots keep of their tokens."""
    cache, state = kv_cache_bytes(info, shape), state_bytes(info, shape)
    told = []
    if cache:
        told.append(f"{format_size(cache)} of KV cache in {shape.type_k}/{shape.type_v}")
    if state:
        told.append(f"{format_size(state)} of recurrent state")
    return " and ".join(told) or "no KV cache"


def _why_no_more_context(
    info: ModelInfo, asked: Asked, shape: LaunchShape, *, room: Budgets, most: int
) -> str:
    """What keeps an automatic context below `most`."""
    if asked.unheld is not None and shape.n_ctx_seq >= asked.contexts[0]:
        return f"{most} would push out other models"
    is_whole = shape.n_gpu_layers > info.n_layer
    if is_whole and not shape.n_cpu_moe and _has_one_to_spare(info, shape, room):
        return f"{most} would push layers onto slower devices"
    if is_whole and not shape.n_cpu_moe:
        return f"{most} would find no room beside the layers"
    bound = CONTEXT_WORTH_LAYERS if shape.split and not is_whole else CONTEXT_ON_HOST
    if shape.n_ctx_seq not in asked.contexts_up_to(bound)[:1]:
        return f"{most} would find no room"
    if not shape.split:
        return f"a processor would read {most} too slowly; more is given where it is asked for"
    return f"{most} would push weights off the devices"


def _layers(
    shape: LaunchShape, *, n_all: int, room: Budgets, predicted: tuple[DeviceBytes, ...]
) -> Iterator[Reason]:
    needs = {part.device_id: part for part in predicted}
    labels = {budget.device_id: budget.label for budget in room.devices}
    for device_id, layers in shape.split:
        text = (
            f"{layers} of {n_all} layers on {labels[device_id]}: "
            f"{format_size(needs[device_id].total_bytes)} of the "
            f"{format_size(room.room_bytes(device_id))} it can give"
        )
        yield Reason(ReasonKind.LAYERS, text, device_id)


def _experts_on_host(
    info: ModelInfo, shape: LaunchShape, *, rates: Rates, speed: Speed
) -> Iterator[Reason]:
    if not shape.n_cpu_moe:
        return
    price = _decode_price(info, replace(shape, n_cpu_moe=0), rates=rates, speed=speed)
    text = f"experts of the first {shape.n_cpu_moe} layers in host memory, to make room"
    yield Reason(ReasonKind.EXPERTS_ON_HOST, text + _told(price), price=price)


def _layers_on_host(
    info: ModelInfo, shape: LaunchShape, *, room: Budgets, rates: Rates, speed: Speed
) -> Iterator[Reason]:
    n_all = info.n_layer + 1
    on_host = n_all - shape.n_gpu_layers
    if not on_host:
        return
    why, price = "no device can be used", None
    if _has_one_to_spare(info, shape, room):
        why = "no device with room would be faster"
    elif room.devices:
        why = "no room is left on a device"
        whole = replace(shape, split=((_fastest(room, rates), n_all),))
        price = _decode_price(info, whole, rates=rates, speed=speed)
    text = f"{on_host} of {n_all} layers on the processor: {why}{_told(price)}"
    yield Reason(ReasonKind.LAYERS_ON_HOST, text, price=price)


def _fastest(room: Budgets, rates: Rates) -> DeviceId:
    return max((b.device_id for b in room.devices), key=lambda d: rates[d].bytes_per_s)


def _decode_price(
    info: ModelInfo, roomy: LaunchShape, *, rates: Rates, speed: Speed
) -> Price | None:
    """What is lost against `roomy`; None where nothing is."""
    would_be = predicted_speed(info, roomy, rates=rates).decode_tokens_per_s
    had = speed.decode_tokens_per_s
    return Price(Unit.DECODE, had, would_be) if would_be > had else None


def _told(price: Price | None) -> str:
    if price is None:
        return ""
    return f"; decode at {_rate(price.had)}, with room for them at {_rate(price.would_be)}"


def _host_memory(*, room: Budgets, predicted: tuple[DeviceBytes, ...]) -> Reason:
    sharing = {budget.device_id: budget.label for budget in room.devices if budget.shares_host}
    parts = [part for part in predicted if part.device_id in (HOST, *sharing)]
    needs = format_size(sum(part.total_bytes for part in parts))
    text = f"host memory: {needs} of the {format_size(room.host_bytes)} it can give"
    if shared := [sharing[part.device_id] for part in parts if part.device_id in sharing]:
        text += f", with what {' and '.join(shared)} takes of it"
    return Reason(ReasonKind.HOST_MEMORY, text, HOST)


def _batch(info: ModelInfo, shape: LaunchShape, *, rates: Rates, speed: Speed) -> Reason:
    told = f"batches of {shape.n_ubatch} tokens"
    if shape.embedding:
        return Reason(ReasonKind.BATCH, f"{told}: an input must fit into one")
    free_s = BATCHES_UNTIL_FREE * shape.n_ubatch / speed.prompt_tokens_per_s
    within = f"{free_s:.2g} s" if free_s >= 1 else f"{max(1, round(free_s * 1e3))} ms"
    told += f": a caller who leaves in prefill frees the slot within {within}"
    price = _wider_price(info, shape, rates=rates, speed=speed)
    if price is not None and price.would_be < price.had * NOTICED:
        return Reason(ReasonKind.BATCH, f"{told}; {DEVICE_UBATCHES[0]} would be no faster")
    if price is not None:
        told += (
            f"; {DEVICE_UBATCHES[0]} would read prompts at {_rate(price.would_be)}, not "
            f"{_rate(price.had)}"
        )
    return Reason(ReasonKind.BATCH, told, price=price)


def _wider_price(
    info: ModelInfo, shape: LaunchShape, *, rates: Rates, speed: Speed
) -> Price | None:
    """What prompts lose against the widest batch; None where it is that one, or no device is."""
    if not shape.split or shape.n_ubatch >= DEVICE_UBATCHES[0]:
        return None
    wide = replace(shape, n_batch=DEVICE_UBATCHES[0], n_ubatch=DEVICE_UBATCHES[0])
    wider = predicted_speed(info, wide, rates=rates).prompt_tokens_per_s
    return Price(Unit.PROMPT, speed.prompt_tokens_per_s, wider)


def _windows(info: ModelInfo, shape: LaunchShape) -> Iterator[Reason]:
    if not any(layer.kind is LayerKind.SWA for layer in info.layers):
        return
    text = (
        "sliding windows are kept whole: slots can be saved and moved"
        if shape.swa_full
        else f"sliding windows of {info.sliding_window} tokens alone are kept, for want of room: "
        "slots cannot be saved or moved"
    )
    yield Reason(ReasonKind.WINDOWS, text)


def _prompt_cache(cache: PromptCache, shape: LaunchShape, *, host: DeviceBytes) -> Reason:
    beside_bytes = host.overhead_bytes - cache.host_bytes
    return Reason(
        ReasonKind.PROMPT_CACHE, _prompt_cache_text(cache, shape, beside_bytes=beside_bytes)
    )


def _prompt_cache_text(cache: PromptCache, shape: LaunchShape, *, beside_bytes: int) -> str:
    if shape.embedding:
        return "no prompt cache: embeddings have no use for it"
    if not cache.host_bytes:
        return "no prompt cache: saved prompts would take more than their share of host memory"
    kinds = []
    if cache.cache_ram_mib:
        kinds.append(f"prompt cache of {format_size(cache.cache_ram_mib * MIB)}")
    if cache.ctx_checkpoints:
        kinds.append(f"{cache.ctx_checkpoints} checkpoints a slot")
    most = format_size(cache.host_bytes)
    return (
        f"{' and '.join(kinds)}: {most} of host memory at most, while a prompt is saved;"
        f" {format_size(beside_bytes)} of its OTHER memory is the process itself"
    )
