"""The Vulkan backend's order of nodes, loop by loop as the engine has it: slow, and plain.

What planners.graph.reorder is compared with (ggml-vulkan.cpp, ggml_vk_graph_optimize, b11434).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from planners.graph.tensors import VIEW_OPS, Node

_AHEAD = 20  # nodes looked at for each that is taken
_PULLED_AHEAD = 15
_STORED_AHEAD = 10
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


def plainly_reordered(nodes: Sequence[Node]) -> list[Node]:
    """The same nodes in the order in which the backend runs them."""
    return _Order(nodes).run()


class _Order:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._is_head = [node.op in _KEPT_HEADS for node in nodes]
        self._used = [False] * len(nodes)
        self._is_empty = [node.op in VIEW_OPS or not node.op for node in nodes]
        self._index = {id(node): i for i, node in enumerate(nodes)}
        self._needs = self._dependencies()
        self._first = 0
        self._new: list[int] = []
        self._taken: set[int | None] = set()

    def run(self) -> list[Node]:
        """All nodes, taken group by group."""
        while self._first < len(self._nodes):
            if kept := self._kept(self._first):
                self._take(range(self._first, self._first + kept))
            else:
                self._take(self._group())
            while self._first < len(self._nodes) and self._used[self._first]:
                self._first += 1
        return [self._nodes[i] for i in self._new]

    def _take(self, group: Iterable[int]) -> None:
        for i in group:
            self._used[i] = True
            self._new.append(i)
            self._taken.add(i)

    def _dependencies(self) -> list[list[int]]:
        """Per node the earlier ones that it must not pass."""
        by_base: dict[int, list[int]] = defaultdict(list)
        found, index = [], self._index
        for j, node in enumerate(self._nodes):
            of_base = by_base[id(node.view_src or node)]
            needs = [i for source in node.src if (i := index.get(id(source), j)) < j]
            found.append(needs + of_base if of_base else needs)
            of_base.append(j)
        return found

    def _kept(self, start: int) -> int:
        """How many nodes from `start` on are one pattern that stays as it is; 0 for none."""
        if not self._is_head[start]:
            return 0
        return next((len(p) for p in _KEPT if self._matches(p, start)), 0)

    def _matches(self, pattern: tuple[str, ...], start: int) -> bool:
        if self._nodes[start].op != pattern[0] or start + len(pattern) > len(self._nodes):
            return False
        return all(
            self._nodes[start + k].op == op and not self._used[start + k]
            for k, op in enumerate(pattern)
        )

    def _group(self) -> list[int]:
        """The first node left, and others that can run beside it: real ones, then views."""
        first, used, needs, is_empty = self._first, self._used, self._needs, self._is_empty
        ahead = range(first + 1, min(first + _AHEAD, len(self._nodes)))
        group = [first]
        is_head = self._is_head
        for j in ahead:  # `used` grows on the way
            if used[j] or is_empty[j] or (is_head[j] and self._kept(j)):
                continue
            for c in needs[j]:
                if c >= first and not used[c] and not self._fuses(c, j, group[-1]):
                    break
            else:
                group.append(j)
                group += self._pulled(j)
        if self._nodes[group[-1]].op != "add":
            for j in ahead:
                if used[j] or not is_empty[j]:
                    continue
                for c in needs[j]:
                    if c >= first and not used[c] and c not in group:
                        break
                else:
                    group.append(j)
        return group

    def _fuses(self, c: int, j: int, last: int) -> bool:
        """Whether `j` may follow `c`, the last of the group, at once: one operation does both."""
        return c == last == j - 1 and (self._nodes[c].op, self._nodes[j].op) in _FUSED_PAIRS

    def _pulled(self, j: int) -> Iterator[int]:
        """What is run right after `j` because it is fused with it."""
        node, before = self._nodes[j], self._nodes[j - 1]
        rope = j
        if node.op == "mul" and before.op == "rms_norm":
            for k in self._consumers(j, "rope"):
                if not self._nodes[k].src[1].op:
                    rope = k
                    self._used[k] = True
                    yield k
                    break
        if self._nodes[rope].op == "rope":
            yield from self._stored(rope)
        follower = _FOLLOWERS.get((before.op, node.op))
        for k in self._consumers(j, follower) if follower else ():
            if all(self._is_ready(other) for other in self._nodes[k].src[1:2]):
                self._used[k] = True
                yield k
                break

    def _is_ready(self, other: Node) -> bool:
        return not other.op or self._index.get(id(other)) in self._taken

    def _consumers(self, j: int, op: str) -> Iterator[int]:
        node = self._nodes[j]
        for k, other in enumerate(self._nodes[j + 1 : j + _PULLED_AHEAD], start=j + 1):
            if other.op == op and other.src[0] is node:
                yield k

    def _stored(self, rope: int) -> Iterator[int]:
        """The view and the write into the cache of a rotated K."""
        for at in self._consumers(rope, "view"):
            for k in self._consumers(at, "set_rows"):
                if k < rope + _STORED_AHEAD:
                    self._used[at] = self._used[k] = True
                    yield at
                    yield k
                return
            return
