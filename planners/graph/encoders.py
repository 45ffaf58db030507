"""Graphs of encoders of BERT's kind (src/models/bert.cpp, b11434)."""

from collections.abc import Sequence

from planners.graph.attention import qkv
from planners.graph.blocks import Builder, Placed
from planners.graph.ends import draw_pooling, embedded, end
from planners.graph.tensors import F16, F32, Node, get_rows, leaf_input, like, view


def draw_encoder(build: Builder, layers: Sequence[Placed], *, host: int) -> None:
    model, n = build.model, build.n
    positions = build.ids(n)
    x = embedded(build, host)
    if (types := end(model, "token_types.weight", host)) is not None:
        x = like("add", x, view(types, model.n_embd))
    if (table := end(model, "position_embd.weight", host)) is not None:
        x = like("add", get_rows(table, positions), x)
    x = build.norm(layers[0], "token_embd_norm", x, op="norm")
    mask = batch_mask(build)
    out_ids = build.ids(build.n_outputs)
    for i, at in enumerate(layers):
        x = _encoder_layer(build, at, x, positions, mask, out_ids if i == len(layers) - 1 else None)
    x.is_output = True
    build.expand(x)
    draw_pooling(build, x)


def batch_mask(build: Builder) -> Node:
    return leaf_input(build.n, build.n, size=F16 if build.shape.flash_attn else F32)


def _encoder_layer(
    build: Builder, at: Placed, x: Node, positions: Node, mask: Node, out_ids: Node | None
) -> Node:
    layer, skip = at.layer, x
    head = build.model.n_embd // layer.n_head
    q, k, v = qkv(build, at, x, heads=((head, layer.n_head),) * 3)
    if build.model.architecture == "nomic-bert":
        q, k = like("rope", q, positions), like("rope", k, positions)
    x = build.attend_batch(q, k, v, mask)
    x = build.biased(at, "attn_output", build.linear(at, "attn_output", x))
    if out_ids is not None:
        x, skip = get_rows(x, out_ids), get_rows(skip, out_ids)
    x = build.norm(at, "attn_output_norm", like("add", x, skip), op="norm")
    x = like("add", build.ffn(at, x), x)
    return build.norm(at, "layer_output_norm", x, op="norm")
