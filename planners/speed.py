"""How fast a launch will be: tokens per second of prompt and of decode, before anything runs.

Decode is bound by memory: a step reads every touched weight once and every slot's cache, device
after device. A prompt is bound by arithmetic. Point estimates: with rates learned on the same
device they were within a third of what other models measured, with the defaults they can be off
by two; they rank placements, and promise nothing.
"""

from collections.abc import Sequence

from msgspec import Struct

from planners.graph.compute import n_tokens
from planners.graph.kinds import kinds
from planners.graph.kv_cache import F32_BYTES, LaunchShape, cache_type
from planners.hardware import HOST, DeviceId
from planners.lessons.rates import Rate, Rates
from planners.model import LayerInfo, LayerKind, ModelInfo

# Several tokens at once fill a processor's registers worse than a prompt does: 4 slots of a 135M
# model decoded at six tenths of the prompt's rate, measured.
SMALL_BATCH_SHARE = 0.6
OP_OFFLOAD_BATCH = 32  # ggml's GGML_OP_OFFLOAD_MIN_BATCH
STEP_S = 300e-6  # sampling, detokenizing, one server loop

USED_TOKENS = 1024  # of a slot's context, at which a decode is predicted
NOTICED = 1.02  # a prediction that is better by less is not worth a sentence
PROMPT_WEIGHT = 0.1  # tokens of fresh prompt per token decoded: most are found in the cache


class Speed(Struct, frozen=True):
    """Tokens per second of one launch."""

    prompt_tokens_per_s: float
    decode_tokens_per_s: float
    """Over all slots together, each of them busy."""


class Load(Struct, frozen=True):
    """What one layer asks of the device it lies on."""

    step_bytes: float
    """Read by one decode step of all slots, routed experts left out."""
    step_expert_bytes: float
    token_flops: float
    """Operations per token, routed experts left out."""
    token_expert_flops: float
    whole_bytes: int
    """Read by a prompt's ubatch, which touches every expert."""
    whole_expert_bytes: int


def format_rate(tokens_per_s: float) -> str:
    """As people read it, without an exponent: "9.91", "97", "1125"."""
    return f"{tokens_per_s:.3g}" if tokens_per_s < 1000 else f"{tokens_per_s:.0f}"


def loads(
    model: ModelInfo, shape: LaunchShape, *, used_tokens: int = USED_TOKENS
) -> tuple[Load, ...]:
    """What each layer asks, the output layer last."""
    used = min(used_tokens, shape.n_ctx_seq)
    per_byte = _params_per_byte(model)
    share = _touched(model, shape.n_parallel)
    known: dict[tuple[LayerKind, *tuple[int, ...]], Load] = {}  # unlike layers mostly ask the same
    unlike = kinds(model)
    found = []
    for layer in unlike.layers:
        widths = (layer.k_width, layer.v_width, layer.q_width, layer.state_width)
        kind = (layer.kind, layer.weight_bytes, layer.expert_bytes, *widths)
        if (load := known.get(kind)) is None:
            load = _load(model, layer, shape, used=used, share=share, per_byte=per_byte)
            known[kind] = load
        found.append(load)
    output = model.output_bytes
    last = Load(output, 0.0, 2 * per_byte * output, 0.0, output, 0)
    return (*(found[number] for number in unlike.numbers), last)


def _load(
    model: ModelInfo,
    layer: LayerInfo,
    shape: LaunchShape,
    *,
    used: int,
    share: float,
    per_byte: float,
) -> Load:
    experts, dense = layer.expert_bytes, layer.weight_bytes - layer.expert_bytes
    kept = _token_bytes(layer, shape) * _depth(model, layer, used)
    state = 2 * F32_BYTES * layer.state_width  # read and written
    one = model.n_expert_used / model.n_expert if model.n_expert else 1.0
    attention = 4 * layer.q_width * _depth(model, layer, used)
    return Load(
        step_bytes=dense + shape.n_parallel * (kept + state),
        step_expert_bytes=experts * share,
        token_flops=2 * per_byte * dense + attention,
        token_expert_flops=2 * per_byte * experts * one,
        whole_bytes=dense,
        whole_expert_bytes=experts,
    )


def _params_per_byte(model: ModelInfo) -> float:
    """Weights per byte, as if every tensor had the same type."""
    n_bytes = sum(layer.weight_bytes for layer in model.layers)
    n_bytes += model.input_bytes + model.output_bytes - model.tied_bytes
    return model.n_params / max(n_bytes, 1)


def _touched(model: ModelInfo, n_parallel: int) -> float:
    """The share of the routed experts that a step of all slots reads; each slot draws its own."""
    if not model.n_expert:
        return 1.0
    idle = max(0.0, 1 - model.n_expert_used / model.n_expert)
    return float(1 - idle**n_parallel)


def _depth(model: ModelInfo, layer: LayerInfo, used: int) -> int:
    if layer.kind is LayerKind.SWA:
        return min(used, model.sliding_window)
    return used if layer.kind is LayerKind.FULL else 0


def _token_bytes(layer: LayerInfo, shape: LaunchShape) -> int:
    """KV cache of one token in one layer."""
    k, v = cache_type(shape.type_k), cache_type(shape.type_v)
    return k.row_bytes(layer.k_width) + v.row_bytes(layer.v_width)


def step_s(load: Load, rate: Rate, *, n_parallel: int, has_experts: bool = True) -> float:
    """Seconds that one layer adds to one decode step of all slots.

    The first slot's arithmetic hides behind the reads; each further one adds its own.
    """
    read, flops = load.step_bytes, load.token_flops
    if has_experts:
        read += load.step_expert_bytes
        flops += load.token_expert_flops
    further = (n_parallel - 1) * flops / (rate.flops * SMALL_BATCH_SHARE)
    return read / rate.bytes_per_s + further + rate.layer_s


def experts_s(load: Load, host: Rate, device: Rate, *, n_parallel: int) -> float:
    """Seconds of a decode step for one layer whose experts lie on the host: there and back."""
    extra = (n_parallel - 1) * load.token_expert_flops / (host.flops * SMALL_BATCH_SHARE)
    return load.step_expert_bytes / host.bytes_per_s + extra + 2 * device.hop_s


def prompt_s(load: Load, rate: Rate, *, n_ubatch: int, has_experts: bool = True) -> float:
    """Seconds that one layer adds to each token of a long prompt."""
    read, flops = load.whole_bytes, load.token_flops
    if has_experts:
        read += load.whole_expert_bytes
        flops += load.token_expert_flops
    return max(flops / rate.flops, read / rate.bytes_per_s / n_ubatch)


def _borrowed_s(
    n_bytes: int, flops: float, host: Rate, borrower: Rate | None, *, n_ubatch: int
) -> float:
    """Seconds per prompt token for weights on the host: computed there, or on a device by loan.

    Batches of 32 and more copy them to the device (ggml-backend.cpp, op offload).
    """
    there = max(flops / host.flops, n_bytes / host.bytes_per_s / n_ubatch)
    if borrower is None or n_ubatch < OP_OFFLOAD_BATCH:
        return there
    return min(there, n_bytes / borrower.link_bytes_per_s / n_ubatch + flops / borrower.flops)


def speed(
    model: ModelInfo,
    shape: LaunchShape,
    *,
    rates: Rates,
    used_tokens: int = USED_TOKENS,
    asked: Sequence[Load] = (),
) -> Speed:
    """Predicted tokens/s of `shape`, its slots all busy, `used_tokens` deep in their contexts.

    `asked`: its `loads`, where they are known already.
    """
    token_s, total_s = times_s(model, shape, rates=rates, used_tokens=used_tokens, asked=asked)
    # Where the rates say that a decode outruns a prompt, the prompt's is the wrong one: it could be
    # read as it is decoded, token by token.
    return Speed(1 / min(token_s, total_s), shape.n_parallel / total_s)


def times_s(
    model: ModelInfo,
    shape: LaunchShape,
    *,
    rates: Rates,
    used_tokens: int = USED_TOKENS,
    asked: Sequence[Load] = (),
) -> tuple[float, float]:
    """Seconds of a prompt's token, and of a decode step of all slots, by the rates alone."""
    asked = asked or loads(model, shape, used_tokens=used_tokens)
    owners = _owners(model, shape)
    host, n_ubatch = rates[HOST], n_tokens(shape)
    # The first of `--device` computes for the host (ggml-backend.cpp, backend_id_from_cur).
    borrower = rates[shape.split[0][0]] if shape.split else None
    token_s = STEP_S / n_ubatch + _prompt_hops_s(model, shape, rates, n_ubatch=n_ubatch)
    total_s = STEP_S + _hops_s(model, shape, rates)
    known: dict[tuple[int, DeviceId, bool], tuple[float, float]] = {}  # few layers are unlike
    n_lean = shape.n_cpu_moe
    step, prompt = 0.0, 0.0
    before: tuple[int, DeviceId, bool] | None = None
    for i, (load, owner) in enumerate(zip(asked, owners, strict=True)):
        key = (id(load), owner, i < n_lean and owner != HOST)
        if key != before:
            if key not in known:
                device, is_lean = None if owner == HOST else rates[owner], key[2]
                known[key] = (
                    _layer_step_s(load, device, host, n_parallel=shape.n_parallel, is_lean=is_lean),
                    layer_prompt_s(
                        load, device, host, borrower, n_ubatch=n_ubatch, is_lean=is_lean
                    ),
                )
            before, (step, prompt) = key, known[key]
        total_s += step
        token_s += prompt
    return token_s, total_s


def _layer_step_s(
    load: Load, device: Rate | None, host: Rate, *, n_parallel: int, is_lean: bool
) -> float:
    """Seconds of a decode step for one layer on a device, or on the host where that is None."""
    step = step_s(load, device or host, n_parallel=n_parallel, has_experts=not is_lean)
    if device is None or not is_lean:
        return step
    return step + experts_s(load, host, device, n_parallel=n_parallel)


def layer_prompt_s(
    load: Load,
    device: Rate | None,
    host: Rate,
    borrower: Rate | None = None,
    *,
    n_ubatch: int,
    is_lean: bool = False,
) -> float:
    """Seconds per prompt token of one layer on a device, or on the host where that is None.

    `borrower`: the device that computes for the host where that is faster. `is_lean`: the routed
    experts of a layer on a device lie on the host.
    """
    if device is None:
        n_bytes = load.whole_bytes + load.whole_expert_bytes
        flops = load.token_flops + load.token_expert_flops
        fixed_s = host.ubatch_layer_s / n_ubatch
        return _borrowed_s(n_bytes, flops, host, borrower, n_ubatch=n_ubatch) + fixed_s
    seconds = prompt_s(load, device, n_ubatch=n_ubatch, has_experts=not is_lean)
    seconds += device.ubatch_layer_s / n_ubatch
    if is_lean:
        n_bytes, flops = load.whole_expert_bytes, load.token_expert_flops
        seconds += _borrowed_s(n_bytes, flops, host, device, n_ubatch=n_ubatch)
    return seconds


def _hops_s(model: ModelInfo, shape: LaunchShape, rates: Rates) -> float:
    """Seconds of a decode step for going from device to device."""
    return sum(entry_s(model, shape, rates[device_id]) for device_id, _ in shape.split)


def _prompt_hops_s(model: ModelInfo, shape: LaunchShape, rates: Rates, *, n_ubatch: int) -> float:
    """Seconds of a prompt's token for going from device to device, its ubatch's others beside."""
    return sum(
        entry_prompt_s(model, rates[device_id], n_ubatch=n_ubatch) for device_id, _ in shape.split
    )


def entry_prompt_s(model: ModelInfo, rate: Rate, *, n_ubatch: int) -> float:
    """Seconds of a prompt's token for going to one device: its share of the hop, and its way."""
    if not rate.hop_s:
        return 0.0
    return rate.hop_s / n_ubatch + F32_BYTES * model.n_embd / rate.link_bytes_per_s


def entry_s(model: ModelInfo, shape: LaunchShape, rate: Rate) -> float:
    """Seconds of a decode step for going to one device: its hop and the activations' way."""
    sent = F32_BYTES * model.n_embd * shape.n_parallel
    return rate.hop_s + (sent / rate.link_bytes_per_s if rate.hop_s else 0.0)


def _owners(model: ModelInfo, shape: LaunchShape) -> list[DeviceId]:
    devices = [device_id for device_id, layers in shape.split for _ in range(layers)]
    return [HOST] * (model.n_layer + 1 - len(devices)) + devices
