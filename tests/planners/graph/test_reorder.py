import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.graph.architectures import draw
from planners.graph.blocks import Builder, Placed
from planners.graph.kv_cache import LaunchShape
from planners.graph.reorder import Orders, ordered_alone, reordered
from planners.graph.tensors import (
    Graph,
    Node,
    full,
    leaf_input,
    like,
    mul_mat,
    reshape,
    tensor,
    view,
)
from planners.model import ModelInfo
from tests.fakes.plain_order import plainly_reordered
from tests.fakes.tiny_models import info_of, tiny_models

MODELS = {model.name: info_of(model) for model in tiny_models()}
OPS = ("mul_mat", "add", "rms_norm", "mul", "unary", "rope", "glu", "cont")


def weight() -> Node:
    node = tensor("", full(8, 8))
    node.is_weight, node.buffer = True, 0
    return node


def nodes(*results: Node) -> list[Node]:
    graph = Graph()
    for node in results:
        graph.expand(node)
    return graph.nodes


def ops(found: list[Node]) -> list[str]:
    return [node.op for node in found]


def test_independent_products_come_side_by_side() -> None:
    x = like("rms_norm", leaf_input(8, 8))
    left, right = like("rope", mul_mat(weight(), x)), like("rope", mul_mat(weight(), x))

    found = reordered(nodes(like("add", left, right)))

    assert ops(found) == ["rms_norm", "mul_mat", "mul_mat", "rope", "rope", "add"]


def test_a_norm_keeps_its_weight_behind_it() -> None:
    x = leaf_input(8, 8)
    one = like("mul", like("rms_norm", x), weight())
    other = like("mul", like("rms_norm", x), weight())

    assert ops(reordered(nodes(like("add", one, other))))[:2] == ["rms_norm", "mul"]


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    made = [leaf_input(8, 8)]
    for _ in range(draw(st.integers(1, 40))):
        sources = draw(st.lists(st.sampled_from(made), min_size=1, max_size=2))
        op = draw(st.sampled_from((*OPS, "view", "reshape")))
        match op:
            case "view":
                made.append(view(sources[0], 4, 8))
            case "reshape":
                made.append(reshape(sources[0], *sources[0].ne))
            case "rope":  # of some rows, by their positions
                made.append(like(op, sources[0], sources[-1]))
            case _:
                made.append(like(op, *sources))
    return nodes(*made)


@given(graphs())
def test_every_node_comes_once_and_after_its_sources(before: list[Node]) -> None:
    after = reordered(before)

    assert sorted(map(id, after)) == sorted(map(id, before))
    place = {id(node): i for i, node in enumerate(after)}
    assert all(place.get(id(s), -1) < place[id(node)] for node in after for s in node.src)


@given(graphs())
def test_the_order_is_that_of_the_engines_own_loops(before: list[Node]) -> None:
    assert reordered(before) == plainly_reordered(before)


@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_is_ordered_as_by_the_engines_own_loops(name: str, n: int) -> None:
    before = drawn(MODELS[name], n)

    assert reordered(before) == plainly_reordered(before)


@pytest.mark.parametrize("name", MODELS)
def test_runs_of_like_layers_are_each_ordered_as_by_the_engines_own_loops(name: str) -> None:
    known: Orders = {}
    every = drawn(MODELS[name], 64, times=3)

    for size in (5, 12, 32, 70, 150, len(every)):
        for start in range(0, len(every), size):
            before = every[start : start + size]

            assert reordered(before, known) == plainly_reordered(before)


def test_a_run_like_one_before_is_not_put_in_order_again() -> None:
    known: Orders = {}
    every = drawn(MODELS["dense"], 64, times=8)
    numbers = [i for i, node in enumerate(every) if node.like == every[10].like]
    assert len(numbers) > 2

    for i in numbers:
        reordered(every[i : i + 12], known)

    assert len(known) == 1


def test_of_a_long_run_each_kind_of_layer_among_its_like_is_put_in_order_once() -> None:
    known: Orders = {}
    every = drawn(MODELS["delta-next"], 64, times=2)

    reordered(every, known)
    n_known = len(known)
    longer = drawn(MODELS["delta-next"], 64, times=6)

    assert reordered(longer, known) == plainly_reordered(longer)
    assert len(known) == n_known


def norm_of(start: Node) -> Node:
    return like("mul", like("rms_norm", start), weight())


def test_a_layer_that_ends_with_all_of_it_done_stands_alone() -> None:
    start = leaf_input(8, 8)
    layer = nodes(like("add", mul_mat(weight(), norm_of(start)), start))

    found = ordered_alone(layer, start)

    assert found is not None
    assert ops(found) == ["rms_norm", "mul", "mul_mat", "add"]


@pytest.mark.parametrize(
    "early",
    [
        like("get_rows", weight(), leaf_input(8)),
        like("cont", weight()),
        view(weight(), 4, 8),
    ],
    ids=["rows of a state", "a copy", "a view of a cache"],
)
def test_a_layer_of_which_some_can_run_before_what_comes_to_it_does_not(early: Node) -> None:
    start = leaf_input(8, 8)
    layer = nodes(like("add", mul_mat(like("cont", early), norm_of(start)), start))

    assert ordered_alone(layer, start) is None


def test_a_layer_whose_end_does_not_wait_for_all_of_it_does_not() -> None:
    start = leaf_input(8, 8)
    normed = norm_of(start)
    waiting = like("cont", like("glu", like("cont", mul_mat(weight(), normed))))
    layer = nodes(waiting, like("add", mul_mat(weight(), normed), start))
    assert layer[-1].op == "add"

    assert ordered_alone(layer, start) is None


def drawn(model: ModelInfo, n: int, *, times: int = 1) -> list[Node]:
    shape = LaunchShape(n_ctx=1024, n_parallel=1, n_batch=n, n_ubatch=n)
    build = Builder(model, shape, n=n, n_seqs=1, n_outputs=1, host=1)
    layers = [Placed(x, 0, 0, 1, frozenset(), is_pinned=True) for x in model.layers * times]
    draw(build, layers, output=0, last=0, host=1)
    return build.graph.nodes
