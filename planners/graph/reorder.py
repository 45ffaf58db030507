"""The Vulkan backend's order of a split's nodes, which changes what lives at the same time.

It runs independent nodes side by side and keeps together what it fuses (ggml-vulkan.cpp,
ggml_vk_graph_optimize, b11434; as b10434 does).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, compress, groupby, pairwise
from operator import not_

from msgspec import Struct

from planners.graph.tensors import VIEW_OPS, Node, Played

_AHEAD = 20  # nodes looked at for each that is taken
_PULLED_AHEAD = 15
_STORED_AHEAD = 10
_SEEN = _AHEAD + 2 * _PULLED_AHEAD  # nodes that can count for what is taken beside one of them
_SHORT = 64  # nodes of a run that is one stretch: more of them would be seen twice
_UNLIKE = 3  # the highest mark of a node that has no like
_TOP_K_EARLY = ("soft_max", "reshape", "argsort", "view", "get_rows")
_NORMALISED = ("reshape", "sum_rows", "clamp", "div", "reshape")
_KEPT = (
    (*_TOP_K_EARLY, *_NORMALISED),
    ("unary", "reshape", "add", "argsort", "view", "get_rows", *_NORMALISED),
    _TOP_K_EARLY,
    ("argsort", "view", "get_rows", "reshape", "soft_max", "reshape"),
)
_KEPT_HEADS = frozenset(pattern[0] for pattern in _KEPT)
_FUSED_PAIRS = frozenset({
    ("rms_norm", "mul"), ("mul_mat", "add"), ("mul_mat_id", "add_id"), ("mul_mat_id", "mul"),
    ("add", "add"), ("ssm_conv", "add"), ("ssm_conv", "unary"),
})  # fmt: skip
_FOLLOWERS = {
    ("mul_mat_id", "add_id"): "mul", ("mul_mat", "add"): "add", ("ssm_conv", "add"): "unary",
}  # fmt: skip
_PULLING = frozenset({"mul", "rope", *(op for _, op in _FOLLOWERS)})
_PULLED = frozenset({"rope", *_FOLLOWERS.values()})
_END = "add"  # of nearly every layer
_BEHIND_END = frozenset(
    op for one, op in (*_FUSED_PAIRS, *chain(*map(pairwise, _KEPT))) if one == _END
)
"""What is fused with such an end, or kept right behind it."""


class Stretch(Struct, frozen=True):
    """What comes of a part of a run."""

    order: list[int]
    """Those that come next, from its first on."""
    n: int
    """How many are behind then."""
    taken: int
    """Those beyond that are taken already, as bits."""
    closes: bool
    """Whether nothing could come of the last one of all before all are taken."""


Orders = dict[tuple[int, ...], Stretch]
"""By what of a stretch is taken already, and what its nodes are like."""


def reordered(nodes: Sequence[Node], known: Orders | None = None) -> list[Node]:
    """The same nodes in the order in which the backend runs them.

    `known`: what the same graph's other runs came to, stretch by stretch: layers follow one another
    in few ways, and a node is taken by what is near it.
    """
    if len(nodes) < 3:  # the first always comes first
        return [*nodes]
    if known is None:
        return [nodes[i] for i in _Order(nodes).run(len(nodes)).order]
    return _in_stretches(nodes, {*nodes}, known)[0]


def reordered_around_played(nodes: Sequence[Node], known: Orders) -> list[Node] | None:
    """The same where layers among them are played; None where those mingle with what is beside.

    Layers that are played stand alone, each with what the backend makes of it.
    """
    if not any(isinstance(node, Played) for node in nodes):
        return reordered(nodes, known)
    inside, found = {*nodes}, list[Node]()
    before: Node | None = None
    for is_played, group in groupby(nodes, lambda node: isinstance(node, Played)):
        some = [*group]
        if is_played:
            if not _follow(some, before):
                return None
            found += some
        else:
            if found and not begins_alone(some, found[-1]):
                return None
            ordered, closes = _in_stretches(some, inside, known)
            if some[-1] is not nodes[-1] and not closes:
                return None
            found += ordered
        before = some[-1]
    return found


def _follow(played: Iterable[Node], before: Node | None) -> bool:
    """Whether each layer starts from what is right before it, or the first from a copy."""
    for node in played:
        if not isinstance(node, Played) or node.part.start < 0:
            return False
        start = node.src[node.part.start]
        if start.op if before is None else start is not before:
            return False
        before = node
    return True


def ordered_alone(nodes: Sequence[Node], start: Node) -> list[Node] | None:
    """A layer's nodes as the backend runs them, whatever is before and behind it.

    None where another layer like it could begin before this one is done.
    """
    if nodes[-1].op != _END or not begins_alone(nodes, start):
        return None
    found = _Order(nodes).run(len(nodes))
    return [nodes[i] for i in found.order] if found.closes else None


def begins_alone(nodes: Sequence[Node], start: Node) -> bool:
    """Whether none of the nodes runs before all is done that ends in `start`, or fused with it."""
    if nodes[0].op in _BEHIND_END:
        return False
    reached, owners = {start}, set[Node]()
    for node in nodes[:_AHEAD]:  # what is looked at from before the first
        owner = node.view_src
        if reached.isdisjoint(node.src) and owner not in reached and owner not in owners:
            return False
        reached.add(node)
        if owner is not None:
            owners.add(owner)
        if start in node.src and (
            node.op in VIEW_OPS or (node.src[0] is start and node.op in _PULLED)
        ):
            return False
    return True


def _in_stretches(
    nodes: Sequence[Node], inside: Collection[Node], known: Orders
) -> tuple[list[Node], bool]:
    """The nodes in the backend's order, and whether the last one closes it."""
    found: list[Node] = []
    # Of what is not in the stretch it counts whether it is there, and whether it is in the run.
    marks = [
        node.like << 2
        if len(node.src) < 2 or not (other := node.src[1]).op
        else node.like << 2 | (1 if other in inside else 2)
        for node in nodes
    ]
    first, taken, closes = 0, 0, False
    for end in _ends(marks) if len(nodes) > _SHORT else (len(nodes),):
        if end <= first:
            continue
        seen = end + _SEEN
        key = (taken, *marks[first:seen])
        if (stretch := known.get(key)) is None:
            stretch = _Order(nodes[first:seen], taken=taken, inside=inside).run(end - first)
            if all(mark > _UNLIKE for mark in key[1:]):
                known[key] = stretch
        found += [nodes[first + i] for i in stretch.order]
        first, taken, closes = first + stretch.n, stretch.taken, stretch.closes
    return found, closes


def _ends(marks: Sequence[int]) -> list[int]:
    """Where a layer ends: nodes of one have numbers in a row."""
    likes = [mark >> 2 for mark in marks]
    ends = [i for i, (one, other) in enumerate(pairwise(likes), start=1) if other != one + 1]
    return [*ends, len(marks)]


class _Order:
    def __init__(
        self, nodes: Sequence[Node], *, taken: int = 0, inside: Collection[Node] = ()
    ) -> None:
        """`taken`: those that are already, as bits. `inside`: what the run has before these."""
        self._nodes, self._inside = nodes, inside
        self._ops = [node.op for node in nodes]
        self._is_head = [op in _KEPT_HEADS for op in self._ops]
        is_empty = [op in VIEW_OPS or not op for op in self._ops]
        numbers = range(len(nodes))
        self._empty = [*compress(numbers, is_empty)]
        self._real = [*compress(numbers, map(not_, is_empty))]
        self._used = [False] * len(nodes)
        self._index: dict[Node, int] = {}
        self._needed_by: list[list[int]] = [[] for _ in nodes]
        self._needs = self._dependencies()
        self._unmet = [*map(len, self._needs)]
        self._first = 0
        self._new: list[int] = []
        self._taken = {i for i in range(taken.bit_length()) if taken >> i & 1}
        self._use(self._taken)
        self._early: set[int] = set()
        """Taken before the rest of their group is."""

    def run(self, end: int) -> Stretch:
        """The nodes taken, group by group, until all before `end` are."""
        used, most = self._used, len(self._nodes)
        group: list[int] = []
        while self._first < end:
            if kept := self._kept(self._first):
                group = [*range(self._first, self._first + kept)]
                self._use(group)
            else:
                group = self._group()
            self._new += group
            self._taken.update(group)
            while self._first < most and used[self._first]:
                self._first += 1
        first, last = self._first, most - 1
        taken = sum(1 << i - first for i in self._taken if i > first)
        closes = last in group and last not in self._early
        return Stretch(self._new, first, taken, closes)

    def _use(self, group: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        used, unmet, needed_by = self._used, self._unmet, self._needed_by
        for i in group:
            if not used[i]:
                used[i] = True
                for j in needed_by[i]:
                    unmet[j] -= 1

    def _dependencies(self) -> list[list[int]]:
        """Per node the earlier ones that it must not pass, of those that it could."""
        views: dict[Node, list[int]] = {}
        found, index, needed_by = [], self._index, self._needed_by
        get = index.get
        for j, node in enumerate(self._nodes):
            first, needs = j - _AHEAD, []
            for source in node.src:
                i = get(source, first)
                if i > first:
                    needs.append(i)
            if (owner := node.view_src) is not None:
                of_base = views.setdefault(owner, [])
                if (i := index.get(owner, first)) > first:
                    needs.append(i)
                for i in reversed(of_base):
                    if i <= first:
                        break
                    needs.append(i)
                of_base.append(j)
            for i in needs:
                needed_by[i].append(j)
            found.append(needs)
            index[node] = j
        return found

    def _kept(self, start: int) -> int:
        """How many nodes from `start` on are one pattern that stays as it is; 0 for none."""
        if not self._is_head[start]:
            return 0
        return next((len(p) for p in _KEPT if self._matches(p, start)), 0)

    def _matches(self, pattern: tuple[str, ...], start: int) -> bool:
        ops, used = self._ops, self._used
        if ops[start] != pattern[0] or start + len(pattern) > len(ops):
            return False
        return all(ops[start + k] == op and not used[start + k] for k, op in enumerate(pattern))

    def _group(self) -> list[int]:
        """The first node left, and others that can run beside it: real ones, then views."""
        first, used, unmet = self._first, self._used, self._unmet
        ops, is_head = self._ops, self._is_head
        group = [first]
        for j in _after(first, self._real):  # `used` grows on the way
            if used[j]:
                continue
            if unmet[j] and not (group[-1] == j - 1 and self._fuses_before(j)):
                continue
            if is_head[j] and self._kept(j):
                continue
            group.append(j)
            if ops[j] in _PULLING:
                pulled = [*self._pulled(j)]
                group += pulled
                self._early.update(pulled)
        self._use(group)
        if ops[group[-1]] != "add":
            for j in _after(first, self._empty):
                if not (unmet[j] or used[j]):
                    group.append(j)
                    self._use((j,))
        return group

    def _fuses_before(self, j: int) -> bool:
        """Whether `j` waits but for the one before it, and one operation does both."""
        return (
            not self._used[j - 1]
            and self._unmet[j] == self._needs[j].count(j - 1)
            and (self._ops[j - 1], self._ops[j]) in _FUSED_PAIRS
        )

    def _pulled(self, j: int) -> Iterator[int]:
        """What is run right after `j` because it is fused with it."""
        before, op = self._ops[j - 1 : j + 1]
        rope = j
        if (before, op) == ("rms_norm", "mul"):
            for k in self._consumers(j, "rope"):
                if not self._nodes[k].src[1].op:
                    rope = k
                    self._use((k,))
                    yield k
                    break
        if self._ops[rope] == "rope":
            yield from self._stored(rope)
        follower = _FOLLOWERS.get((before, op))
        for k in self._consumers(j, follower) if follower else ():
            if all(self._is_ready(other) for other in self._nodes[k].src[1:2]):
                self._use((k,))
                yield k
                break

    def _is_ready(self, other: Node) -> bool:
        if (i := self._index.get(other)) is not None:
            return i in self._taken
        return not other.op or other in self._inside

    def _consumers(self, j: int, op: str) -> Iterator[int]:
        node = self._nodes[j]
        for k, other in enumerate(self._ops[j + 1 : j + _PULLED_AHEAD], start=j + 1):
            if other == op and self._nodes[k].src[0] is node:
                yield k

    def _stored(self, rope: int) -> Iterator[int]:
        """The view and the write into the cache of a rotated K."""
        for at in self._consumers(rope, "view"):
            for k in self._consumers(at, "set_rows"):
                if k < rope + _STORED_AHEAD:
                    self._use((at, k))
                    yield at
                    yield k
                return
            return


def _after(first: int, numbers: Sequence[int]) -> Sequence[int]:
    """Those of the sorted `numbers` that are looked at beside `first`."""
    return numbers[bisect_right(numbers, first) : bisect_left(numbers, first + _AHEAD)]
