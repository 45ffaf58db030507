"""Each architecture's graph, layer by layer (src/models/*.cpp, b11434)."""

from collections.abc import Sequence

from planners.graph import recurrent
from planners.graph.blocks import Builder, Placed, head_weight
from planners.graph.experts import moe
from planners.graph.repeats import Repeats
from planners.graph.tensors import (
    F16,
    F32,
    Node,
    Undrawn,
    concat,
    cont,
    get_rows,
    leaf_input,
    like,
    mul_mat,
    needed,
    permute,
    reshape,
    transpose,
    view,
)
from planners.model import LayerKind, ModelInfo

DELTA_NETS = ("qwen3next", "qwen35", "qwen35moe")
_GRANITES = ("granitehybrid", "granite", "granitemoe")
_NEMOTRONS = ("nemotron_h", "nemotron_h_moe")
_LATE_OUTPUTS = (*DELTA_NETS, "gpt-oss", *_NEMOTRONS)
_GEMMAS = ("gemma", "gemma2", "gemma3", "gemma-embedding")
_WINDOW_PERIOD = 6  # of gemma-embedding: the last layer of so many sees all
_SCALED_Q = (*_GEMMAS, "phi3")
_NO_ROPE = ("jamba", *_NEMOTRONS)
_ROPE_FIRST = ("hunyuan-dense", "hunyuan-moe")  # their heads are normalised after it
_WHOLE_NORMS = (
    "olmo2",
    "olmoe",
    "minimax-m2",
)  # Q and K are normalised whole, before they are heads
_UNPINNED_NORMS = (*_GEMMAS, "olmo2", "exaone4")  # the last of a layer, named without it
_LAYER_NORMS = ("command-r", "cohere2", "starcoder2", "stablelm")
_SKIP_FIRST = ("jamba", "lfm2", "lfm2moe", "phi3")  # what is added to what
_RAW_WEIGHTS = (
    "llama4",
    "jamba",
    "qwen2moe",
    "olmoe",
    "deepseek",
)  # of experts, not made to sum up to 1
_FOUR_POSITIONS = ("qwen35", "qwen35moe", "qwen2vl", "qwen3vl", "qwen3vlmoe")
_STACKED = ("qwen3vl", "qwen3vlmoe")
_DENSE = ("llama", "mistral3", "qwen2", "qwen2vl", "qwen3", "smollm3", "seed_oss", "granite",
          "ernie4_5", "gemma", "glm4", "phi3", "olmo2", "exaone4", "hunyuan-dense", "exaone",
          "internlm2", "minicpm", "arcee", "qwen3vl", "command-r", "cohere2",
          "starcoder2",
          "stablelm")  # fmt: skip
_MIXTURES = ("qwen2moe", "qwen3moe", "gpt-oss", "granitemoe", "ernie4_5-moe", "glm4moe", "olmoe",
             "dots1", "deepseek", "hunyuan-moe", "lfm2moe", "minimax-m2", "qwen3vlmoe", "llama4",
             "nemotron_h_moe")  # fmt: skip
_SIGMOID = 2  # llama.h, LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID
_BERTS = ("bert", "nomic-bert")
KNOWN = frozenset({
    *_DENSE, *_MIXTURES, *_GEMMAS, "deepseek2", "mamba", "mamba2", "jamba", "granitehybrid",
    "nemotron_h", "lfm2", *DELTA_NETS, *_BERTS,
})  # fmt: skip
"""Architectures whose own graphs are drawn; others are drawn like them, or estimated."""


def draw(build: Builder, layers: Sequence[Placed], *, output: int, host: int) -> None:
    """Put the whole graph into `build`: `layers` in order, the output layer on backend `output`."""
    if build.model.architecture in _BERTS:
        _draw_encoder(build, layers, host=host)
    else:
        _draw_decoder(build, layers, output=output, host=host)


def _draw_decoder(build: Builder, layers: Sequence[Placed], *, output: int, host: int) -> None:
    arch = build.model.architecture
    build.norm_op = _norm_op(build.model)
    x = embedded = _embedded(build, host)
    if arch in _GEMMAS:
        x = like("scale", x)
    kinds = {layer.kind for layer in build.model.layers}
    ids = recurrent.state_ids(build) if LayerKind.RECURRENT in kinds else None
    pos_width = 4 if arch in _FOUR_POSITIONS else 1
    positions = build.ids(build.n * pos_width)
    if arch == "llama4":
        build.attention_scales = leaf_input(1, 1, build.n)
    for kind in (LayerKind.FULL, LayerKind.SWA):
        if kind in kinds:
            build.cache(kind)
    out_ids = build.ids(build.n_outputs)

    def draw_layer(at: Placed, x: Node) -> Node:
        return _layer(build, at, x, positions, ids, None)

    masks = [] if build.model.is_causal else [_batch_mask(build) for _ in range(2)]
    is_copied = ids is None or arch in DELTA_NETS
    repeats = Repeats(build.graph, shared=ids or ()) if is_copied else None
    for i, at in enumerate(layers):
        if masks:
            build.batch_mask = masks[at.is_odd]
        if i == len(layers) - 1 and arch not in _LATE_OUTPUTS:
            x = _layer(build, at, x, positions, ids, out_ids)
        elif repeats is not None:
            x = repeats.layer(at, x, draw_layer)
        else:
            x = draw_layer(at, x)
        if at.is_odd and embedded.view_src is not None:
            x = like("add", x, view(embedded, *x.ne[:2], nb=embedded.nb))
    _draw_output(build, x, None if arch not in _LATE_OUTPUTS else out_ids, output=output)


def _norm_op(model: ModelInfo) -> str:
    """By name, or of unknown ones by what they have an epsilon for."""
    if model.architecture in KNOWN:
        return "norm" if model.architecture in _LAYER_NORMS else "rms_norm"
    start = f"{model.architecture}.attention.layer_norm"
    keys = {key for key, _ in model.metadata}
    is_plain = f"{start}_epsilon" in keys and f"{start}_rms_epsilon" not in keys
    return "norm" if is_plain else "rms_norm"


def _embedded(build: Builder, host: int) -> Node:
    """Token embeddings; the slot for ready-made ones is reserved beside them."""
    tokens, table = build.ids(build.n), _end(build.model, "token_embd.weight", host)
    x = get_rows(needed(table, "token_embd"), tokens)
    if build.model.architecture in _GRANITES:
        x = build.scaled(x, "embedding_scale")
    width = build.model.n_embd * (1 + stacked_layers(build.model))
    if width > build.model.n_embd:
        x = Node("pad", (width, *x.ne[1:]), src=(x,))
        x = view(x, build.model.n_embd, build.n, nb=x.nb)
    build.expand(x, leaf_input(width, build.n))
    return x


def odd_layers(model: ModelInfo) -> tuple[bool, ...]:
    """Of each layer whether images enter at it, or it sees all where others have a window."""
    numbers = range(model.n_layer)
    if model.architecture == "gemma-embedding":
        return tuple((i + 1) % _WINDOW_PERIOD == 0 for i in numbers)
    stacked = stacked_layers(model)
    return tuple(i < stacked for i in numbers)


def stacked_layers(model: ModelInfo) -> int:
    """How many layers, from the first on, have a part of an image's embeddings added (qwen3vl)."""
    found = dict(model.metadata).get(f"{model.architecture}.n_deepstack_layers")
    is_one = model.architecture in _STACKED and isinstance(found, int)
    return min(max(int(found or 0), 0), model.n_layer) if is_one else 0


def _end(model: ModelInfo, name: str, backend: int) -> Node | None:
    found = next((weight for weight in model.ends if weight.name == name), None)
    return head_weight(found, backend)


def _draw_output(build: Builder, x: Node, out_ids: Node | None, *, output: int) -> None:
    model = build.model
    early = model.architecture == "gpt-oss"
    if out_ids is not None and early:
        x = get_rows(x, out_ids)
    x = like(build.norm_op, x)
    norm = _end(model, "output_norm.weight", output) or _end(
        model, "token_embd_norm.weight", output
    )
    if norm is not None:
        x = like("mul", x, norm)
    if not model.is_causal:
        _draw_pooling(build, x)
        return
    x.is_output = True  # before rows are picked: the seed of a nextn head
    if out_ids is not None and not early:
        x = get_rows(x, out_ids)
        x.is_output = True
    table = _end(model, "output.weight", output) or _end(model, "token_embd.weight", output)
    if not (build.shape.embedding and model.architecture == "lfm2"):
        x = mul_mat(needed(table, "output"), x)
        if model.architecture in _GRANITES:
            x = build.scaled(x, "logit_scale")
        elif model.architecture == "gemma2":
            for op in ("scale", "unary", "scale"):
                x = like(op, x)
        x.is_output = True
    build.expand(x)


def _layer(
    build: Builder,
    at: Placed,
    x: Node,
    positions: Node,
    ids: tuple[Node, Node] | None,
    out_ids: Node | None,
) -> Node:
    arch, skip = build.model.architecture, x
    if at.layer.weight("attn_norm.weight") is not None:
        x = build.norm(at, "attn_norm", x)
    normed = x
    if arch in DELTA_NETS:
        build.expand(x)
    if at.layer.kind is LayerKind.RECURRENT:
        if ids is None:
            raise Undrawn("a state without sequences")
        x = _recurrent(build, at, x, ids)
    elif at.layer.n_head_kv and at.layer.weight("attn_output.weight") is not None:
        x = _attention(build, at, x, positions)
    elif arch in _NEMOTRONS:
        is_mixed = at.layer.weight("ffn_gate_inp.weight") is not None
        x = _with_shared(build, at, x, _routed(build, at, x)) if is_mixed else build.ffn(at, x)
        return like("add", x, skip)
    if out_ids is not None:
        x, skip = get_rows(x, out_ids), get_rows(skip, out_ids)
    if _is_parallel(at):
        normed = normed if out_ids is None else get_rows(normed, out_ids)
        return like("add", like("add", build.ffn(at, normed), skip), x)
    if at.layer.weight("post_ffw_norm.weight") is not None:
        x = build.norm(at, "post_attention_norm", x)
    if arch in _GRANITES:
        x = build.scaled(x, "residual_scale")
    x = like("add", skip, x) if arch in _SKIP_FIRST and arch != "phi3" else like("add", x, skip)
    if arch in ("mamba", "mamba2", *_NEMOTRONS):
        return x
    return _feed_forward(build, at, x)


def _is_parallel(at: Placed) -> bool:
    """Whether attention and feed-forward network read the same norm, as in command-r."""
    later = ("ffn_norm", "post_attention_norm", "post_ffw_norm")
    has_later = any(at.layer.weight(f"{name}.weight") is not None for name in later)
    return not has_later and at.layer.weight("ffn_up.weight") is not None


def _recurrent(build: Builder, at: Placed, x: Node, ids: tuple[Node, Node]) -> Node:
    if at.layer.weight("shortconv.conv.weight") is not None:
        return recurrent.short_convolution(build, at, x, ids)
    if at.layer.weight("attn_qkv.weight") is not None:
        return recurrent.delta_net(build, at, x, ids)
    if at.layer.weight("ssm_x.weight") is not None:
        return recurrent.mamba_1(build, at, x, ids)
    return recurrent.mamba_2(build, at, x, ids)


def _feed_forward(build: Builder, at: Placed, skip: Node) -> Node:
    arch, layer = build.model.architecture, at.layer
    own, last = (layer.weight(f"{name}.weight") for name in ("ffn_norm", "post_ffw_norm"))
    x = skip
    if own is not None or last is None:
        x = build.norm(at, "post_attention_norm" if own is None else "ffn_norm", x)
    if layer.weight("ffn_gate_inp.weight") is None:
        x = build.ffn(at, x)
    elif arch == "gpt-oss":
        x = moe(build, at, x, gating="late_softmax", norm=False)
    else:
        x = _with_shared(build, at, x, _routed(build, at, x))
    if arch in _GRANITES:
        x = build.scaled(x, "residual_scale")
    if last is not None:
        x = build.norm(_unpinned(at) if arch in _UNPINNED_NORMS else at, "post_ffw_norm", x)
    return like("add", skip, x) if arch in _SKIP_FIRST else like("add", x, skip)


def _routed(build: Builder, at: Placed, x: Node) -> Node:
    arch = build.model.architecture
    told = build.number("expert_gating_func") or (_SIGMOID if arch == "glm4moe" else 0)
    told = _SIGMOID if arch in ("llama4", "nemotron_h_moe") else told
    gating = "sigmoid" if told == _SIGMOID else "softmax"
    if arch in ("deepseek2", "glm4moe", "dots1", "nemotron_h_moe"):
        return moe(build, at, x, gating=gating, norm=bool(build.number("expert_weights_norm")))
    return moe(build, at, x, gating=gating, norm=arch not in _RAW_WEIGHTS)


def _unpinned(at: Placed) -> Placed:
    """A norm that is named without its layer is free to move."""
    return Placed(at.layer, at.backend, at.kv_backend, at.host, at.on_host, False)


def _with_shared(build: Builder, at: Placed, x: Node, routed: Node) -> Node:
    if at.layer.weight("ffn_up_shexp.weight") is None:
        return routed
    shared = build.ffn(at, x, suffix="_shexp")
    if at.layer.weight("ffn_gate_inp_shexp.weight") is not None:
        score = build.linear(at, "ffn_gate_inp_shexp", x)
        gate = like("unary", score)
        if build.model.architecture == "qwen2moe":  # a sigmoid in two steps
            gate = like("div", gate, score)
        shared = like("mul", shared, gate)
    return like("add", routed, shared)


def _attention(build: Builder, at: Placed, x: Node, positions: Node) -> Node:
    arch, layer = build.model.architecture, at.layer
    if layer.weight("attn_kv_a_mqa.weight") is not None:
        return _latent_attention(build, at, x, positions)
    if arch in DELTA_NETS:
        return _gated_attention(build, at, x, positions)
    head = layer.k_width // layer.n_head_kv
    v_head = layer.v_width // layer.n_head_kv
    if build.batch_mask is not None:  # nothing is kept
        k_weight = needed(build.weight(at, "attn_k.weight"), "attn_k")
        head = v_head = k_weight.ne[1] // layer.n_head_kv
    q, k, v = _qkv(build, at, x, heads=((head, layer.n_head), (head, layer.n_head_kv),
                                        (v_head, layer.n_head_kv)))  # fmt: skip
    if arch not in _NO_ROPE:
        q, k = _roped(build, at, q, positions), _roped(build, at, k, positions, part="k")
    if arch in _SCALED_Q:
        q = like("scale", q)
    if build.batch_mask is not None:
        x = build.attend_batch(q, k, v, build.batch_mask)
    else:
        x = build.attend(at, q, k, v, sinks=build.weight(at, "attn_sinks.weight"))
    return build.biased(at, "attn_output", build.linear(at, "attn_output", x))


def _qkv(
    build: Builder, at: Placed, x: Node, *, heads: tuple[tuple[int, int], ...]
) -> tuple[Node, Node, Node]:
    """Q, K and V, each by (width, heads): products of their own or views of one (build_qkv)."""
    if at.layer.weight("attn_qkv.weight") is not None:
        both = build.biased(at, "attn_qkv", build.linear(at, "attn_qkv", x))
        q, k, v = (
            view(both, width, count, build.n, nb=(F32, F32 * width, both.nb[1], both.nb[2]))
            for width, count in heads
        )
    else:
        products = [
            build.biased(at, name, build.linear(at, name, x))
            for name in ("attn_q", "attn_k", "attn_v")
        ]
        if build.model.architecture in _WHOLE_NORMS:
            q, k, v = products
            products = [build.norm(at, "attn_q_norm", q), build.norm(at, "attn_k_norm", k), v]
        q, k, v = (
            reshape(product, width, count, build.n)
            for product, (width, count) in zip(products, heads, strict=True)
        )
    return q, k, v


def _roped(build: Builder, at: Placed, x: Node, positions: Node, *, part: str = "q") -> Node:
    arch, name = build.model.architecture, f"attn_{part}_norm"
    is_normed = at.layer.weight(f"{name}.weight") is not None and arch not in _WHOLE_NORMS
    if is_normed and arch not in _ROPE_FIRST:
        x = build.norm(at, name, x)
    if arch == "llama4":
        return _turned_or_scaled(at, x, positions, part=part, scales=build.attention_scales)
    x = like("rope", x, positions) if at.layer.has_rope else x
    return build.norm(at, name, x) if is_normed and arch in _ROPE_FIRST else x


def _turned_or_scaled(
    at: Placed, x: Node, positions: Node, *, part: str, scales: Node | None
) -> Node:
    """llama4's Q and K: turned and normalised, or Q scaled by how far the position is."""
    if at.layer.has_rope:
        return like("rms_norm", like("rope", x, positions))
    return like("mul", x, needed(scales, "scales")) if part == "q" else x


def _gated_attention(build: Builder, at: Placed, x: Node, positions: Node) -> Node:
    """Attention of the delta nets: Q comes with a gate for its output."""
    layer, n = at.layer, build.n
    head = layer.k_width // layer.n_head_kv
    both = build.linear(at, "attn_q", x)
    k, v = build.linear(at, "attn_k", x), build.linear(at, "attn_v", x)
    is_next = build.model.architecture == "qwen3next"
    if is_next:
        both = reshape(both, 2 * head, layer.n_head, n)
    steps = (4, 8 * head, 8 * head * layer.n_head, 8 * head * layer.n_head * n)
    q = view(both, head, layer.n_head, n, nb=steps)
    gate = view(both, head, layer.n_head, n, nb=steps)
    k, v = reshape(k, head, layer.n_head_kv, n), reshape(v, head, layer.n_head_kv, n)
    q, k = _roped(build, at, q, positions), _roped(build, at, k, positions, part="k")
    x = build.attend(at, q, k, v)
    gate = like("unary", cont(gate, head * layer.n_head, n))
    return build.linear(at, "attn_output", like("mul", x, gate))


def _latent_attention(build: Builder, at: Placed, x: Node, positions: Node) -> Node:
    """MLA with absorbed products (deepseek2.cpp)."""
    n, layer = build.n, at.layer
    k_b = needed(build.weight(at, "attn_k_b.weight"), "attn_k_b")
    v_b = needed(build.weight(at, "attn_v_b.weight"), "attn_v_b")
    rank, nope = k_b.ne[1], k_b.ne[0]
    rope = layer.k_width - rank
    if layer.weight("attn_q_a.weight") is not None:
        q = build.norm(at, "attn_q_a_norm", build.linear(at, "attn_q_a", x))
        q = build.linear(at, "attn_q_b", q)
    else:
        q = build.linear(at, "attn_q", x)
    both = build.linear(at, "attn_kv_a_mqa", x)
    latent = view(both, rank, n, nb=both.nb)
    k_pe = like(
        "rope", view(both, rope, 1, n, nb=(4, both.nb[1], both.nb[1], both.nb[2])), positions
    )
    latent = build.norm(at, "attn_kv_a_norm", latent)
    steps = (4, 4 * (nope + rope), q.nb[1], q.nb[2])
    q_nope, q_pe = (view(q, width, layer.n_head, n, nb=steps) for width in (nope, rope))
    q_pe = like("rope", q_pe, positions)
    absorbed = permute(mul_mat(k_b, permute(q_nope, 0, 2, 1, 3)), 0, 2, 1, 3)
    latent = reshape(latent, rank, 1, n)
    q, k = concat(absorbed, q_pe), concat(latent, k_pe)
    x = build.attend(at, q, k, latent, v_b=v_b)
    return build.linear(at, "attn_output", x)


def _draw_encoder(build: Builder, layers: Sequence[Placed], *, host: int) -> None:
    model, n = build.model, build.n
    positions = build.ids(n)
    x = _embedded(build, host)
    if (types := _end(model, "token_types.weight", host)) is not None:
        x = like("add", x, view(types, model.n_embd))
    if (table := _end(model, "position_embd.weight", host)) is not None:
        x = like("add", get_rows(table, positions), x)
    x = build.norm(layers[0], "token_embd_norm", x, op="norm")
    mask = _batch_mask(build)
    out_ids = build.ids(build.n_outputs)
    for i, at in enumerate(layers):
        x = _encoder_layer(build, at, x, positions, mask, out_ids if i == len(layers) - 1 else None)
    x.is_output = True
    build.expand(x)
    _draw_pooling(build, x)


def _batch_mask(build: Builder) -> Node:
    return leaf_input(build.n, build.n, size=F16 if build.shape.flash_attn else F32)


def _encoder_layer(
    build: Builder, at: Placed, x: Node, positions: Node, mask: Node, out_ids: Node | None
) -> Node:
    layer, skip = at.layer, x
    head = build.model.n_embd // layer.n_head
    q, k, v = _qkv(build, at, x, heads=((head, layer.n_head),) * 3)
    if build.model.architecture == "nomic-bert":
        q, k = like("rope", q, positions), like("rope", k, positions)
    x = build.attend_batch(q, k, v, mask)
    x = build.biased(at, "attn_output", build.linear(at, "attn_output", x))
    if out_ids is not None:
        x, skip = get_rows(x, out_ids), get_rows(skip, out_ids)
    x = build.norm(at, "attn_output_norm", like("add", x, skip), op="norm")
    x = like("add", build.ffn(at, x), x)
    return build.norm(at, "layer_output_norm", x, op="norm")


def _draw_pooling(build: Builder, x: Node) -> None:
    if not build.shape.embedding:
        return
    if build.model.pooling == "mean":
        mean = leaf_input(x.ne[1], build.n_seqs)
        x = mul_mat(cont(transpose(x)), mean)
    elif build.model.pooling in ("cls", "last", "rank"):
        x = get_rows(x, build.ids(build.n_seqs))
    x.is_output = True
    build.expand(x)
