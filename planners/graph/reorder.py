"""The Vulkan backend's order of a split's nodes, which changes what lives at the same time.

It runs independent nodes side by side and keeps together what it fuses (ggml-vulkan.cpp,
ggml_vk_graph_optimize, b11434; as b10434 does).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from operator import not_

from planners.graph.tensors import VIEW_OPS, Node

_AHEAD = 20  # nodes looked at for each that is taken
_PULLED_AHEAD = 15
_STORED_AHEAD = 10
_SHORT = 32  # nodes of a run that is likely met again: of layers whose weights are lent
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


Orders = dict[tuple[int, ...], list[int]]
"""Orders of short runs by what their nodes are like."""


def reordered(nodes: Sequence[Node], known: Orders | None = None) -> list[Node]:
    """The same nodes in the order in which the backend runs them.

    `known`: the orders of the same graph's other runs, for this one to be found in or added to.
    """
    if len(nodes) < 3:  # the first always comes first
        return [*nodes]
    if known is None or len(nodes) > _SHORT or not all(node.like for node in nodes):
        return [nodes[i] for i in _Order(nodes).run()]
    # Of what is not in the run it counts whether that is there before any of it.
    marks = [node.like << 1 | (len(node.src) > 1 and node.src[1].op != "") for node in nodes]
    if (order := known.get(key := (*marks,))) is None:
        order = known[key] = _Order(nodes).run()
    return [nodes[i] for i in order]


class _Order:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
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
        self._taken: set[int | None] = set()

    def run(self) -> list[int]:
        """The numbers of all nodes, taken group by group."""
        used, end = self._used, len(self._nodes)
        while self._first < end:
            if kept := self._kept(self._first):
                group = [*range(self._first, self._first + kept)]
                self._use(group)
            else:
                group = self._group()
            self._new += group
            self._taken.update(group)
            while self._first < end and used[self._first]:
                self._first += 1
        return self._new

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
        for j, node in enumerate(self._nodes):
            first, needs = j - _AHEAD, []
            for source in node.src:
                if (i := index.get(source, first)) > first:
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
                group += self._pulled(j)
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
        return not other.op or self._index.get(other) in self._taken

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
