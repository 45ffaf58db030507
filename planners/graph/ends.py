"""What lies outside of layers: embeddings, outputs, pooling (llama-graph.cpp, b11434)."""

from planners.graph.blocks import Builder, head_weight
from planners.graph.families import GRANITES
from planners.graph.tensors import (
    Node,
    cont,
    get_rows,
    leaf_input,
    like,
    mul_mat,
    needed,
    tensor,
    transpose,
    view,
)
from planners.model import ModelInfo

_STACKED = ("qwen3vl", "qwen3vlmoe")


def embedded(build: Builder, host: int) -> Node:
    """Token embeddings; the slot for ready-made ones is reserved beside them."""
    tokens, table = build.ids(build.n), end(build.model, "token_embd.weight", host)
    x = get_rows(needed(table, "token_embd"), tokens)
    if build.model.architecture in GRANITES:
        x = build.scaled(x, "embedding_scale")
    width = build.model.n_embd * (1 + stacked_layers(build.model))
    if width > build.model.n_embd:
        x = tensor("pad", (width, *x.ne[1:]), src=(x,))
        x = view(x, build.model.n_embd, build.n, nb=x.nb)
    build.expand(x, leaf_input(width, build.n))
    return x


def stacked_layers(model: ModelInfo) -> int:
    """How many layers, from the first on, have a part of an image's embeddings added (qwen3vl)."""
    found = dict(model.metadata).get(f"{model.architecture}.n_deepstack_layers")
    is_one = model.architecture in _STACKED and isinstance(found, int)
    return min(max(int(found or 0), 0), model.n_layer) if is_one else 0


def end(model: ModelInfo, name: str, backend: int) -> Node | None:
    found = next((weight for weight in model.ends if weight.name == name), None)
    return head_weight(found, backend)


def draw_output(build: Builder, x: Node, out_ids: Node | None, *, output: int, last: int) -> None:
    model = build.model
    early = model.architecture == "gpt-oss"
    if out_ids is not None and early:
        x = get_rows(x, out_ids)
    x = like(build.norm_op, x)
    norm = end(model, "output_norm.weight", last) or end(model, "token_embd_norm.weight", last)
    if norm is not None:
        x = like("mul", x, norm)
    if model.is_encoder:
        draw_pooling(build, x)
        return
    x.is_output = True  # before rows are picked: the seed of a nextn head
    if out_ids is not None and not early:
        x = get_rows(x, out_ids)
        x.is_output = True
    normed = x
    table = end(model, "output.weight", output) or end(model, "token_embd.weight", output)
    if not (build.shape.embedding and model.architecture == "lfm2"):
        x = mul_mat(needed(table, "output"), x)
        if model.architecture in GRANITES:
            x = build.scaled(x, "logit_scale")
        elif model.architecture == "gemma2":
            for op in ("scale", "unary", "scale"):
                x = like(op, x)
        x.is_output = True
    build.expand(x)
    if model.pooling is not None:
        draw_pooling(build, normed)


def draw_pooling(build: Builder, x: Node) -> None:
    if not build.shape.embedding:
        return
    if build.model.pooling == "mean":
        mean = leaf_input(x.ne[1], build.n_seqs)
        x = mul_mat(cont(transpose(x)), mean)
    elif build.model.pooling in ("cls", "last", "rank"):
        x = get_rows(x, build.ids(build.n_seqs))
    x.is_output = True
    build.expand(x)
