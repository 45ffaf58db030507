"""Layers that are like one already drawn: a copy of its nodes costs a third of drawing them.

Only where the first that each layer adds to the graph is what comes to it, so that the order of
nodes stays the same: models without states, and delta nets.
"""

from collections.abc import Callable, Collection, Hashable

from planners.graph.blocks import Placed
from planners.graph.tensors import Graph, Node, Piece


class Repeats:
    """The layers of one graph in the making, each kind of them drawn once."""

    def __init__(self, graph: Graph, *, shared: Collection[Node] = ()) -> None:
        """`shared`: what layers have in common beside inputs."""
        self._graph, self._shared = graph, shared
        self._known: dict[Hashable, tuple[Piece, Placed]] = {}

    def layer(self, at: Placed, x: Node, draw: Callable[[Placed, Node], Node]) -> Node:
        """What the layer makes of `x`: drawn by `draw`, or copied."""
        self._graph.expand(x)
        key = _key(at)
        if (known := self._known.get(key)) is not None:
            piece, first = known
            return self._graph.repeat(piece, x, _moved(first, at))
        mark = self._graph.mark()
        end = draw(at, x)
        self._graph.expand(end)
        self._known[key] = self._graph.piece(x, end, since=mark, without=self._shared), at
        return end


def _key(at: Placed) -> Hashable:
    """Equal for layers with the same graph but for the numbers of their backends."""
    lies_together = at.kv_backend == at.backend and not at.on_host
    place = None if lies_together else (at.backend == at.host, at.kv_backend == at.host)
    return id(at.layer), at.on_host, at.is_pinned, at.is_odd, place


def _moved(first: Placed, at: Placed) -> dict[int, int]:
    """Each backend of a layer drawn, and the one in its place in a copy; -1 is none yet."""
    moved = {-1: -1, first.host: at.host, first.kv_backend: at.kv_backend}
    return moved | {first.backend: at.backend}
