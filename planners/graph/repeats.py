"""Layers that are like one already drawn: a copy of its nodes costs a third of drawing them.

The order of nodes is that of a graph with every layer drawn. A layer ends in nodes that enter the
graph only as the next one asks for them; one with a state has its cache cleared before it does.
"""

from collections.abc import Callable, Collection, Hashable
from itertools import chain, count

from planners.graph.blocks import Placed
from planners.graph.recording import (
    Player,
    Recording,
    read_outside,
    recording,
    told_apart,
)
from planners.graph.tensors import Graph, Node, Piece, Run, Runs, again

_NOTHING = Run((), ())


class Repeats:
    """The layers of one graph in the making, each kind of them drawn once or twice."""

    def __init__(
        self,
        graph: Graph,
        *,
        asks_first: bool,
        shared: Collection[Node] = (),
        player: Player | None = None,
    ) -> None:
        """`asks_first`: each layer begins by asking for what comes to it, as most do.

        `shared`: what layers have in common beside inputs. `player`: where layers need
        not be copied; None where all are.
        """
        self._graph, self._asks_first, self._shared = graph, asks_first, frozenset(shared)
        self._player = player
        self._recorded_before = {} if player is None else player.recordings.layers
        self._recordings: dict[tuple[Hashable, Runs, bool], Recording | None] = {}
        self._outside: dict[tuple[Hashable, Runs], tuple[Node, ...] | None] = {}
        self._before: Placed | None = None
        self._numbers = count(1)
        self._known: dict[Hashable, tuple[Piece, Placed]] = {}
        self._waiting: tuple[Node, Run] | None = None
        """What the last layer ended in, and what asking for that adds."""

    def layer(
        self,
        at: Placed,
        x: Node,
        draw: Callable[[Placed, Node], Node],
        *,
        after: Placed | None = None,
    ) -> Node:
        """What the layer makes of `x`: drawn by `draw`, copied, or played.

        `after`: the layer that follows; without it no layer that such a one mingles with is played.
        """
        if self._asks_first:
            self._ask_for(x)
        key, before = _key(at), self._before
        self._before = at
        if (known := self._known.get(key)) is None:
            return self._drawn(key, at, x, draw)
        found = self._playable(at, before, after)
        if found is not None:
            return self._played(found, x, at.backend)
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

    def _playable(
        self, at: Placed, before: Placed | None, after: Placed | None
    ) -> Recording | None:
        """What is played for the layer between these; None where it is to be copied.

        What begins or ends one, and is not bound to its backend, runs where its neighbours do.
        """
        if before is None or (found := self._recording(at, before.backend)) is None:
            return None
        beside = (before,) if self._asks_first else (before, after)
        if all(self._is_beside(at, other) for other in beside):
            return found
        comes_over = self._asks_first and before.backend != at.backend
        return found if comes_over and found.told.begins_itself else None

    def _is_beside(self, at: Placed, other: Placed | None) -> bool:
        """Whether the other layer runs on the same backend, from its beginning to its end."""
        if other is None or other.backend != at.backend:
            return False
        return self._recording(other, at.backend) is not None

    def _recording(self, at: Placed, before: int) -> Recording | None:
        """The layer's recording behind one on backend `before`; None where it has none."""
        player, lies_together = self._player, at.kv_backend == at.backend and not at.on_host
        runs = player.runs_on(at.backend) if player is not None and lies_together else None
        known = self._known.get(_key(at))
        if player is None or runs is None or known is None:
            return None
        is_held = player.holds and before != at.backend
        which = _key(at), runs, is_held
        if which not in self._recordings:
            reorders = player.reorders(at.backend)
            self._recordings[which] = self._recorded(*which, *known, reorders=reorders)
        return self._recordings[which]

    def _recorded(
        self,
        key: Hashable,
        runs: Runs,
        is_held: bool,
        piece: Piece,
        first: Placed,
        *,
        reorders: bool,
    ) -> Recording | None:
        if reorders and not self._asks_first:
            return None
        if (key, runs) not in self._outside:
            self._outside[key, runs] = read_outside(piece, first.backend, runs)
        if (outside := self._outside[key, runs]) is None:
            return None
        which = key, is_held, reorders, told_apart(piece, outside)
        if which not in self._recorded_before:
            found = recording(
                piece, outside, first.backend, in_one=self._asks_first, is_held=is_held,
                reorders=reorders,
            )  # fmt: skip
            self._recorded_before[which] = found, first.layer
        found, _ = self._recorded_before[which]
        return None if found is None else Recording(found, outside, piece.end)

    def _played(self, found: Recording, x: Node, backend: int) -> Node:
        """The layer as a node for each of its parts."""
        *first, end = found.played(x, backend)
        self._graph.add(Run((*first[:1],), ()))
        self._ask_for(x)
        self._graph.add(Run((*first[1:],), ()))
        self._waiting = end, Run((end,), ())
        return end

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
            if self._asks_first:  # else layers mingle, and their nodes stand among others each time
                next(self._numbers)  # so that numbers in a row are one layer's
                for node in (*own.nodes, *rest.nodes):
                    node.like = next(self._numbers)
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
    """Each backend of a layer drawn, and the one in its place in a copy."""
    moved = {first.host: at.host, first.kv_backend: at.kv_backend}
    return moved | {first.backend: at.backend}
