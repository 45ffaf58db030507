"""A compute graph in outline: shapes, sources and views, no values. Mirrors ggml.c (b11434).

Only what decides where a node runs and how long its bytes live is kept. Built once, then annotated
in place by planners.graph.schedule and planners.graph.allocation: the one mutable value of
planners, never kept beyond one reservation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from planners.errors import PlanError

Shape = tuple[int, int, int, int]
Strides = tuple[float, float, float, float]

F32, F16, I32, I64 = 4, 2, 4, 8
VIEW_OPS = frozenset({"view", "reshape", "permute", "transpose"})


_NONE: Mapping[Any, Any] = MappingProxyType({})


class Undrawn(PlanError):
    """A model whose graph is another than its architecture's name lets expect."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"its compute graph cannot be drawn: {what}")


class Node(Struct, eq=False, gc=False):
    """One tensor of the graph: a leaf (`op` is "") or an operation's result; made by `tensor`.

    Nodes name their sources and never who reads them: nothing goes round in circles.
    """

    op: str
    ne: Shape
    nb: Strides
    size: float
    n_bytes: int
    src: tuple["Node", ...]
    view_src: "Node | None" = None
    buffer: int | None = None
    """The backend in whose memory it lies already; None where it is to be allocated."""
    backend: int = -1
    n_children: int = 0
    n_views: int = 0
    offset: int = 0
    is_owned: bool = False
    is_input: bool = False
    is_output: bool = False
    is_weight: bool = False
    like: int = 0
    """The same number for a node of a layer and for its copies; 0 for a node without copies."""


Runs = Callable[[Node], bool]
"""Whether a backend runs a node."""


class Part(Struct, frozen=True):
    """What the allocator does for a run of one layer's nodes, told once for all layers like it."""

    reads: tuple[int, ...]
    """What its nodes read from outside, in that order: 0 is what comes to the layer, others are
    what layers share, by number."""
    events: tuple[tuple[int, int], ...]
    """(n, size): `size` bytes are taken, and lie at the frame's place n; (n, ~size): these are
    given back; (~n, -1): the layer reads its source n no more."""
    shared: tuple[tuple[int, int], ...]
    """(n, count): source n is one that layers share, and read so often here."""
    start: int
    """Which of its sources is what comes to the layer; -1 where it does not read that."""
    is_whole: bool
    """Whether it is all of the layer, so that nothing else comes between."""


class Played(Node, kw_only=True):
    """A run of nodes of a layer that is like one drawn before, as one node."""

    part: Part
    frame: list[int]
    """Where the layer's results lie; at 0 what comes to it."""
    place: int
    """Of the layer's end in the frame."""


_twin: Callable[[Node], Node] = Node.__copy__  # type: ignore[attr-defined]  # every Struct's own


def tensor(
    op: str,
    ne: Shape,
    *,
    size: float = F32,
    nb: Strides | None = None,
    src: tuple[Node, ...] = (),
    view_of: Node | None = None,
    n_bytes: int | None = None,
) -> Node:
    """A node of that shape, contiguous unless strides are given."""
    owner = None if view_of is None else view_of.view_src or view_of
    if nb is None:
        a, b, c, d = ne
        row = a * size
        plane = row * b
        nb = (size, row, plane, plane * c)
        if n_bytes is None:
            n_bytes = int(plane * c * d)
    elif n_bytes is None:
        n_bytes = _span(ne, nb, size)
    return Node(op, ne, nb, size, n_bytes, src, owner)


def _span(ne: Shape, nb: Strides, size: float) -> int:
    """Bytes from the first element to the last (ggml_nbytes)."""
    if not all(ne):
        return 0
    (a, b, c, d), (first, second, third, fourth) = ne, nb
    return int(size + ((a - 1) * first + (b - 1) * second + (c - 1) * third + (d - 1) * fourth))


class Run(Struct, frozen=True):
    """Nodes in the order of execution, and the leafs that came with them."""

    nodes: tuple[Node, ...]
    leafs: tuple[Node, ...]


class Piece(Struct, frozen=True):
    """What a layer adds to a graph: `start` is what comes to it, `end` what it makes of that."""

    start: Node
    end: Node
    early: Run
    """Without need of `start`, so that it is there before what makes that."""
    own: Run
    rest: Run
    """What waits until `end` is asked for."""
    waits: bool = False
    """Whether `own`, too, waits, and with it what makes `start`: the layer asks for nothing."""


class Graph:
    """Nodes in the order of execution, as ggml_build_forward_expand leaves them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.leafs: list[Node] = []
        self._seen: set[Node] = set()

    def expand(self, node: Node) -> None:
        """Append what `node` needs and lacks, sources first, then itself."""
        self._walk(node, self.nodes, self.leafs)

    def pending(self, node: Node) -> Run:
        """What `expand` would append."""
        nodes: list[Node] = []
        leafs: list[Node] = []
        self._walk(node, nodes, leafs)
        self._seen.difference_update(nodes, leafs)
        return Run(tuple(nodes), tuple(leafs))

    def _walk(self, node: Node, nodes: list[Node], leafs: list[Node]) -> None:
        seen = self._seen
        if node in seen:
            return
        # An explicit stack: a graph of a hundred layers would exhaust Python's.
        stack = [(node, iter(node.src))]
        seen.add(node)
        while stack:
            here, sources = stack[-1]
            for source in sources:
                if source not in seen:
                    seen.add(source)
                    if source.src:
                        stack.append((source, iter(source.src)))
                        break
                    (nodes if source.op else leafs).append(source)
            else:
                stack.pop()
                (nodes if here.op else leafs).append(here)

    def mark(self) -> tuple[int, int]:
        """How far the graph has come: how many nodes and leafs it has."""
        return len(self.nodes), len(self.leafs)

    def since(self, mark: tuple[int, int]) -> Run:
        """What was added since that mark."""
        return Run(tuple(self.nodes[mark[0] :]), tuple(self.leafs[mark[1] :]))

    def add(self, run: Run) -> None:
        """Append a run of which nothing is in the graph, and of which it lacks nothing."""
        self.nodes += run.nodes
        self.leafs += run.leafs
        self._seen.update(run.nodes)
        self._seen.update(run.leafs)


def again(
    piece: Piece, start: Node, moved: Mapping[int, int], others: Mapping[Node, Node] = _NONE
) -> Piece:
    """The piece once more, from another start on. `moved`: its backends by the piece's own.

    `others`: what takes the place of nodes that it shares.
    """
    met = {piece.start: start, **others}
    runs = piece.early, piece.own, piece.rest
    # All leafs before any node: one may be in the graph only after the first that reads it is.
    leafs = [tuple(_leafs_again(run.leafs, met, moved)) for run in runs]
    nodes = [tuple(_nodes_again(run.nodes, met, moved)) for run in runs]
    early, own, rest = map(Run, nodes, leafs)
    return Piece(start, met[piece.end], early, own, rest, piece.waits)


def _nodes_again(
    nodes: Iterable[Node], met: dict[Node, Node], moved: Mapping[int, int]
) -> list[Node]:
    """The same operations anew: what they name in `met` is replaced, and backends as `moved` says.

    Of nodes that neither the scheduler nor the allocator has seen.
    """
    twin, lookup = _twin, met.get
    found = []
    for node in nodes:
        met[node] = new = twin(node)
        sources = node.src
        if len(sources) == 1:
            new.src = (lookup(sources[0], sources[0]),)
        else:
            new.src = tuple(map(lookup, sources, sources))
        if (owner := node.view_src) is not None:
            new.view_src = lookup(owner, owner)
        if (backend := node.backend) >= 0:
            new.backend = moved[backend]
        found.append(new)
    return found


def _leafs_again(
    leafs: Iterable[Node], met: dict[Node, Node], moved: Mapping[int, int]
) -> Iterator[Node]:
    """The same leafs anew, where `moved` says."""
    for leaf in leafs:
        met[leaf] = new = _twin(leaf)
        if leaf.buffer is not None:
            new.buffer = moved[leaf.buffer]
        if leaf.backend >= 0:
            new.backend = moved[leaf.backend]
        yield new


def full(*ne: int) -> Shape:
    """A shape of four dimensions."""
    a, b, c, d, *_ = (*ne, 1, 1, 1, 1)
    return (a, b, c, d)


def leaf_input(*ne: int, size: float = F32) -> Node:
    """An input, filled anew for every batch."""
    node = tensor("", full(*ne), size=size)
    node.is_input = True
    return node


def like(op: str, *src: Node) -> Node:
    """An operation whose result has the shape of its first source, contiguous."""
    return tensor(op, src[0].ne, size=src[0].size, src=src)


def mul_mat(a: Node, b: Node) -> Node:
    """[a.ne1, b.ne1, b.ne2, b.ne3], f32."""
    return tensor("mul_mat", (a.ne[1], b.ne[1], b.ne[2], b.ne[3]), src=(a, b))


def mul_mat_id(experts: Node, b: Node, ids: Node) -> Node:
    """Rows of the experts that `ids` names, for each of its columns."""
    return tensor("mul_mat_id", (experts.ne[1], ids.ne[0], b.ne[2], 1), src=(experts, b, ids))


def get_rows(a: Node, ids: Node) -> Node:
    """Rows of `a`, as f32."""
    return tensor("get_rows", (a.ne[0], ids.ne[0], ids.ne[1], ids.ne[2]), src=(a, ids))


def set_rows(cache: Node, rows: Node, ids: Node) -> Node:
    """Writes rows into a cache: a view of it."""
    return tensor("set_rows", cache.ne, size=cache.size, nb=cache.nb, src=(rows, ids, cache),
                view_of=cache, n_bytes=cache.n_bytes)  # fmt: skip


def view(a: Node, *ne: int, nb: Strides | None = None) -> Node:
    """A window into `a`, contiguous unless strides are given."""
    return tensor("view", full(*ne), size=a.size, nb=nb, src=(a,), view_of=a)


def reshape(a: Node, *ne: int) -> Node:
    """The same bytes in another shape."""
    return tensor("reshape", full(*ne), size=a.size, src=(a,), view_of=a, n_bytes=a.n_bytes)


def permute(a: Node, *axes: int) -> Node:
    """`a` with its dimension i moved to place axes[i]."""
    order = [axes.index(i) for i in range(4)]
    shape = full(*(a.ne[i] for i in order))
    steps = (a.nb[order[0]], a.nb[order[1]], a.nb[order[2]], a.nb[order[3]])
    return tensor("permute", shape, size=a.size, nb=steps, src=(a,), view_of=a, n_bytes=a.n_bytes)


def transpose(a: Node) -> Node:
    """`a` with its first two dimensions swapped."""
    ne = (a.ne[1], a.ne[0], a.ne[2], a.ne[3])
    nb = (a.nb[1], a.nb[0], a.nb[2], a.nb[3])
    return tensor("transpose", ne, size=a.size, nb=nb, src=(a,), view_of=a, n_bytes=a.n_bytes)


def cont(a: Node, *ne: int) -> Node:
    """A contiguous copy."""
    return tensor("cont", full(*ne) if ne else a.ne, size=a.size, src=(a,))


def copy_into(a: Node, target: Node) -> Node:
    """`a` written over `target`: a view of it."""
    return tensor("cpy", target.ne, size=target.size, nb=target.nb, src=(a, target), view_of=target,
                n_bytes=target.n_bytes)  # fmt: skip


def concat(a: Node, b: Node) -> Node:
    """Along the first dimension."""
    return tensor("concat", (a.ne[0] + b.ne[0], *a.ne[1:]), size=a.size, src=(a, b))


def needed(node: Node | None, what: str) -> Node:
    """`node`, which must be there. Raises Undrawn."""
    if node is None:
        raise Undrawn(f"{what} is missing")
    return node
