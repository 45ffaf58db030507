"""ggml-backend's scheduler in outline: which backend runs a node, what is copied where (b11434).

Backends are numbered in order of preference; the host's is the last. Weights and caches lie where
they were loaded; all else follows them (ggml-backend.cpp, ggml_backend_sched_split_graph).
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field

from planners.graph.tensors import VIEW_OPS, Graph, Node, tensor

OFFLOAD_LEAST_BATCH = 32  # rows from which a device takes over products with the host's weights


class Backends(Struct, frozen=True):
    """What the backends can do."""

    count: int
    offloads: tuple[bool, ...]
    """Per backend: whether it takes over large products with weights in host memory."""
    supports: Callable[[int, Node], bool]
    n_copies: int = 1
    """How many batches are under way at once: inputs and what is copied are held so often."""

    @property
    def host(self) -> int:
        """The host's, which is always the last."""
        return self.count - 1


class Split(Struct):
    """A run of nodes on one backend, and what is copied to it first."""

    backend: int
    nodes: list[Node]
    inputs: list[tuple[Node, Node]]
    """Pairs of a tensor and its copy."""
    held: list[Node] = field(default_factory=list)
    """What batches under way at once hold side by side: placed first, and never freed."""


def split(graph: Graph, backends: Backends) -> list[Split]:
    """Every node on its backend, in runs; sources that lie elsewhere are replaced by copies."""
    working = [node for node in graph.nodes if node.op not in VIEW_OPS]
    _from_locations(graph, backends)
    for is_host_taken in (False, True):
        if any(node.backend < 0 for node in working):
            _expand(working, backends, is_host_taken=is_host_taken)
    for node in working:
        if node.backend < 0:
            node.backend = _best_supported(node, backends)
    _follow_sources(graph, backends)
    inputs = _inputs(working) if backends.n_copies > 1 else []
    runs = _runs(graph.nodes)
    if backends.n_copies > 1:
        _hold(runs, inputs, n_copies=backends.n_copies)
    return runs


def _from_locations(graph: Graph, backends: Backends) -> None:
    """Pass 1: nodes that write into memory in place, or read weights."""
    for leaf in graph.leafs:
        if leaf.buffer is not None:
            leaf.backend = leaf.buffer
        elif leaf.is_input:
            leaf.backend = backends.host
    for node in graph.nodes:
        if node.backend < 0:
            owner = node.view_src
            if owner is not None and owner.buffer is not None:
                node.backend = owner.buffer
                continue
            for source in node.src:
                if source.is_weight:
                    node.backend = _beside(source, node, backends)
                    break


def _beside(weight: Node, node: Node, backends: Backends) -> int:
    """Where a node that reads a weight runs, as far as that decides it."""
    if weight.buffer is None or node.op in ("rope", "flash_attn"):
        return -1
    if weight.buffer == backends.host and _batch(node) >= OFFLOAD_LEAST_BATCH:
        for b in range(backends.host):
            if backends.offloads[b] and backends.supports(b, node):
                return b
    return weight.buffer if backends.supports(weight.buffer, node) else -1


def _batch(node: Node) -> int:
    """Rows that a product works on (ggml_vk_get_op_batch_size and its CUDA twin)."""
    match node.op:
        case "get_rows":
            return 0
        case "mul_mat" | "mul_mat_inplace":
            return node.ne[1]
        case "mul_mat_id" | "rope":
            return node.ne[2]
        case _:
            return node.ne[1] * node.ne[2] * node.ne[3]


def _expand(nodes: Sequence[Node], backends: Backends, *, is_host_taken: bool) -> None:
    """Pass 2: neighbours of assigned nodes follow them, downwards first."""
    passed_by = -1 if is_host_taken else backends.host
    left: list[int] = []
    current = -1
    for i, node in enumerate(nodes):
        if node.backend >= 0:
            current = -1 if node.backend == passed_by else node.backend
        elif current >= 0 and backends.supports(current, node):
            node.backend = current
        else:
            left.append(i)
    current = -1
    for i in reversed(left):  # upwards only what comes after each of these matters
        after = nodes[i + 1].backend if i + 1 < len(nodes) else -1
        if after >= 0:
            current = -1 if after == passed_by else after
        if current >= 0 and backends.supports(current, nodes[i]):
            nodes[i].backend = current


def _best_supported(node: Node, backends: Backends) -> int:
    """Pass 3: where most of its sources can be read."""
    able = [b for b in range(backends.count) if backends.supports(b, node)]
    return max(able, key=lambda b: (sum(_home(s) == b for s in node.src), -b))


def _home(node: Node) -> int:
    """The backend in whose memory a tensor lies or will lie."""
    owner = node.view_src or node
    if owner.buffer is not None:
        return owner.buffer
    return node.backend if node.backend >= 0 else owner.backend


def _follow_sources(graph: Graph, backends: Backends) -> None:
    """Pass 4: what is left follows what it views, or who uses it."""
    is_open = any(leaf.backend < 0 for leaf in graph.leafs)  # nodes come after their sources
    for node in graph.nodes if is_open else [x for x in graph.nodes if x.backend < 0]:
        if node.backend < 0:
            node.backend = node.view_src.backend if node.view_src else backends.host
        for source in node.src if is_open else ():
            if source.backend < 0:
                source.backend = source.view_src.backend if source.view_src else node.backend


def _runs(nodes: Sequence[Node]) -> list[Split]:
    """Pass 5: runs of one backend; a borrowed weight opens a new one, so that the last is freed."""
    first = next((node.backend for node in nodes if node.op not in VIEW_OPS), 0)
    run = Split(first, [], [])
    runs = [run]
    copies: dict[tuple[int, int], Node] = {}
    for node in nodes:
        if node.op not in VIEW_OPS:
            here = node.backend
            # By now all lie where their backend is: what views memory has that of its owner.
            away: list[tuple[int, Node]] = []
            for source in node.src:
                if source.backend != here:
                    away = [(j, x) for j, x in enumerate(node.src) if x.backend != here]
                    break
            borrows = away and run.inputs and any(source.is_weight for _, source in away)
            if here != run.backend or borrows:
                run = Split(here, [], [])
                runs.append(run)
            if away:
                sources = [*node.src]
                for j, source in away:
                    sources[j] = _copied(source, run, copies)
                node.src = (*sources,)
        run.nodes.append(node)
    return runs


def _copied(source: Node, run: Split, copies: dict[tuple[int, int], Node]) -> Node:
    """The copy of `source` on that run's backend, made before the first run that needs it."""
    key = (id(source), run.backend)
    if (copy := copies.get(key)) is None:
        copy = copies[key] = tensor("", source.ne, size=source.size, nb=source.nb,
                                  n_bytes=source.n_bytes)  # fmt: skip
        copy.backend = run.backend
        run.inputs.append((source, copy))
    return copy


def _inputs(nodes: Iterable[Node]) -> list[Node]:
    """The graph's inputs in the order in which they are first read."""
    return [*dict.fromkeys(source for node in nodes for source in node.src if source.is_input)]


def _hold(runs: Sequence[Split], inputs: Sequence[Node], *, n_copies: int) -> None:
    """Have every input and every copy there once for each batch that is under way."""
    for node in (*inputs, *(copy for run in runs for _, copy in run.inputs)):
        others = [_another(node) for _ in range(n_copies - 1)]
        runs[0].held += [node, *others]
    for node in runs[0].held:
        node.is_input = node.is_output = True


def _another(node: Node) -> Node:
    """As large, on the same backend, and read by nobody."""
    other = tensor("", node.ne, size=node.size, nb=node.nb, n_bytes=node.n_bytes)
    other.backend = node.backend
    return other


def leafs(splits: Iterable[Split], graph: Graph) -> list[Node]:
    """All leafs for the allocator, in its order."""
    return [*(node for run in splits for node in run.held), *graph.leafs]


def ordered(splits: Iterable[Split]) -> list[Node]:
    """All nodes for the allocator, each split's copies before it."""
    nodes = []
    for run in splits:
        for source, copy in run.inputs:
            held = tensor("", source.ne, src=(source,), view_of=source)
            nodes += [held, copy]
        nodes += run.nodes
    return nodes
