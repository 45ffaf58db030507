"""Compute buffers, in bytes: estimates of what the graph allocator reserves.

ggml-alloc packs tensors by lifetime, so the stages of a graph do not add up and its depth does not
matter: the widest stage decides. The stages were read from llama.cpp's graphs and checked against
launches of llama-server b10434.
"""

from collections.abc import Iterable
from math import prod

from planners.graph.fallback import is_remote
from planners.graph.families import BERTS
from planners.graph.kinds import kinds
from planners.graph.kv_cache import F32_BYTES, LaunchShape, kv_cells, layer_kv_bytes, padded
from planners.model import LayerInfo, LayerKind, ModelInfo, WeightInfo

_PIPELINED = ("vulkan", "cuda", "hip")  # whose devices are asynchronous and have events
_PIPELINED_COPIES = 4  # ggml-backend.cpp, GGML_SCHED_MAX_COPIES
MAMBA_1 = ("mamba", "jamba")
MARGIN_SHARE = 0.2  # the least that left no measured launch more than 2 % above its bound
LIKENESS_SHARE = 0.4  # of graphs drawn by likeness, or estimated
_ROWS_BESIDE = 5  # activations that an unknown graph may keep longer
_DECAY_CHUNK, _DECAYS = 16, 3  # tokens that are set against each other, and copies of it
_READ = frozenset({
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_q_norm",
    "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "ffn_up", "ffn_gate",
    "ffn_down", "ffn_gate_inp", "ffn_up_exps", "ffn_gate_exps", "ffn_down_exps", "ffn_up_shexp",
    "ffn_gate_shexp", "ffn_down_shexp", "exp_probs_b", "attn_sinks", "token_embd", "output",
    "output_norm", "token_embd_norm", "position_embd", "token_types", "cls",
})  # fmt: skip
"""Weights that estimates and drawings by likeness count on."""
_TABLE = "per_layer_token_embd"  # read by rows
_MASK_BYTES = {True: 2, False: 4}  # f16 with flash attention, f32 without
_INDEX_BYTES = 8  # without flash attention V is written through one i64 per element
_ENCODER_FFN_ROWS = 1  # bert's graph frees each row before the next


def device_compute_bytes(model: ModelInfo, shape: LaunchShape) -> int:
    """Bytes reserved on each device that holds layers."""
    n = n_tokens(shape)
    copies = n_copies(shape, is_whole=shape.n_gpu_layers > model.n_layer)
    peak = _inputs_bytes(model, shape, n) * copies + _peak_bytes(model, shape, n)
    peak += (copies - 1) * _rows(model.n_embd, n)  # what comes from the device before
    if shape.n_gpu_layers <= model.n_layer or shape.n_cpu_moe:
        # Large batches borrow the device for weights that lie on the host: one copy at a time.
        peak += model.largest_tensor_bytes
    return peak


def doubt_bytes(model: ModelInfo, shape: LaunchShape, n_bytes: int) -> int:
    """By how much a buffer may exceed what likeness says: the graph may be another one.

    The price of rows that are kept longer, of what weights put out that no likeness reads, of
    an indexer's scores, of states read and written, and of the largest weight and a layer's cache
    once more, where they are lent.
    """
    n = n_tokens(shape)
    states = 2 * max((layer.state_width for layer in model.layers), default=0)
    rows = _ROWS_BESIDE * model.n_embd + _unread_width(model)
    is_lent = shape.split and shape.n_gpu_layers <= model.n_layer
    lent = model.largest_tensor_bytes + _layer_cache_bytes(model, shape) if is_lent else 0
    # What else passes from one device to the next is held as often as all that does.
    copies = n_copies(shape, is_whole=shape.n_gpu_layers > model.n_layer)
    kept = copies * _rows(rows, n) + _rows(states, shape.n_parallel)
    kept += _rows(_score_width(model, shape) + _decay_width(model, shape), n)
    return int(n_bytes * LIKENESS_SHARE) + kept + lent


def _layer_cache_bytes(model: ModelInfo, shape: LaunchShape) -> int:
    """KV cache of the layer that keeps most; a device is sent those of the host's layers."""
    objects = {id(layer): layer for layer in model.layers}.values()
    return max((layer_kv_bytes(model, layer, shape) for layer in objects), default=0)


def _score_width(model: ModelInfo, shape: LaunchShape) -> int:
    """Elements per token of an indexer's scores, of every cell by each of its heads.

    They are there twice, as a product and in another order, and once more summed up and masked.
    """
    indexed = next((layer for layer in model.layers if layer.index_width), None)
    heads = dict(model.metadata).get(f"{model.architecture}.attention.indexer.head_count")
    if indexed is None or not isinstance(heads, int):
        return 0
    return (2 * heads + 2) * kv_cells(model, indexed, shape)


def _decay_width(model: ModelInfo, shape: LaunchShape) -> int:
    """Elements per token of decays apart for every channel, where no one operation does it all.

    The engine gives that up for all layers where one would run elsewhere than its states lie
    (delta-net-base.cpp, build_delta_net_chunking).
    """
    width = dict(model.metadata).get(f"{model.architecture}.kda.head_dim")
    is_whole = shape.n_gpu_layers > model.n_layer and not shape.kv_on_host
    if not isinstance(width, int) or not shape.split or is_whole:
        return 0
    return _DECAYS * _DECAY_CHUNK * width * max(layer.n_head for layer in model.layers)


def _unread_width(model: ModelInfo) -> int:
    """Elements per token that weights put out which no likeness reads: of a layer, and outside."""
    inside = max((_width_out(layer.weights) for layer in kinds(model).layers), default=0)
    return inside + 2 * _width_out(model.ends)


def _width_out(weights: Iterable[WeightInfo]) -> int:
    unread = [w for w in weights if len(w.shape) > 1 and w.name.rsplit(".", 1)[0] not in _READ]
    return sum(w.shape[0] if w.name.startswith(_TABLE) else prod(w.shape[1:]) for w in unread)


def host_compute_bytes(model: ModelInfo, shape: LaunchShape) -> int:
    """Bytes reserved on the host: the graph's inputs, or all of it where the host computes."""
    n = n_tokens(shape)
    copies = n_copies(shape, is_whole=shape.n_gpu_layers > model.n_layer)
    inputs = _inputs_bytes(model, shape, n) * copies + (copies + 1) * _rows(model.n_embd, n)
    if not shape.split or _leaves_recurrent_layers(model, shape):
        return inputs + _peak_bytes(model, shape, n)
    return inputs


def _leaves_recurrent_layers(model: ModelInfo, shape: LaunchShape) -> bool:
    """True where the host runs recurrent layers: always those of Mamba-1, by op support."""
    on_host = model.layers[: max(0, model.n_layer + 1 - shape.n_gpu_layers)]
    return model.architecture in MAMBA_1 or any(
        layer.kind is LayerKind.RECURRENT for layer in on_host
    )


def n_tokens(shape: LaunchShape) -> int:
    """Tokens of the largest graph: one ubatch, in equal shares for all slots."""
    return padded(min(shape.n_ctx, shape.n_ubatch), shape.n_parallel)


def n_outputs(model: ModelInfo, shape: LaunchShape) -> int:
    """Tokens of one batch that have outputs (tools/server, server_output_limits)."""
    return shape.n_batch if shape.embedding or not model.is_causal else shape.n_parallel


def n_copies(shape: LaunchShape, *, is_whole: bool) -> int:
    """Batches that are under way at once, one device working on each: 1 without a pipeline.

    With every layer on devices that all work on their own (llama-context.cpp, pipeline_parallel);
    a remote one does not.
    """
    is_plain = is_whole and not (shape.kv_on_host or shape.n_cpu_moe or shape.on_host)
    is_alone = len(shape.split) < 2 or any(is_remote(device) for device, _ in shape.split)
    if is_alone or not is_plain or shape.backend not in _PIPELINED:
        return 1
    return _PIPELINED_COPIES


def _rows(width: int, n: int) -> int:
    """Bytes of an f32 activation of `width` for `n` tokens."""
    return F32_BYTES * width * n


def _inputs_bytes(model: ModelInfo, shape: LaunchShape, n: int) -> int:
    """Masks, and without flash attention the rows' indices: one of each per cache."""
    last = {layer.kind: layer for layer in model.layers}
    mask = _MASK_BYTES[shape.flash_attn]
    if model.keeps_nothing:
        has_windows = f"{model.architecture}.attention.sliding_window" in dict(model.metadata)
        return n * n * mask * (2 if has_windows else 1)
    total = 0
    for kind in (LayerKind.FULL, LayerKind.SWA):
        if (layer := last.get(kind)) is None:
            continue
        total += kv_cells(model, layer, shape) * n * mask
        if not shape.flash_attn:
            total += _INDEX_BYTES * n * layer.v_width
    return total


def _peak_bytes(model: ModelInfo, shape: LaunchShape, n: int) -> int:
    """The widest stage over all layers and the logits, inputs apart."""
    unlike = {_kind(layer): layer for layer in kinds(model).layers}
    stages = [stage for layer in unlike.values() for stage in _stages(model, layer, shape, n)]
    if model.output_bytes and not model.is_encoder:
        logits = _rows(model.n_vocab, min(n, n_outputs(model, shape)))
        stages.append(_rows(model.n_embd, n) + logits)
    return max(stages, default=0)


def _kind(layer: LayerInfo) -> tuple[object, ...]:
    """What decides a layer's stages: its weights do not, and would take long to hash."""
    widths = (layer.n_head, layer.q_width, layer.k_width, layer.v_width, layer.n_ff)
    return layer.kind, bool(layer.expert_bytes), layer.has_gate, layer.has_qk_norm, *widths


def _stages(model: ModelInfo, layer: LayerInfo, shape: LaunchShape, n: int) -> list[int]:
    stages = [2 * _rows(model.n_embd, n) + _ffn_bytes(model, layer, n)]
    if layer.kind is LayerKind.RECURRENT:
        stages.append(_recurrent_bytes(model, shape, n))
    elif layer.n_head:
        stages.append(_attention_bytes(model, layer, shape, n))
    return stages


def _ffn_bytes(model: ModelInfo, layer: LayerInfo, n: int) -> int:
    if layer.expert_bytes:
        active = _rows(layer.n_ff * model.n_expert_used, n)
        return max(3 * active, _rows(model.n_embd * model.n_expert_used, n) + active)
    rows = 3 if layer.has_gate else 2
    if model.is_encoder:  # those of today have their gate within ffn_up
        is_plain = model.architecture in BERTS and not layer.has_gate
        rows = _ENCODER_FFN_ROWS if is_plain else 3
    return rows * _rows(layer.n_ff, n)


def _attention_bytes(model: ModelInfo, layer: LayerInfo, shape: LaunchShape, n: int) -> int:
    q, embeddings = _rows(layer.q_width, n), _rows(model.n_embd, n)
    if not shape.flash_attn:
        n_kv = n if model.keeps_nothing else kv_cells(model, layer, shape)
        latent = q if layer.k_width and not layer.v_width else 0
        kv = 2 * q if model.keeps_nothing else 0  # in no cache
        return embeddings + q + _rows(layer.n_head * n_kv, n) + latent + kv
    kv = 2 * _rows(layer.k_width, n) + _rows(layer.v_width, n)
    if model.architecture == "gemma3" or model.keeps_nothing:
        kv = 0
    return 2 * embeddings + (4 if layer.has_qk_norm else 3) * q + kv


def _recurrent_bytes(model: ModelInfo, shape: LaunchShape, n: int) -> int:
    """Stage of a recurrent layer: Mamba-1, Mamba-2 and gated delta nets."""
    embeddings = _rows(model.n_embd, n)
    ssm = model.recurrent
    if ssm is None:  # short convolutions, RWKV
        return 2 * embeddings + 3 * _rows(model.n_embd, n)
    if model.architecture in MAMBA_1:
        return embeddings + 24 * n * ssm.d_inner
    groups = 2 * ssm.n_group * ssm.d_state
    if model.architecture in ("qwen3next", "qwen35", "qwen35moe", "kimi-linear"):
        heads = ssm.n_head * ssm.d_state
        return 2 * embeddings + _rows(3 * (groups + heads) + 2 * heads, n)
    convolved = ssm.d_inner + groups
    return (
        2 * embeddings
        + _rows(2 * ssm.d_inner + groups + ssm.n_head, n)
        + 2 * _rows(convolved, n)
        + _rows(ssm.d_inner, n)
        + _rows(ssm.d_state * ssm.d_inner, shape.n_parallel)
    )
