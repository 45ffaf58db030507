"""Layers that are played: the bytes are those of the same graph with each of its layers copied."""

from collections.abc import Sequence
from random import Random

import pytest

from bench.planner.shapes import ARCHITECTURES, OTHERS, random_model
from planners.graph.allocation import ENDLESS, reserved_bytes
from planners.graph.architectures import draw
from planners.graph.blocks import Builder, Placed
from planners.graph.kv_cache import LaunchShape
from planners.graph.recording import Player, Recordings
from planners.graph.reorder import Orders, reordered_around_played
from planners.graph.schedule import Backends, leafs, ordered, split
from planners.graph.tensors import Graph, Node, Played, Runs
from planners.model import LayerKind, ModelInfo
from tests.fakes.recipes import BERTS
from tests.fakes.tiny_models import info_of, tiny_models

N_DEVICES = HOST = 3
MODELS = {model.name: info_of(model) for model in tiny_models()}
KINDS = [kind for kind in (*ARCHITECTURES, *OTHERS) if kind not in BERTS]
SHAPE = LaunchShape(n_ctx=1024, n_parallel=2, n_batch=64, n_ubatch=64)
ALONE = LaunchShape(n_ctx=1024, n_parallel=1, n_batch=64, n_ubatch=64)


def backends(*, n_copies: int, unsupported: str = "") -> Backends:
    def supports(backend: int, node: Node) -> bool:
        return backend == HOST or node.op != unsupported

    return Backends(HOST + 1, (True,) * N_DEVICES + (False,), supports, n_copies)


def drawn(
    model: ModelInfo,
    shape: LaunchShape,
    layers: Sequence[Placed],
    *,
    on: Backends,
    plays: bool,
    reorders: bool = False,
) -> Graph:
    known: dict[int, Runs] = {}

    def runs_on(backend: int) -> Runs | None:
        if backend == HOST:
            return None
        return known.setdefault(0, lambda node: on.supports(0, node))

    player = Player(runs_on, lambda _: reorders, on.n_copies > 1, Recordings())
    build = Builder(
        model, shape, n=shape.n_ubatch, n_seqs=shape.n_parallel, n_outputs=1, host=HOST,
        player=player if plays else None,
    )  # fmt: skip
    last = layers[-1].backend
    draw(build, layers, output=last, last=last, host=HOST)
    return build.graph


def reserved(graph: Graph, on: Backends) -> tuple[int, ...]:
    runs = split(graph, on)
    return reserved_bytes(ordered(runs), leafs(runs, graph), chunk_bytes=[ENDLESS] * on.count)


def reserved_reordered(graph: Graph, on: Backends) -> tuple[int, ...] | None:
    """In buffers of 1 MiB and in the backend's order; None where what is played mingles."""
    runs, known = split(graph, on), Orders()
    for run in runs:
        if run.backend < HOST:
            nodes = reordered_around_played(run.nodes, known)
            if nodes is None:
                return None
            run.nodes = nodes
    sizes = [1 << 20] * N_DEVICES + [ENDLESS]
    return reserved_bytes(ordered(runs), leafs(runs, graph), chunk_bytes=sizes)


def n_played(graph: Graph) -> int:
    return sum(isinstance(node, Played) for node in graph.nodes)


def in_blocks(
    model: ModelInfo, rng: Random, *, n: int, first: int, leaves: frozenset[str], pinned: bool
) -> list[Placed]:
    """`n` layers of the model, in turn, on each backend from `first` on after the one before."""
    cuts = sorted(rng.randint(0, n) for _ in range(N_DEVICES - 1))
    return [
        Placed(layer, backend, backend, HOST, leaves if i < n // 3 else frozenset(), pinned)
        for i in range(n)
        for layer in [model.layers[i % model.n_layer]]
        for backend in [HOST if i < first else sum(i >= cut for cut in cuts)]
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_played_layers_take_what_copied_ones_take(kind: str) -> None:
    rng, seen = Random(f"played or copied, {kind}"), 0

    for _ in range(8):
        model = info_of(random_model(rng, kind, name=kind))
        first = rng.choice((0, 0, 5))
        layers = in_blocks(
            model, rng, n=24, first=first, pinned=first == 0,
            leaves=frozenset(rng.choice(((), (), (), ("ffn_down.weight",)))),
        )  # fmt: skip
        shape = SHAPE if rng.random() < 0.6 else LaunchShape(2048, 1, 64, 64, flash_attn=False)
        on = backends(
            n_copies=rng.choice((1, 4)) if first == 0 else 1,
            unsupported=rng.choice(("", "", "", "flash_attn", "glu", "ssm_conv")),
        )
        played = drawn(model, shape, layers, on=on, plays=True)
        seen += n_played(played)

        assert reserved(played, on) == reserved(drawn(model, shape, layers, on=on, plays=False), on)

    assert seen


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_are_played_in_a_backends_order_take_what_copied_ones_take(kind: str) -> None:
    rng = Random(f"in another order, {kind}")

    for _ in range(8):
        model = info_of(random_model(rng, kind, name=kind))
        first = rng.choice((0, 0, 5))
        layers = in_blocks(model, rng, n=24, first=first, pinned=True, leaves=frozenset())
        shape = ALONE if rng.random() < 0.6 else LaunchShape(2048, 2, 64, 64, flash_attn=False)
        on = backends(
            n_copies=rng.choice((1, 4)) if first == 0 else 1,
            unsupported=rng.choice(("", "", "", "glu", "ssm_conv")),
        )
        played = drawn(model, shape, layers, on=on, plays=True, reorders=True)
        copied = drawn(model, shape, layers, on=on, plays=False)

        assert reserved_reordered(played, on) in (None, reserved_reordered(copied, on))


@pytest.mark.parametrize("name", ["dense", "windows-6", "sinks", "experts", "latent"])
def test_layers_that_are_done_before_the_next_begin_are_played_in_a_backends_order(
    name: str,
) -> None:
    model, on = MODELS[name], backends(n_copies=1)
    layers = [Placed(x, 0, 0, HOST, frozenset(), is_pinned=True) for x in model.layers * 6]

    played = drawn(model, ALONE, layers, on=on, plays=True, reorders=True)

    assert n_played(played) > len(layers) // 2
    copied = drawn(model, ALONE, layers, on=on, plays=False)
    assert reserved_reordered(played, on) == reserved_reordered(copied, on)


@pytest.mark.parametrize("name", ["state-2", "delta-next"])
def test_layers_whose_states_are_read_before_their_turn_are_copied(name: str) -> None:
    layer = next(x for x in MODELS[name].layers if x.kind is LayerKind.RECURRENT)
    at = Placed(layer, 0, 0, HOST, frozenset(), is_pinned=True)

    graph = drawn(MODELS[name], SHAPE, [at] * 9, on=backends(n_copies=1), plays=True, reorders=True)

    assert not n_played(graph)


@pytest.mark.parametrize(("name", "drawn_last"), [("dense", 1), ("delta-next", 0)])
def test_a_layer_behind_its_like_is_one_node(name: str, drawn_last: int) -> None:
    model = MODELS[name]
    at = Placed(model.layers[-1], 0, 0, HOST, frozenset(), is_pinned=True)

    graph = drawn(model, SHAPE, [at] * 9, on=backends(n_copies=1), plays=True)

    assert n_played(graph) == 8 - drawn_last  # where the last has rows picked in its midst


def test_a_layer_that_something_else_begins_is_copied_where_it_comes_to_a_device() -> None:
    model = MODELS["dense"]
    layers = [
        Placed(model.layers[0], i // 4, i // 4, HOST, frozenset(), is_pinned=False)
        for i in range(12)
    ]

    graph = drawn(model, SHAPE, layers, on=backends(n_copies=1), plays=True)

    assert n_played(graph) == 3 + 3 + 2


@pytest.mark.parametrize("op", ["mul_mat", "glu", "add"])
def test_a_layer_of_which_some_runs_elsewhere_is_copied(op: str) -> None:
    model = MODELS["dense"]
    at = Placed(model.layers[0], 0, 0, HOST, frozenset(), is_pinned=True)

    graph = drawn(model, SHAPE, [at] * 6, on=backends(n_copies=1, unsupported=op), plays=True)

    assert not n_played(graph)


def test_a_layer_with_weights_or_a_cache_on_the_host_is_copied() -> None:
    model = MODELS["dense"]
    left = Placed(model.layers[0], 0, 0, HOST, frozenset({"ffn_down.weight"}), is_pinned=True)
    far = Placed(model.layers[0], 0, HOST, HOST, frozenset(), is_pinned=True)

    for at in (left, far):
        graph = drawn(model, SHAPE, [at] * 6, on=backends(n_copies=1), plays=True)

        assert not n_played(graph)


def test_layers_that_mingle_with_the_next_are_played_among_their_like_alone() -> None:
    model = MODELS["state-2"]
    assert {layer.kind for layer in model.layers} == {LayerKind.RECURRENT}
    layers = [
        Placed(model.layers[0], i // 5, i // 5, HOST, frozenset(), is_pinned=True)
        for i in range(10)
    ]

    graph = drawn(model, SHAPE, layers, on=backends(n_copies=1), plays=True)

    # In three parts each, but for the first two, and those beside another device.
    assert n_played(graph) == 3 * (2 + 3)
