"""Attention as each architecture has it, up to its output product (src/models/*.cpp, b11434)."""

from planners.graph.blocks import Builder, Placed
from planners.graph.families import DELTA_NETS, GEMMAS, NEMOTRONS
from planners.graph.tensors import (
    F32,
    Node,
    concat,
    cont,
    like,
    mul_mat,
    needed,
    permute,
    reshape,
    tensor,
    view,
)

_SCALED_Q = (*GEMMAS, "phi3")
_NO_ROPE = ("jamba", *NEMOTRONS)
_ROPE_FIRST = ("hunyuan-dense", "hunyuan-moe")  # their heads are normalised after it
_WHOLE_NORMS = (
    "olmo2",
    "olmoe",
    "minimax-m2",
)  # Q and K are normalised whole, before they are heads


def attention(build: Builder, at: Placed, x: Node, positions: Node) -> Node:
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
    q, k, v = qkv(build, at, x, heads=((head, layer.n_head), (head, layer.n_head_kv),
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


def qkv(
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
        names = ("attn_q", "attn_k", "attn_v")
        has_v = at.layer.weight("attn_v.weight") is not None
        made = [build.biased(at, name, build.linear(at, name, x)) for name in names[: 2 + has_v]]
        products = made if has_v else [*made, made[1]]  # K's serves as V in some layers of gemma4
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
    if layer.weight("attn_kv_b.weight") is not None:
        return _expanded_attention(build, at, x, positions)
    k_b = needed(build.weight(at, "attn_k_b.weight"), "attn_k_b")
    v_b = needed(build.weight(at, "attn_v_b.weight"), "attn_v_b")
    rank, nope = k_b.ne[1], k_b.ne[0]
    rope = layer.k_width - rank
    q = _compressed_q(build, at, x)
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


def _compressed_q(build: Builder, at: Placed, x: Node) -> Node:
    if at.layer.weight("attn_q_a.weight") is None:
        return build.linear(at, "attn_q", x)
    q = build.norm(at, "attn_q_a_norm", build.linear(at, "attn_q_a", x))
    return build.linear(at, "attn_q_b", q)


def _expanded_attention(build: Builder, at: Placed, x: Node, positions: Node) -> Node:
    """MLA whose latent row is expanded to K and V of every head, which are kept (plm.cpp)."""
    n, heads = build.n, max(at.layer.n_head_kv, 1)
    head, v_head = at.layer.k_width // heads, at.layer.v_width // heads
    kv_b = needed(build.weight(at, "attn_kv_b.weight"), "attn_kv_b")
    rank, nope = kv_b.ne[0], kv_b.ne[1] // heads - v_head
    rope = head - nope
    q = _compressed_q(build, at, x)
    steps = (4, 4 * head, q.nb[1], q.nb[2])
    q_nope, q_pe = (view(q, width, heads, n, nb=steps) for width in (nope, rope))
    both = build.linear(at, "attn_kv_a_mqa", x)
    latent = build.norm(at, "attn_kv_a_norm", view(both, rank, n, nb=both.nb))
    k_pe = view(both, rope, 1, n, nb=(4, both.nb[1], both.nb[1], both.nb[2]))
    kv = mul_mat(kv_b, latent)
    steps = (4, 4 * (nope + v_head), kv.nb[1], kv.nb[2])
    k_nope, v = view(kv, nope, heads, n, nb=steps), view(kv, v_head, heads, n, nb=steps)
    v = reshape(cont(v), v_head, heads, n)
    q_pe, k_pe = like("rope", q_pe, positions), like("rope", k_pe, positions)
    q = concat(q_nope, q_pe)
    k = concat(k_nope, tensor("repeat", q_pe.ne, src=(k_pe, q_pe)))
    return build.linear(at, "attn_output", build.attend(at, q, k, v))
