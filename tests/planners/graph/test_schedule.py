from msgspec.structs import replace

from planners.graph.schedule import OFFLOAD_LEAST_BATCH, Backends, Split, leafs, ordered, split
from planners.graph.tensors import Graph, Node, full, leaf_input, like, mul_mat, tensor

GPU, OTHER, HOST = 0, 1, 2


def backends(*, offloads: bool = True, unsupported: str = "") -> Backends:
    def supports(backend: int, node: Node) -> bool:
        return backend == HOST or node.op != unsupported

    return Backends(3, (offloads, False, False), supports)


def weight(backend: int) -> Node:
    node = tensor("", full(64, 64))
    node.is_weight, node.buffer = True, backend
    return node


def splits(*results: Node, on: Backends | None = None) -> list[Split]:
    graph = Graph()
    for node in results:
        graph.expand(node)
    return split(graph, on or backends())


def places(found: list[Split]) -> list[tuple[int, list[str]]]:
    return [(run.backend, [node.op for node in run.nodes]) for run in found]


def test_products_run_where_their_weights_lie_and_others_follow() -> None:
    x = like("scale", mul_mat(weight(GPU), leaf_input(64, 4)))

    assert places(splits(mul_mat(weight(OTHER), x))) == [
        (GPU, ["mul_mat", "scale"]),
        (OTHER, ["mul_mat"]),
    ]


def test_a_source_from_elsewhere_is_copied_once_per_backend() -> None:
    x = mul_mat(weight(GPU), leaf_input(64, 4))
    far = like("add", mul_mat(weight(OTHER), x), x)

    found = splits(far)

    assert [len(run.inputs) for run in found] == [1, 1]
    assert [node.op for node in ordered(found)] == ["", "", "mul_mat", "", "", "mul_mat", "add"]


def test_a_large_product_with_the_hosts_weights_borrows_the_device() -> None:
    large = mul_mat(weight(HOST), leaf_input(64, OFFLOAD_LEAST_BATCH))

    assert places(splits(large)) == [(GPU, ["mul_mat"])]


def test_a_small_one_stays() -> None:
    small = mul_mat(weight(HOST), leaf_input(64, OFFLOAD_LEAST_BATCH - 1))

    assert places(splits(small)) == [(HOST, ["mul_mat"])]


def test_nothing_is_borrowed_from_a_device_that_does_not_offload() -> None:
    large = mul_mat(weight(HOST), leaf_input(64, 512))

    assert places(splits(large, on=backends(offloads=False))) == [(HOST, ["mul_mat"])]


def test_every_borrowed_weight_opens_a_split_so_that_the_last_one_is_freed() -> None:
    x = mul_mat(weight(HOST), leaf_input(64, 512))

    assert len(splits(mul_mat(weight(HOST), x))) == 2


def test_an_operation_that_a_device_lacks_runs_on_the_host() -> None:
    x = mul_mat(weight(GPU), leaf_input(64, 4))
    scan = like("ssm_scan", x)

    found = splits(mul_mat(weight(GPU), scan), on=backends(unsupported="ssm_scan"))

    assert places(found) == [(GPU, ["mul_mat"]), (HOST, ["ssm_scan"]), (GPU, ["mul_mat"])]


def test_an_operation_that_its_weights_device_lacks_follows_its_sources() -> None:
    x = mul_mat(weight(OTHER), leaf_input(64, 4))
    odd = like("add", x, weight(GPU))
    graph = Graph()
    graph.expand(odd)

    def supports(backend: int, node: Node) -> bool:
        return backend != GPU or node.op != "add"

    found = split(graph, Backends(3, (True, False, False), supports))

    assert places(found) == [(OTHER, ["mul_mat"]), (OTHER, ["add"])]


def test_of_batches_under_way_at_once_each_has_inputs_and_copies_of_its_own() -> None:
    tokens = leaf_input(64, 4)
    x = mul_mat(weight(GPU), tokens)
    graph = Graph()
    graph.expand(mul_mat(weight(OTHER), x))

    found = split(graph, replace(backends(), n_copies=4))

    held = leafs(found, graph)[:-3]  # what the graph itself has: two weights and the input
    assert [node.backend for node in held] == [HOST] * 4 + [GPU] * 4 + [OTHER] * 4
    assert held[0] is tokens
    assert all(node.is_output for node in held)  # so that nothing takes their place


def test_one_batch_at_a_time_holds_nothing() -> None:
    graph = Graph()
    graph.expand(mul_mat(weight(GPU), leaf_input(64, 4)))

    assert leafs(split(graph, backends()), graph) == graph.leafs
