"""ggml-alloc in outline: how many bytes each backend's compute buffer reserves (b11434).

Best fit among freed blocks, else the end; results take a dying parent's place where they may.
"""

from collections.abc import Iterable, Sequence

from planners.graph.tensors import Node

ALIGNMENT = 32  # ggml's CPU buffers; devices ask for 16 to 256, which changes kilobytes
_INPLACE = frozenset({
    "fill", "scale", "add", "add_id", "sub", "mul", "div", "sqr", "sqrt", "unary", "rope",
    "rms_norm", "clamp", "soft_max",
})  # fmt: skip


class _Heap:
    """One buffer's free blocks by offset; the last one is endless (ggml_dyn_tallocr)."""

    def __init__(self) -> None:
        self.offsets, self.sizes = [0], [1 << 62]
        self.most = 0

    def take(self, size: int) -> int:
        """The offset of `size` bytes."""
        offsets, sizes = self.offsets, self.sizes
        best, best_size = len(sizes) - 1, 1 << 63
        for i in range(len(sizes) - 1):
            if size <= sizes[i] <= best_size:
                best, best_size = i, sizes[i]
        offset = offsets[best]
        offsets[best] += size
        sizes[best] -= size
        if not sizes[best]:
            del offsets[best], sizes[best]
        self.most = max(self.most, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free `size` bytes, joined with the first free neighbour in the list.

        Results without elements take no bytes and are freed too: blocks of 0 bytes are in the list
        there, so they are here.
        """
        offsets, sizes = self.offsets, self.sizes
        for i, start in enumerate(offsets):
            if start + sizes[i] == offset:
                sizes[i] += size
                self._join(i)
                return
            if offset + size == start:
                offsets[i], sizes[i] = offset, sizes[i] + size
                if i:
                    self._join(i - 1)
                return
        # Not bisected: a block of 0 bytes can lie behind the endless one, out of order.
        at = next((i for i, start in enumerate(offsets) if start >= offset), len(offsets))
        offsets.insert(at, offset)
        sizes.insert(at, size)

    def _join(self, i: int) -> None:
        """Make one of a block and its successor where they touch."""
        offsets, sizes = self.offsets, self.sizes
        if i + 1 < len(offsets) and offsets[i] + sizes[i] == offsets[i + 1]:
            sizes[i] += sizes[i + 1]
            del offsets[i + 1], sizes[i + 1]


def reserved_bytes(
    nodes: Sequence[Node], leafs: Iterable[Node], *, n_backends: int
) -> tuple[int, ...]:
    """Bytes per backend. Every node and leaf must have its backend."""
    return _Allocator(n_backends).reserve(nodes, leafs)


def most_bytes(nodes: Iterable[Node], leafs: Iterable[Node], *, n_backends: int) -> tuple[int, ...]:
    """Per backend what `reserved_bytes` cannot exceed, quickly told: all, as if none was freed.

    Each result takes new bytes at most once, since a block at the end grows by what does not fit.
    """
    most = [0] * n_backends
    for node in (*leafs, *nodes):
        if node.buffer is None and node.view_src is None:
            most[node.backend] += _aligned(node.n_bytes)
    return tuple(most)


class _Allocator:
    def __init__(self, n_backends: int) -> None:
        self._heaps = [_Heap() for _ in range(n_backends)]

    def reserve(self, nodes: Sequence[Node], leafs: Iterable[Node]) -> tuple[int, ...]:
        for leaf in leafs:
            self._allocate(leaf)
        for node in nodes:
            if node.view_src is not None and node.op:
                node.view_src.n_views += 1
            if node.is_input:
                self._allocate(node)
            for source in node.src:
                source.n_children += 1
                if source.is_input:
                    self._allocate(source)
        for node in nodes:  # their sources come before them, or are leafs
            if node.view_src is None and not node.is_owned and node.buffer is None:
                self._allocate(node)
            for source in node.src:
                source.n_children = left = source.n_children - 1
                if not left and source.buffer is None and not source.n_views:
                    self._release(source)
        return tuple(heap.most for heap in self._heaps)

    def _allocate(self, node: Node) -> None:
        if node.buffer is not None or node.is_owned or node.view_src is not None:
            return
        node.is_owned = True
        if node.op in _INPLACE and self._takes_over(node):
            return
        node.offset = self._heaps[node.backend].take(_aligned(node.n_bytes))

    def _takes_over(self, node: Node) -> bool:
        """Put `node` where a parent lies that nobody else needs; views never qualify."""
        for parent in node.src:
            if not parent.is_owned or parent.is_output or parent.n_children != 1 or parent.n_views:
                continue
            if parent.size != node.size or parent.ne != node.ne or parent.nb != node.nb:
                continue
            parent.is_owned = False
            node.backend, node.offset = parent.backend, parent.offset
            return True
        return False

    def _release(self, source: Node) -> None:
        """Free what nobody reads any more, or what it was the last view of."""
        owner = source
        if source.view_src is not None:
            owner = source.view_src
            owner.n_views -= 1
            if owner.n_children or owner.n_views:
                return
        if owner.is_owned and not owner.is_output:
            self._heaps[owner.backend].give(owner.offset, _aligned(owner.n_bytes))
            owner.is_owned = False


def _aligned(n_bytes: int) -> int:
    return (n_bytes + ALIGNMENT - 1) & -ALIGNMENT
