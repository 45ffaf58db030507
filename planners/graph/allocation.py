"""ggml-alloc in outline: how many bytes each backend's compute buffer reserves (b11434).

Best fit among freed blocks, else the end; results take a dying parent's place where they may.
"""

from collections.abc import Iterable, Sequence

from planners.graph.tensors import Node, Part, Played

ALIGNMENT = 32  # ggml's CPU buffers; devices ask for 16 to 256, which changes kilobytes
_OFFSET_BITS = 62
ENDLESS = 1 << _OFFSET_BITS
_MOST_CHUNKS = 16  # GGML_VBUFFER_MAX_CHUNKS; the last one takes all that is left
INPLACE = frozenset({
    "fill", "scale", "add", "add_id", "sub", "mul", "div", "sqr", "sqrt", "unary", "rope",
    "rms_norm", "clamp", "soft_max",
})  # fmt: skip


_State = tuple[tuple[int, ...], tuple[int, ...]]
PlayedBefore = dict[object, tuple[int, _State, int, Part]]
"""By a layer, and what was free before it: where its end lies, what is free then, and the most, all
from the first free byte on; and the layer's part, which is known by its identity: held here, no
other one can come to have that.
"""


class _Chunk:
    """One buffer's free blocks by offset; the last one ends with it (ggml_dyn_tallocr)."""

    __slots__ = ("most", "offsets", "size", "sizes")

    def __init__(self, size: int) -> None:
        self.offsets, self.sizes = [0], [size]
        self.size, self.most = size, 0

    @property
    def ends_free(self) -> bool:
        """Whether the last free block is all that is left up to the end."""
        return bool(self.sizes) and self.offsets[-1] + self.sizes[-1] == self.size

    def state(self, base: int) -> _State:
        """All that decides what is taken next, from `base` on; of the last block but its place."""
        return tuple([offset - base for offset in self.offsets]), (*self.sizes[:-1],)

    def restore(self, state: _State, base: int) -> None:
        """As it was, or would be."""
        offsets, sizes = state
        self.offsets = [offset + base for offset in offsets]
        self.sizes = [*sizes, self.size - self.offsets[-1]]

    def best(self, size: int) -> int:
        """The smallest block before the last that has `size` bytes, of equals the later; or -1."""
        sizes = self.sizes
        if len(sizes) < 2:
            return -1
        found, least = -1, ENDLESS
        for i, free in enumerate(sizes[:-1]):
            if size <= free <= least:
                found, least = i, free
        return found

    def take(self, block: int, size: int) -> int:
        """The offset of `size` bytes at the start of that block."""
        offsets, sizes = self.offsets, self.sizes
        offset = offsets[block]
        end = offset + size
        if sizes[block] == size:
            del offsets[block], sizes[block]
        else:
            offsets[block] = end
            sizes[block] -= size
        if end > self.most:
            self.most = end
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free `size` bytes, joined with the first free neighbour in the list.

        Results without elements take no bytes and are freed too: blocks of 0 bytes are in the list
        there, so they are here.
        """
        offsets, sizes, end = self.offsets, self.sizes, offset + size
        for i, start in enumerate(offsets):
            if start + sizes[i] == offset:
                sizes[i] += size
                if len(sizes) > 1:
                    self._join(i)
                return
            if start == end:
                offsets[i], sizes[i] = offset, sizes[i] + size
                if i:
                    self._join(i - 1)
                return
        # Not bisected: a block of 0 bytes can lie behind the last one, out of order.
        at = next((i for i, start in enumerate(offsets) if start >= offset), len(offsets))
        offsets.insert(at, offset)
        sizes.insert(at, size)

    def _join(self, i: int) -> None:
        """Make one of a block and its successor where they touch."""
        offsets, sizes = self.offsets, self.sizes
        if i + 1 < len(offsets) and offsets[i] + sizes[i] == offsets[i + 1]:
            sizes[i] += sizes[i + 1]
            del offsets[i + 1], sizes[i + 1]


class Heap:
    """A backend's buffers: the next one is begun where what is asked for fits into none."""

    def __init__(self, chunk_bytes: int, played: PlayedBefore | None = None) -> None:
        self._chunk_bytes = chunk_bytes
        self._chunks: list[_Chunk] = []
        self._played: PlayedBefore = {} if played is None else played

    @property
    def most(self) -> int:
        """Bytes of all buffers."""
        return sum(chunk.most for chunk in self._chunks)

    def take(self, size: int) -> int:
        """The address of `size` bytes: the number of a buffer, and an offset below."""
        if len(self._chunks) == 1 and (sizes := self._chunks[0].sizes) and sizes[-1] >= size:
            chunk = self._chunks[0]
            return chunk.take(chunk.best(size), size)  # -1 is the last
        best, block = -1, 0
        for c, chunk in enumerate(self._chunks):  # the last that has any, not the best of all
            if (found := chunk.best(size)) >= 0:
                best, block = c, found
        if best < 0:
            best = self._last_block_of(size)
            block = len(self._chunks[best].sizes) - 1
        return best << _OFFSET_BITS | self._chunks[best].take(block, size)

    def give(self, address: int, size: int) -> None:
        """Free `size` bytes."""
        self._chunks[address >> _OFFSET_BITS].give(address & ENDLESS - 1, size)

    def play(self, node: Played) -> None:
        """Take and give as the nodes would that this one stands for."""
        node.is_owned = True
        ends = False
        for n, count in node.part.shared:
            source = node.src[n]
            source.n_children = left = source.n_children - count
            ends = ends or not (left or source.is_output)  # what is held stays where it is
        if ends or not node.part.is_whole or len(self._chunks) != 1:
            node.offset = self._replayed(node)
        else:
            node.offset = self._remembered(node, self._chunks[0])

    def _remembered(self, node: Played, chunk: _Chunk) -> int:
        """As `_replayed`, of a layer by itself in the one buffer there is: its start lies there.

        What is free may lie anywhere, as long as the layer comes nowhere near the buffer's end.
        """
        base = chunk.offsets[0] if chunk.ends_free else -1
        if base < 0:
            return self._replayed(node)
        key = id(node.part), node.src[node.part.start].offset - base, chunk.state(base)
        if (found := self._played.get(key)) is None:
            return self._memorised(node, chunk, base, key)
        end, state, most, _ = found
        if base + most >= chunk.size:
            return self._replayed(node)
        chunk.restore(state, base)
        chunk.most = max(chunk.most, base + most)
        return base + end

    def _memorised(self, node: Played, chunk: _Chunk, base: int, key: object) -> int:
        state, before, chunk.most = chunk.state(base), chunk.most, 0
        end = self._replayed(node)
        if len(self._chunks) > 1:  # where it begins another one, more counts than what is free
            del self._chunks[1:]
            chunk.restore(state, base)
            chunk.most = before
            return self._replayed(node)
        if chunk.ends_free and chunk.most < chunk.size:
            self._played[key] = end - base, chunk.state(base), chunk.most - base, node.part
        chunk.most = max(chunk.most, before)
        return end

    def _replayed(self, node: Played) -> int:
        """The address of the layer's end, all events gone through."""
        frame = node.frame
        if node.part.start >= 0:
            frame[0] = node.src[node.part.start].offset
        for place, size in node.part.events:
            if size >= 0:
                frame[place] = self.take(size)
            elif place >= 0:
                self.give(frame[place], ~size)
            else:
                self._end(node.src[~place])
        return frame[node.place]

    def _end(self, source: Node) -> None:
        """Free what a layer has read for the last time, if no other reads it either."""
        if not source.n_children and source.is_owned and not source.is_output:
            self.give(source.offset, _aligned(source.n_bytes))
            source.is_owned = False

    def _last_block_of(self, size: int) -> int:
        """Which buffer's end takes `size` bytes with the least new or unused ones, or a new one."""
        best, best_reuse = -1, -ENDLESS
        for c, chunk in enumerate(self._chunks):
            if not chunk.sizes or chunk.sizes[-1] < size:
                continue
            reuse = chunk.most - chunk.offsets[-1] - size
            if (best_reuse < 0 and reuse > best_reuse) or 0 <= reuse < best_reuse:
                best, best_reuse = c, reuse
        if best < 0:
            best = len(self._chunks)
            is_last = best == _MOST_CHUNKS - 1
            self._chunks.append(_Chunk(ENDLESS if is_last else max(size, self._chunk_bytes)))
        return best


def reserved_bytes(
    nodes: Sequence[Node],
    leafs: Iterable[Node],
    *,
    chunk_bytes: Sequence[int],
    played: PlayedBefore | None = None,
) -> tuple[int, ...]:
    """Bytes per backend. Every node and leaf must have its backend.

    `chunk_bytes`: per backend how large one of its buffers may be, unless a single result is
    larger; ENDLESS where that is not bounded. `played`: what layers came to in other graphs.
    """
    played = {} if played is None else played
    return Allocator([Heap(n_bytes, played) for n_bytes in chunk_bytes]).reserve(nodes, leafs)


def most_bytes(nodes: Iterable[Node], leafs: Iterable[Node], *, n_backends: int) -> tuple[int, ...]:
    """Per backend what `reserved_bytes` cannot exceed, quickly told: all, as if none was freed.

    Each result takes new bytes at most once, since a buffer grows at its end by what does not fit.
    """
    most = [0] * n_backends
    for node in (*leafs, *nodes):
        if node.buffer is None and node.view_src is None:
            most[node.backend] += _aligned(node.n_bytes)
    return tuple(most)


class Allocator:
    """Puts results into heaps, one for each backend, as long as somebody reads them."""

    def __init__(self, heaps: Sequence[Heap]) -> None:
        self._heaps = heaps

    def reserve(self, nodes: Sequence[Node], leafs: Iterable[Node]) -> tuple[int, ...]:
        """Bytes per heap."""
        for leaf in leafs:
            if leaf.buffer is None and leaf.view_src is None and not leaf.is_owned:
                self._allocate(leaf)
        self.count(nodes)
        self.put(nodes)
        return tuple(heap.most for heap in self._heaps)

    def count(self, nodes: Iterable[Node]) -> None:
        """Count who reads and who views each source."""
        for node in nodes:
            if node.view_src is not None and node.op:
                node.view_src.n_views += 1
            for source in node.src:
                source.n_children += 1

    def put(self, nodes: Iterable[Node]) -> None:
        """Take bytes for each in turn, and give back those of sources that nobody reads any more.

        Their sources come before them, or are leafs; all are counted.
        """
        heaps = self._heaps
        for node in nodes:
            if isinstance(node, Played):
                heaps[node.backend].play(node)
                continue
            if node.view_src is None and node.buffer is None and not node.is_owned:
                node.is_owned = True
                if node.op not in INPLACE or not self._takes_over(node):
                    node.offset = heaps[node.backend].take((node.n_bytes + 31) & -32)
            for source in node.src:
                source.n_children = left = source.n_children - 1
                if not left and source.buffer is None and not source.n_views:
                    self._release(source)

    def _allocate(self, node: Node) -> None:
        node.is_owned = True
        if node.op not in INPLACE or not self._takes_over(node):
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
