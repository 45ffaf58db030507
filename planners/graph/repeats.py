"""Layers that are like one already drawn: a copy of its nodes costs a third of drawing them.

The order of nodes is that of a graph with every layer drawn. A layer ends in nodes that enter the
graph only as the next one asks for them; one with a state has its cache cleared before it does.
"""

from collections.abc import Callable, Collection, Hashable
from itertools import chain

from planners.graph.blocks import Placed
from planners.graph.tensors import Graph, Node, Piece, Run, again

_NOTHING = Run((), ())


class Repeats:
    """The layers of one graph in the making, each kind of them drawn once or twice."""

    def __init__(self, graph: Graph, *, asks_first: bool, shared: Collection[Node] = ()) -> None:
        """`asks_first`: each layer begins by asking for what comes to it, as most do.

        `shared`: what layers have in common beside inputs.
        """
        self._graph, self._asks_first, self._shared = graph, asks_first, frozenset(shared)
        self._known: dict[Hashable, tuple[Piece, Placed]] = {}
        self._waiting: tuple[Node, Run] | None = None
        """What the last layer ended in, and what asking for that adds."""

    def layer(self, at: Placed, x: Node, draw: Callable[[Placed, Node], Node]) -> Node:
        """What the layer makes of `x`: drawn by `draw`, or copied."""
        if self._asks_first:
            self._ask_for(x)
        key = _key(at)
        if (known := self._known.get(key)) is None:
            return self._drawn(key, at, x, draw)
        piece, first = known
        copy = again(piece, x, _moved(first, at))
        rest = copy.rest
        if copy.waits:
            rest = _joined(copy.own, self._pending(x), rest)
        else:
            self._graph.add(copy.early)
            self._ask_for(x)
            self._graph.add(copy.own)
        self._waiting = copy.end, rest
        return copy.end

    def _ask_for(self, x: Node) -> None:
        """As `Graph.expand`; of a layer's end it is known what that adds."""
        if self._waiting is not None and self._waiting[0] is x:
            self._graph.add(self._waiting[1])
        else:
            self._graph.expand(x)
        self._waiting = None

    def _pending(self, x: Node) -> Run:
        if self._waiting is not None and self._waiting[0] is x:
            return self._waiting[1]
        return self._graph.pending(x)

    def _drawn(
        self, key: Hashable, at: Placed, x: Node, draw: Callable[[Placed, Node], Node]
    ) -> Node:
        graph, before, mark = self._graph, self._pending(x), self._graph.mark()
        end = draw(at, x)
        waiting = graph.pending(end)
        self._waiting = end, waiting
        runs = _parted(before, graph.since(mark), waiting, self._asks_first)
        if runs is not None:
            early, own, rest = map(self._alone, runs)
            waits = bool(before.nodes) and graph.mark() == mark
            self._known[key] = Piece(x, end, early, own, rest, waits=waits), at
        return end

    def _alone(self, run: Run) -> Run:
        """The run without inputs and what else repetitions share."""
        nodes = tuple(node for node in run.nodes if node not in self._shared)
        return Run(nodes, tuple(leaf for leaf in run.leafs if not leaf.is_input))


def _parted(before: Run, added: Run, waiting: Run, asks_first: bool) -> tuple[Run, Run, Run] | None:
    """What a layer adds before what comes to it, after that, and only as the next one asks.

    None where it cannot be told, as what comes to the layer was in the graph already.
    """
    if asks_first:
        return _NOTHING, added, waiting
    if not before.nodes:
        return None
    if not added.nodes:  # a network alone asks for nothing
        return _NOTHING, *_around(before, waiting)
    return *_around(before, added), waiting


def _around(between: Run, run: Run) -> tuple[Run, Run]:
    """What is in a run before and after another one in its midst."""
    n, m = len(between.nodes), len(between.leafs)
    i = run.nodes.index(between.nodes[0])
    j = run.leafs.index(between.leafs[0]) if m else 0
    return Run(run.nodes[:i], run.leafs[:j]), Run(run.nodes[i + n :], run.leafs[j + m :])


def _joined(*runs: Run) -> Run:
    nodes = chain.from_iterable(run.nodes for run in runs)
    return Run(tuple(nodes), tuple(chain.from_iterable(run.leafs for run in runs)))


def _key(at: Placed) -> Hashable:
    """Equal for layers with the same graph but for the numbers of their backends."""
    lies_together = at.kv_backend == at.backend and not at.on_host
    place = None if lies_together else (at.backend == at.host, at.kv_backend == at.host)
    return id(at.layer), at.on_host, at.is_pinned, at.is_odd, place


def _moved(first: Placed, at: Placed) -> dict[int, int]:
    """Each backend of a layer drawn, and the one in its place in a copy; -1 is none yet."""
    moved = {-1: -1, first.host: at.host, first.kv_backend: at.kv_backend}
    return moved | {first.backend: at.backend}
