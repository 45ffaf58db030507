"""Each architecture's graph, layer by layer (src/models/*.cpp, b11434)."""

from collections.abc import Sequence

from planners.graph import recurrent
from planners.graph.attention import attention
from planners.graph.blocks import Builder, Placed
from planners.graph.encoders import batch_mask, draw_encoder
from planners.graph.ends import draw_output, embedded, stacked_layers
from planners.graph.experts import moe
from planners.graph.families import BERTS, DELTA_NETS, GEMMAS, GRANITES, KNOWN, NEMOTRONS
from planners.graph.repeats import Repeats
from planners.graph.tensors import Node, Undrawn, get_rows, leaf_input, like, view
from planners.model import LayerKind, ModelInfo

_LATE_OUTPUTS = (*DELTA_NETS, "gpt-oss", *NEMOTRONS)
_ALL_OUTPUTS = ("cogvlm",)  # every token's logits are computed, whoever asks for them
_WINDOW_PERIOD = 6  # of gemma-embedding: the last layer of so many sees all
_UNPINNED_NORMS = (*GEMMAS, "olmo2", "exaone4")  # the last of a layer, named without it
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
_SIGMOID = 2  # llama.h, LLAMA_EXPERT_GATING_FUNC_TYPE_SIGMOID


def draw(build: Builder, layers: Sequence[Placed], *, output: int, last: int, host: int) -> None:
    """Put the whole graph into `build`: `layers` in order, then the output layer.

    Its norm lies on backend `last`, its matrix on `output`.
    """
    if build.model.architecture in BERTS:
        draw_encoder(build, layers, host=host)
    else:
        _draw_decoder(build, layers, output=output, last=last, host=host)


def _draw_decoder(
    build: Builder, layers: Sequence[Placed], *, output: int, last: int, host: int
) -> None:
    arch = build.model.architecture
    build.norm_op = _norm_op(build.model)
    x = first = embedded(build, host)
    if arch in GEMMAS:
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

    masks = [batch_mask(build) for _ in range(2)] if build.model.keeps_nothing else []
    asks_first = ids is None or arch in DELTA_NETS
    repeats = Repeats(build.graph, asks_first=asks_first, shared=ids or (), player=build.player)
    for i, at in enumerate(layers):
        if masks:
            build.batch_mask = masks[at.is_odd]
        if i == len(layers) - 1 and arch not in (*_LATE_OUTPUTS, *_ALL_OUTPUTS):
            x = _layer(build, at, x, positions, ids, out_ids)
        else:
            after = layers[i + 1] if i + 1 < len(layers) else None
            x = repeats.layer(at, x, draw_layer, after=after)
        if at.is_odd and first.view_src is not None:
            x = like("add", x, view(first, *x.ne[:2], nb=first.nb))
    late = out_ids if arch in _LATE_OUTPUTS else None
    draw_output(build, x, late, output=output, last=last)


def _norm_op(model: ModelInfo) -> str:
    """By name, or of unknown ones by what they have an epsilon for."""
    if model.architecture in KNOWN:
        return "norm" if model.architecture in _LAYER_NORMS else "rms_norm"
    start = f"{model.architecture}.attention.layer_norm"
    keys = {key for key, _ in model.metadata}
    is_plain = f"{start}_epsilon" in keys and f"{start}_rms_epsilon" not in keys
    return "norm" if is_plain else "rms_norm"


def odd_layers(model: ModelInfo) -> tuple[bool, ...]:
    """Of each layer whether images enter at it, or it sees all where others have a window."""
    numbers = range(model.n_layer)
    if model.architecture == "gemma-embedding":
        return tuple((i + 1) % _WINDOW_PERIOD == 0 for i in numbers)
    stacked = stacked_layers(model)
    return tuple(i < stacked for i in numbers)


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
        x = attention(build, at, x, positions)
    elif arch in NEMOTRONS:
        is_mixed = at.layer.weight("ffn_gate_inp.weight") is not None
        x = _with_shared(build, at, x, _routed(build, at, x)) if is_mixed else build.ffn(at, x)
        return like("add", x, skip)
    if out_ids is not None:
        x, skip = get_rows(x, out_ids), get_rows(skip, out_ids)
    if arch == "gptneox" and build.number("use_parallel_residual"):  # of two norms
        return like("add", like("add", build.ffn(at, build.norm(at, "ffn_norm", skip)), skip), x)
    if _is_parallel(at):
        normed = normed if out_ids is None else get_rows(normed, out_ids)
        return like("add", like("add", _network(build, at, normed), skip), x)
    if at.layer.weight("post_ffw_norm.weight") is not None:
        x = build.norm(at, "post_attention_norm", x)
    if arch in GRANITES:
        x = build.scaled(x, "residual_scale")
    x = like("add", skip, x) if arch in _SKIP_FIRST and arch != "phi3" else like("add", x, skip)
    if arch in ("mamba", "mamba2", *NEMOTRONS):
        return x
    return _feed_forward(build, at, x)


def _is_parallel(at: Placed) -> bool:
    """Whether attention and feed-forward network read the same norm, as in command-r."""
    later = ("ffn_norm", "post_attention_norm", "post_ffw_norm")
    has_later = any(at.layer.weight(f"{name}.weight") is not None for name in later)
    network = ("ffn_up", "ffn_gate_inp")
    return not has_later and any(at.layer.weight(f"{name}.weight") is not None for name in network)


def _network(build: Builder, at: Placed, x: Node) -> Node:
    """The feed-forward network, of experts where the layer has some."""
    if at.layer.weight("ffn_gate_inp.weight") is None:
        return build.ffn(at, x)
    return _with_shared(build, at, x, _routed(build, at, x))


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
    if arch == "gpt-oss":
        x = moe(build, at, x, gating="late_softmax", norm=False)
    else:
        x = _network(build, at, x)
    if arch in GRANITES:
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
