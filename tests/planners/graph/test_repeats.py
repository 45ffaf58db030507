from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.planner.shapes import ARCHITECTURES, OTHERS, random_model
from planners.ggml.layers import is_expert
from planners.graph.architectures import draw
from planners.graph.blocks import Builder, Placed
from planners.graph.kv_cache import LaunchShape
from planners.graph.tensors import Graph, Node
from planners.model import LayerInfo, ModelInfo
from tests.fakes.recipes import BERTS
from tests.fakes.tiny_models import info_of, tiny_models

HOST = 2
MODELS = {model.name: info_of(model) for model in tiny_models()}
COPIED = [name for name, info in MODELS.items() if info.is_causal]


def drawn(model: ModelInfo, shape: LaunchShape, layers: Sequence[Placed]) -> Graph:
    n = shape.n_ubatch
    build = Builder(model, shape, n=n, n_seqs=shape.n_parallel, n_outputs=1, host=HOST)
    draw(build, layers, output=0, last=0, host=HOST)
    return build.graph


def described(graph: Graph) -> list[object]:
    """All that a graph says, its nodes by number."""
    every: list[Node] = [*graph.leafs, *graph.nodes]
    number = {node: i for i, node in enumerate(every)}
    return [
        (
            node.op, node.ne, node.nb, node.size, node.n_bytes, node.buffer, node.backend,
            node.is_weight, node.is_input, node.is_output, node.is_owned, node.n_children,
            node.n_views, node.offset, [number[source] for source in node.src],
            None if node.view_src is None else number[node.view_src],
        )
        for node in every
    ]  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(data=st.data(), flash=st.booleans(), kv_on_host=st.booleans(), pinned=st.booleans())
def test_layers_that_are_copied_are_as_if_each_had_been_drawn(
    data: st.DataObject, flash: bool, kv_on_host: bool, pinned: bool
) -> None:
    model = MODELS[data.draw(st.sampled_from(COPIED))]
    shape = LaunchShape(
        n_ctx=1024, n_parallel=2, n_batch=64, n_ubatch=64, flash_attn=flash, kv_on_host=kv_on_host,
        type_k=data.draw(st.sampled_from(("f16", "q8_0"))),
    )  # fmt: skip
    backends = data.draw(st.lists(st.integers(0, HOST), min_size=8, max_size=8))

    def placed(layer: LayerInfo, backend: int, *, leaves_some: bool) -> Placed:
        names = frozenset(weight.name for weight in layer.weights[::3] if leaves_some)
        return Placed(layer, backend, HOST if kv_on_host else backend, HOST, names, pinned)

    kinds = [data.draw(st.sampled_from(model.layers)) for _ in backends]
    leave = [data.draw(st.booleans()) for _ in backends]
    layers = [
        placed(layer, backend, leaves_some=some)
        for layer, backend, some in zip(kinds, backends, leave, strict=True)
    ]
    unlike = [replace(at, layer=replace(at.layer)) for at in layers]  # equal, but other objects

    assert described(drawn(model, shape, layers)) == described(drawn(model, shape, unlike))


@pytest.mark.parametrize("name", COPIED)
def test_a_layer_met_again_is_not_drawn_again(name: str) -> None:
    model = MODELS[name]
    shape = LaunchShape(n_ctx=1024, n_parallel=1, n_batch=64, n_ubatch=64)
    at = Placed(model.layers[-1], 0, 0, HOST, frozenset(), is_pinned=True)

    graph = drawn(model, shape, [at] * 4)  # the first two and the last are always drawn

    weights = [leaf for leaf in graph.leafs if leaf.is_weight]
    assert len({id(leaf.ne) for leaf in weights}) < len(weights)  # copies share what says no more


@pytest.mark.parametrize("kind", [kind for kind in (*ARCHITECTURES, *OTHERS) if kind not in BERTS])
def test_of_random_models_copied_layers_are_as_if_each_had_been_drawn(kind: str) -> None:
    rng = Random(f"copied or drawn, {kind}")

    for model in (info_of(random_model(rng, kind, name=kind)) for _ in range(4)):
        shape = LaunchShape(
            n_ctx=1024, n_parallel=2, n_batch=64, n_ubatch=64, flash_attn=rng.random() < 0.5
        )
        experts = frozenset(
            w.name for layer in model.layers for w in layer.weights if is_expert(w.name)
        )
        leaves_experts, backend = rng.random() < 0.5, 0
        layers = []
        for layer in model.layers:
            backend = min(HOST, backend + (rng.random() < 0.3))
            left = experts if leaves_experts else frozenset()
            layers.append(Placed(layer, backend, backend, HOST, left, is_pinned=True))
        unlike = [replace(at, layer=replace(at.layer)) for at in layers]  # equal, other objects

        assert described(drawn(model, shape, layers)) == described(drawn(model, shape, unlike))
