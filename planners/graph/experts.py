"""Mixtures of experts: routing, and the routed experts' sum (llama-graph.cpp, b11434)."""

from planners.graph.blocks import Builder, Placed
from planners.graph.tensors import (
    I32,
    Node,
    Undrawn,
    cont,
    full,
    get_rows,
    like,
    mul_mat_id,
    needed,
    reshape,
    set_rows,
    tensor,
    view,
)

MOST_USED = 64  # models use 1 to 10
_SCORED = 2  # experts whose scores speak for their group


def moe(build: Builder, at: Placed, x: Node, *, gating: str = "softmax", norm: bool = True) -> Node:
    """The routed experts' sum (build_moe_ffn)."""
    width, n, used = x.ne[0], x.ne[1], build.model.n_expert_used
    if not 0 < used <= min(build.model.n_expert, MOST_USED):
        raise Undrawn(f"{used} of {build.model.n_expert} experts are used")
    logits = build.biased(at, "ffn_gate_inp", build.linear(at, "ffn_gate_inp", x))
    late = gating == "late_softmax"
    probs = logits if late else like("soft_max" if gating == "softmax" else "unary", logits)
    is_early = build.model.architecture == "llama4"
    selection = logits if is_early else probs
    if (bias := build.weight(at, "exp_probs_b.bias")) is not None:
        selection = like("add", probs, bias)
    if (groups := int(build.number("expert_group_count"))) > 1:
        selection = _of_best_groups(build, selection, groups)
    sorted_ids = tensor("argsort", selection.ne, size=I32, src=(selection,))
    ids = view(sorted_ids, used, n, nb=sorted_ids.nb)
    weights = get_rows(reshape(probs, 1, probs.ne[0], n), ids)
    if late:
        weights = reshape(like("soft_max", reshape(weights, used, n)), 1, used, n)
    if norm:
        weights = reshape(weights, used, n)
        total = like("clamp", tensor("sum_rows", full(1, n), src=(weights,)))
        weights = reshape(like("div", weights, total), 1, used, n)
    weights = build.scaled(weights, "expert_weights_scale")
    build.expand(weights)
    x = reshape(x, width, 1, n)
    if is_early:  # what goes in is weighted, not what comes out
        x = like("mul", tensor("repeat", full(width, used, n), src=(x,)), weights)
    return _mixed(build, at, x, ids, weights, is_weighted=is_early)


def _of_best_groups(build: Builder, selection: Node, groups: int) -> Node:
    """The experts' scores with all but the best groups' masked out (deepseek)."""
    n, each = selection.ne[1], selection.ne[0] // groups
    kept = min(int(build.number("expert_group_used_count")), groups)
    if selection.ne[0] % groups or each < _SCORED or not kept:
        raise Undrawn(f"{kept} of {groups} groups of experts are used")
    grouped = reshape(selection, each, groups, n)
    ranked = tensor("argsort", grouped.ne, size=I32, src=(grouped,))
    best = get_rows(reshape(grouped, 1, each, groups, n),
                    view(ranked, _SCORED, groups, n, nb=ranked.nb))  # fmt: skip
    total = tensor("sum_rows", full(1, groups, n), src=(reshape(best, _SCORED, groups, n),))
    scores = reshape(total, groups, n)
    order = tensor("argsort", scores.ne, size=I32, src=(scores,))
    ids = view(order, kept, n, nb=order.nb)
    masked = set_rows(like("fill", grouped), get_rows(grouped, ids), ids)
    return reshape(masked, selection.ne[0], n)


def _mixed(
    build: Builder, at: Placed, x: Node, ids: Node, weights: Node, *, is_weighted: bool
) -> Node:
    def through(name: str, y: Node) -> Node:
        y = mul_mat_id(needed(build.weight(at, f"{name}.weight"), name), y, ids)
        bias = build.weight(at, f"{name}.bias")
        return y if bias is None else like("add_id", y, bias, ids)

    n, used = x.ne[2], weights.ne[1]
    if build.weight(at, "ffn_gate_up_exps.weight") is not None:
        both = through("ffn_gate_up_exps", x)
        half = both.ne[0] // 2
        gate, up = (view(both, half, *both.ne[1:], nb=both.nb) for _ in range(2))
        y = like("glu", gate, up)
    else:
        up = through("ffn_up_exps", x)
        if build.weight(at, "ffn_gate_exps.weight") is not None:
            y = like("glu", through("ffn_gate_exps", x), up)
        elif build.model.architecture.startswith("nemotron"):
            y = like("sqr", like("unary", up))
        else:
            y = like("unary", up)
    experts = through("ffn_down_exps", y)
    if not is_weighted:
        experts = like("mul", experts, weights)
    build.expand(experts)
    steps = (experts.nb[0], experts.nb[2], experts.nb[2], experts.nb[2])
    parts = [view(experts, experts.ne[0], n, nb=steps) for _ in range(used)]
    build.expand(*parts)
    total = parts[0]
    for part in parts[1:]:
        total = like("add", total, part)
        build.expand(total)
    return cont(total) if used == 1 else total
