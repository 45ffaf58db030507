"""What the allocator does for one layer, recorded once and played for all that are like it.

Where all of a layer runs on one device, its results come and go in the same order each time, and
only where they are put differs: that takes a tenth of going through its nodes again.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain

from msgspec import Struct, field

from planners.graph.allocation import ENDLESS, INPLACE, Allocator, Heap, PlayedBefore
from planners.graph.reorder import ordered_alone
from planners.graph.tensors import VIEW_OPS, Node, Part, Piece, Played, Runs, again
from planners.model import LayerInfo


class Recorded(Struct, frozen=True):
    """A layer's nodes in parts: all in one, or those before it is asked, its own, and the rest."""

    parts: tuple[Part, ...]
    n_places: int
    place: int
    """Of its end."""
    begins_itself: bool
    """Whether its first node is on the layer's backend whatever comes before it."""


class Recordings(Struct, frozen=True):
    """Of layers of one model that is launched one way, wherever its layers lie."""

    layers: dict[Hashable, tuple[Recorded | None, LayerInfo]] = field(default_factory=dict)
    """Each with its layer, by whose identity it is known."""
    played: PlayedBefore = field(default_factory=dict)


class Player(Struct, frozen=True):
    """Where layers that are like one before need not be drawn."""

    runs_on: Callable[[int], Runs | None]
    """What a backend runs, the same for backends that are alike; None where some of a layer may
    run elsewhere."""
    reorders: Callable[[int], bool]
    """Whether a backend runs nodes in an order of its own."""
    holds: bool
    """Whether what comes from another backend is held, as batches are under way at once."""
    recordings: Recordings
    """What other graphs came to, for this one to add to."""


class Recording(Struct, frozen=True):
    """What was recorded, in one graph."""

    told: Recorded
    shared: tuple[Node, ...]
    """What it reads beside its start, in the order in which it does."""
    end: Node

    def played(self, start: Node, backend: int) -> tuple[Played, ...]:
        """The layer once more, on that backend: a node for each part."""
        frame, end = [0] * self.told.n_places, self.end
        outside = (start, *self.shared)
        return tuple(
            Played(
                "played", end.ne, end.nb, end.size, end.n_bytes,
                src=tuple(outside[n] for n in part.reads), backend=backend, part=part, frame=frame,
                place=self.told.place,
            )
            for part in self.told.parts
        )  # fmt: skip


def told_apart(piece: Piece, outside: Sequence[Node]) -> Hashable:
    """What can differ between pieces of equal layers in two graphs: what each was first to add."""
    nodes = (*piece.early.nodes, *piece.own.nodes, *piece.rest.nodes, *outside)
    return len(outside), *((node.op, node.n_bytes) for node in nodes)


def read_outside(piece: Piece, backend: int, runs: Runs) -> tuple[Node, ...] | None:
    """What layers like the piece, which lies on `backend`, share; None where they can differ.

    They differ where some of a layer lies or runs elsewhere, or may take the place of what others
    read.
    """
    nodes = piece.early.nodes + piece.own.nodes + piece.rest.nodes
    leafs = piece.early.leafs + piece.own.leafs + piece.rest.leafs
    known = {piece.start, *nodes, *leafs}
    read = dict.fromkeys(source for node in nodes for source in node.src)
    outside = {source: None for source in read if source not in known}
    is_plain = (
        not piece.waits
        and piece.rest.nodes[-1:] == (piece.end,)
        and piece.end.view_src is None
        and piece.start.view_src is None
        and all(map(_is_input, outside))
        and all(leaf.buffer == backend for leaf in leafs)
        and all(node.backend in (-1, backend) for node in nodes)
        and all(node.view_src in known for node in nodes if node.view_src is not None)
        and all(runs(node) for node in nodes if node.op not in VIEW_OPS)
    )
    read_by = [node for node in nodes if not outside.keys().isdisjoint(node.src)]
    if not is_plain or any(_mingles(node, outside) for node in read_by):
        return None
    return tuple(outside)


def _is_input(node: Node) -> bool:
    """Whether it comes from the host for every batch, so that a device reads a copy."""
    return (node.view_src or node).is_input


def _mingles(node: Node, outside: Iterable[Node]) -> bool:
    """Whether the node is a view of what others read, or could take its place."""
    if node.op in VIEW_OPS:
        return True
    shape = node.size, node.ne, node.nb
    theirs = (source for source in node.src if source in outside)
    return node.op in INPLACE and any(shape == (x.size, x.ne, x.nb) for x in theirs)


def recording(
    piece: Piece,
    outside: Sequence[Node],
    backend: int,
    *,
    in_one: bool,
    is_held: bool,
    reorders: bool = False,
) -> Recorded | None:
    """What to do for each layer like the piece; `outside`: what `read_outside` told.

    `in_one`: whether its parts follow one another, so that they can be one. `is_held`: whether what
    comes to it is never freed. `reorders`: whether the backend has its own order of the nodes; None
    where such a layer mingles with the next.
    """
    proxies = [_proxy(node, -n) for n, node in enumerate((piece.start, *outside))]
    proxies[0].is_output = is_held
    met = dict(zip((piece.start, *outside), proxies, strict=True))
    copy = again(piece, proxies[0], {backend: 0}, others=met)
    whole = copy.early.nodes + copy.own.nodes + copy.rest.nodes
    if reorders:
        alone = ordered_alone(whole, proxies[0])
        if alone is None:
            return None
        runs: Sequence[Sequence[Node]] = [alone]
    elif in_one:
        runs = [whole]
    else:
        runs = [copy.early.nodes, copy.own.nodes, copy.rest.nodes]
    parts, n_places = _parts(runs, proxies)
    first = next(n for n in piece.own.nodes + piece.rest.nodes if n.op not in VIEW_OPS)
    return Recorded(parts, n_places, copy.end.offset, begins_itself=first.backend == backend)


class _Tape(Heap):
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        super().__init__(ENDLESS)
        self.events: list[tuple[int, int]] = []
        self.n_places = 1

    def take(self, size: int) -> int:
        """The next place of the frame."""
        self.events.append((self.n_places, size))
        self.n_places += 1
        return self.n_places - 1

    def give(self, address: int, size: int) -> None:
        """Note that a place is free, or (below 0) that a shared one is read no more."""
        self.events.append((address, ~size if address >= 0 else -1))


def _parts(runs: Sequence[Sequence[Node]], proxies: Sequence[Node]) -> tuple[tuple[Part, ...], int]:
    """What an allocator does for a layer's runs, and how many results there are."""
    outside = {node: n for n, node in enumerate(proxies)}
    tape = _Tape()
    allocator = Allocator([tape])  # the last one, too: of nodes that no backend was told yet
    allocator.count(chain.from_iterable(runs))
    parts = []
    for run in runs:
        allocator.put(run)
        reads = (outside[x] for node in run for x in node.src if x in outside)
        parts.append(_part((*reads,), tape.events, is_whole=len(runs) < 2))
        tape.events.clear()
    return (*parts,), tape.n_places


def _part(reads: tuple[int, ...], events: Iterable[tuple[int, int]], *, is_whole: bool) -> Part:
    """With what is shared by its place among the sources, and how often it is read."""
    told = ((n, size) if n >= 0 else (~reads.index(-n), size) for n, size in events)
    shared = ((reads.index(n), reads.count(n)) for n in dict.fromkeys(reads) if n)
    start = reads.index(0) if 0 in reads else -1
    return Part(reads, (*told,), (*shared,), start, is_whole)


def _proxy(node: Node, place: int) -> Node:
    """Stands for what comes from outside, and lies there."""
    return Node(
        "", node.ne, node.nb, node.size, node.n_bytes, (), backend=0, is_owned=True, offset=place
    )
