from hypothesis import given
from hypothesis import strategies as st

from planners.graph.allocation import ALIGNMENT, ENDLESS, most_bytes, reserved_bytes
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

KB = 1024


def weight(*shape: int) -> Node:
    node = tensor("", full(*shape))
    node.is_weight, node.buffer, node.backend = True, 0, 0
    return node


def of(n_elements: int) -> Node:
    return tensor("op", full(n_elements))


def reserve(*results: Node, chunk_bytes: int = ENDLESS) -> int:
    graph = Graph()
    for node in results:
        graph.expand(node)
    for node in (*graph.nodes, *graph.leafs):
        node.backend = 0
    (most,) = reserved_bytes(graph.nodes, graph.leafs, chunk_bytes=[chunk_bytes])
    return most


def test_a_chain_needs_two_results_at_a_time() -> None:
    x = of(KB)
    for _ in range(10):
        x = tensor("op", x.ne, src=(x,))

    assert reserve(x) == 2 * 4 * KB


def test_an_operation_in_place_needs_no_room() -> None:
    x = of(KB)
    for _ in range(10):
        x = like("scale", x)

    assert reserve(x) == 4 * KB


def test_a_parent_with_another_reader_is_not_overwritten() -> None:
    x = of(KB)
    scaled = like("scale", x)

    assert reserve(like("add", scaled, x)) == 2 * 4 * KB


def test_a_view_keeps_its_owner_alive() -> None:
    x = of(KB)
    part = view(x, KB // 2)
    other = tensor("op", full(KB), src=(of(KB),))

    assert reserve(other, tensor("op", full(1), src=(part, other))) > 2 * 4 * KB


def test_weights_take_no_room() -> None:
    assert reserve(mul_mat(weight(KB, 8), of(KB))) == 4 * KB + ALIGNMENT


def test_a_freed_block_is_taken_again_when_it_fits_best() -> None:
    small, large = of(KB), of(4 * KB)
    both = tensor("op", full(1), src=(small, large))
    again = tensor("op", full(KB), src=(both,))

    assert reserve(again) <= (4 + 16) * KB + ALIGNMENT


def test_an_output_is_never_given_back() -> None:
    x = of(KB)
    x.is_output = True
    chain = tensor("op", x.ne, src=(tensor("op", x.ne, src=(x,)),))

    assert reserve(chain) == 3 * 4 * KB


def test_results_without_elements_are_allocated_and_freed_like_others() -> None:
    empty = tensor("op", full(0))
    used = tensor("op", full(KB), src=(empty,))

    assert reserve(used) == 4 * KB


def test_a_result_larger_than_a_buffer_may_be_has_one_of_its_own() -> None:
    wide = tensor("op", full(4 * KB), src=(of(KB),))

    assert reserve(wide, chunk_bytes=8 * KB) == 4 * KB + 4 * 4 * KB


def test_a_large_result_needs_a_new_buffer_where_a_small_one_lies_in_the_last_ones() -> None:
    def graph() -> Node:
        x = of(KB)
        small = tensor("op", full(8), src=(tensor("op", full(4 * KB), src=(x,)),))
        kept = tensor("op", full(KB), src=(small,))
        large = tensor("op", full(4 * KB), src=(kept, x))
        return tensor("op", full(8), src=(large, kept))

    large_bytes = 4 * 4 * KB

    assert reserve(graph()) < 1.7 * large_bytes
    assert reserve(graph(), chunk_bytes=8 * KB) > 2 * large_bytes


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    made = [leaf_input(8, 8)]
    for _ in range(draw(st.integers(1, 40))):
        sources = draw(st.lists(st.sampled_from(made), min_size=1, max_size=2))
        match draw(st.sampled_from(("view", "reshape", "add", "other"))):
            case "view":
                made.append(view(sources[0], 4))
            case "reshape":
                made.append(reshape(sources[0], *sources[0].ne))
            case "add":
                made.append(like("add", *sources))
            case _:
                size = draw(st.integers(0, 4 * KB))
                made.append(tensor("op", full(size), src=tuple(sources)))
    graph = Graph()
    for node in made:
        graph.expand(node)
    for node in (*graph.leafs, *graph.nodes):
        node.backend = draw(st.integers(0, 2))
    return graph


@given(graphs(), st.sampled_from((ENDLESS, 8 * KB, 64 * KB)))
def test_no_graph_reserves_more_than_the_most_that_it_could(graph: Graph, chunk_bytes: int) -> None:
    most = most_bytes(graph.nodes, graph.leafs, n_backends=3)

    reserved = reserved_bytes(graph.nodes, graph.leafs, chunk_bytes=[chunk_bytes] * 3)

    assert all(size <= limit for size, limit in zip(reserved, most, strict=True))
    assert sum(most) > 0
