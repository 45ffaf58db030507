"""The parts that llama.cpp's graphs share: norms, attention, experts (llama-graph.cpp, b11434)."""

from math import isfinite

from msgspec import Struct, field

from planners.ggml.types import CACHE_TYPES
from planners.graph.kv_cache import LaunchShape, kv_cells
from planners.graph.recording import Player
from planners.graph.tensors import (
    F16,
    F32,
    I32,
    I64,
    Graph,
    Node,
    Undrawn,
    cont,
    full,
    leaf_input,
    like,
    mul_mat,
    needed,
    permute,
    reshape,
    set_rows,
    tensor,
    transpose,
    view,
)
from planners.model import LayerInfo, LayerKind, ModelInfo, WeightInfo

ROTATED_STEP = 64  # quantised caches of such head widths are rotated (llama-kv-cache.cpp)

_SQUARED = ("nemotron", "arcee")


class Placed(Struct, frozen=True):
    """One layer of the graph and where its parts lie, as numbers of backends."""

    layer: LayerInfo
    backend: int
    kv_backend: int
    host: int
    on_host: frozenset[str]
    """Weights that stay in host memory though the layer does not."""
    is_pinned: bool
    """Whether its norms are forced onto the layer's backend: with all layers off the host, or in
    small batches."""
    is_odd: bool = False
    """Whether it is one of those that its architecture treats unlike the others of its shape."""


class Cache(Struct):
    """Inputs that all layers with one kind of KV cache share."""

    k_ids: Node
    v_ids: Node | None
    mask: Node
    k_rotation: Node | None = None
    v_rotation: Node | None = None


class Fused(Struct, frozen=True):
    """Whether delta nets are one operation; not where it would run elsewhere than its layer lies.

    The engine decides it apart for batches of one token per slot, and of several.
    """

    steps: bool = True
    chunks: bool = True


class Builder(Struct):
    """A graph in the making, for one ubatch of `n` tokens."""

    model: ModelInfo
    shape: LaunchShape
    n: int
    n_seqs: int
    n_outputs: int
    host: int
    """The number of the host's backend."""
    graph: Graph = field(default_factory=Graph)
    caches: dict[LayerKind, Cache] = field(default_factory=dict)
    fused: Fused = Fused()
    norm_op: str = "rms_norm"
    """What normalises the stream: by its mean square, or ("norm") by mean and variance."""
    batch_mask: Node | None = None
    """What a layer sees of the batch, where there is no cache."""
    attention_scales: Node | None = None
    """An input of llama4's."""
    player: Player | None = None
    """Where layers like one before need not be drawn; None where all are."""
    _named: dict[int, dict[str, WeightInfo]] = field(default_factory=dict)
    """Weights by name, of each layer met; many are one object."""

    def expand(self, *nodes: Node) -> None:
        """Put nodes into the graph now."""
        for node in nodes:
            self.graph.expand(node)

    def number(self, key: str) -> float:
        """A number of the file's own namespace, 0 where it has none that is finite."""
        name = f"{self.model.architecture}.{key}"
        found = next((v for k, v in self.model.metadata if k == name), None)
        if isinstance(found, int | float) and isfinite(found):
            return found
        return 0

    def scaled(self, x: Node, key: str) -> Node:
        """`x` times the number of that name, where it has any effect."""
        return x if self.number(key) in (0, 1) else like("scale", x)

    # Weights

    def weight(self, at: Placed, name: str) -> Node | None:
        """A layer's weight, None where it has none of that name."""
        named = self._named.get(id(at.layer))
        if named is None:
            named = {weight.name: weight for weight in reversed(at.layer.weights)}
            self._named[id(at.layer)] = named
        if (found := named.get(name)) is None:
            return None
        return _weight(found, at.host if name in at.on_host else at.backend)

    def linear(self, at: Placed, name: str, x: Node) -> Node:
        """A product with a weight. Raises Undrawn where it is missing, or of another width."""
        weight = needed(self.weight(at, f"{name}.weight"), name)
        if weight.ne[0] != x.ne[0]:
            raise Undrawn(f"{name} takes rows of {weight.ne[0]}, not {x.ne[0]}")
        return mul_mat(weight, x)

    def biased(self, at: Placed, name: str, x: Node) -> Node:
        """`x` plus the bias of that name, if there is one."""
        bias = self.weight(at, f"{name}.bias")
        return x if bias is None else like("add", x, bias)

    # Norms

    def norm(self, at: Placed, name: str, x: Node, *, op: str | None = None) -> Node:
        """`x` normalised and weighted (build_norm)."""
        weight, bias = self.weight(at, f"{name}.weight"), self.weight(at, f"{name}.bias")
        x = like(op or self.norm_op, x)
        if weight is None and bias is None:
            return x
        if at.is_pinned:
            x.backend = at.backend
        if weight is not None:
            x = like("mul", x, weight)
        return x if bias is None else like("add", x, bias)

    # Attention

    def attend(
        self,
        at: Placed,
        q: Node,
        k: Node,
        v: Node | None,
        *,
        v_b: Node | None = None,
        sinks: Node | None = None,
    ) -> Node:
        """Attention over the cache, before the output product (build_attn, build_attn_mha)."""
        cache, layer = self.caches[at.layer.kind], at.layer
        q, k, v = self._rotated(cache, q, k, v)
        kv = (v, k) if LayerKind.SWA not in self.caches else (k, v)
        self.expand(q, *(x for x in kv if x is not None))
        cells = kv_cells(self.model, layer, self.shape)
        # One node each for what is written and then read: what views it must not pass the write.
        k_cache, v_cache = self._cache_of(at, "k", cells), self._cache_of(at, "v", cells)
        self.expand(self._store(k_cache, k, cache.k_ids))
        if v is not None and layer.v_width:
            ids = needed(cache.v_ids, "V's indices")
            self.expand(self._store_v(v_cache, v, ids))
        keys = self._read(k_cache, layer.k_width, layer, cells)
        if not layer.v_width:
            values = view(keys, self._latent(at), *keys.ne[1:], nb=keys.nb)
        elif self.shape.has_plain_v:
            values = self._read(v_cache, layer.v_width, layer, cells)
        else:
            values = self._read_transposed(v_cache, layer, cells)
        x = self._mha(q, keys, values, cache.mask, v_b=v_b, sinks=sinks)
        if cache.v_rotation is not None:
            x = self._rotate(x, cache.v_rotation)
        return x

    def attend_batch(self, q: Node, k: Node, v: Node, mask: Node) -> Node:
        """Attention within the batch, as encoders have it."""
        self.expand(q, k, v)
        return self._mha(q, k, v, mask)

    def _mha(
        self,
        q: Node,
        k: Node,
        v: Node,
        mask: Node,
        *,
        v_b: Node | None = None,
        sinks: Node | None = None,
    ) -> Node:
        is_transposed = v.nb[1] > v.nb[2]
        n_stream = k.ne[3]
        q = view(q, q.ne[0], q.ne[1], q.ne[2] // n_stream, n_stream,
                 nb=(q.nb[0], q.nb[1], q.nb[2], q.nb[2] * (q.ne[2] // n_stream)))  # fmt: skip
        q, k, v = (permute(x, 0, 2, 1, 3) for x in (q, k, v))
        extra = () if sinks is None else (sinks,)
        if self.shape.flash_attn:
            x = self._flash(q, k, v, mask, extra, v_b=v_b)
        else:
            scores = mul_mat(k, q)
            if self.model.architecture == "gemma2":
                for op in ("scale", "unary", "scale"):
                    scores = like(op, scores)
            scores = like("soft_max", scores, mask, *extra)
            if not is_transposed:
                v = cont(transpose(v))
            x = mul_mat(v, scores)
            if v_b is not None:
                x = mul_mat(v_b, x)
            x = permute(x, 0, 2, 1, 3)
            x = cont(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])
            if self.shape.kv_on_host:
                x.backend = self.host
        self.expand(x)
        return x

    def _flash(
        self, q: Node, k: Node, v: Node, mask: Node, extra: tuple[Node, ...], *, v_b: Node | None
    ) -> Node:
        k, v = (tensor("cpy", x.ne, size=F16, src=(x,)) if x.size == F32 else x for x in (k, v))
        ne = (v.ne[0], q.ne[2], q.ne[1], q.ne[3])
        x = tensor("flash_attn", ne, src=(q, k, v, mask, *extra))
        if v_b is not None:
            x = mul_mat(v_b, permute(x, 0, 2, 1, 3))
            x = cont(permute(x, 0, 2, 1, 3))
        return reshape(x, x.ne[0] * x.ne[1], x.ne[2] * x.ne[3])

    def _latent(self, at: Placed) -> int:
        """Width of the part of an MLA row that serves as V."""
        found = at.layer.weight("attn_v_b.weight")
        return found.shape[0] if found is not None else at.layer.k_width

    def _cache_of(self, at: Placed, part: str, cells: int) -> Node:
        layer = at.layer
        width = layer.k_width if part == "k" else layer.v_width
        if part == "v" and not self.shape.has_plain_v:
            width = max(other.v_width for other in self.model.layers)
        kind = CACHE_TYPES[self.shape.type_k if part == "k" else self.shape.type_v]
        size = kind.block_bytes / kind.block
        node = tensor("", full(width, cells, self.shape.n_stream), size=size)
        node.n_bytes, node.buffer = int(width * cells * self.shape.n_stream * size), at.kv_backend
        return node

    def _store(self, cache: Node, x: Node, ids: Node) -> Node:
        width = x.ne[0] * x.ne[1]
        rows = view(x, width, x.ne[2], nb=(x.nb[0], x.nb[2], x.nb[2], x.nb[2]))
        return set_rows(self._merged(cache), rows, ids)

    def _merged(self, cache: Node) -> Node:
        if cache.ne[2] == 1:
            return cache
        return reshape(cache, cache.ne[0], cache.ne[1] * cache.ne[2])

    def _store_v(self, cache: Node, x: Node, ids: Node) -> Node:
        if self.shape.has_plain_v:
            return self._store(cache, x, ids)
        width = x.ne[0] * x.ne[1]
        is_plain = x.nb[2] == width * x.size
        x = reshape(x, width, x.ne[2]) if is_plain else cont(x, width, x.ne[2])
        if width < cache.ne[0]:
            x = tensor("pad", full(cache.ne[0], x.ne[1]), src=(x,))
        elements = cache.ne[0] * cache.ne[1] * cache.ne[2]
        return set_rows(reshape(cache, 1, elements), reshape(x, 1, x.ne[0] * x.ne[1]), ids)

    def _read(self, cache: Node, width: int, layer: LayerInfo, cells: int) -> Node:
        heads = max(layer.n_head_kv, 1)
        head, size = width // heads, cache.size
        row = cache.ne[0] * size
        return view(cache, head, heads, cells, self.shape.n_stream,
                    nb=(size, head * size, row, row * cells))  # fmt: skip

    def _read_transposed(self, cache: Node, layer: LayerInfo, cells: int) -> Node:
        heads = max(layer.n_head_kv, 1)
        head, size = layer.v_width // heads, cache.size
        return view(cache, cells, heads, head, self.shape.n_stream,
                    nb=(size, cells * head * size, cells * size,
                        cells * cache.ne[0] * size))  # fmt: skip

    def _rotated(
        self, cache: Cache, q: Node, k: Node, v: Node | None
    ) -> tuple[Node, Node, Node | None]:
        if cache.k_rotation is not None:
            q, k = self._rotate(q, cache.k_rotation), self._rotate(k, cache.k_rotation)
        if cache.v_rotation is not None and v is not None:
            v = self._rotate(v, cache.v_rotation)
        return q, k, v

    def _rotate(self, x: Node, rotation: Node) -> Node:
        """A product with a Hadamard matrix over pieces of each head."""
        ne = x.ne
        if x.nb[1] != x.ne[0] * x.size:
            x = cont(x)
        total = ne[0] * ne[1] * ne[2] * ne[3]
        x = mul_mat(rotation, reshape(x, rotation.ne[0], total // rotation.ne[0]))
        return reshape(x, *ne)

    # Feed-forward

    def ffn(self, at: Placed, x: Node, *, suffix: str = "") -> Node:
        """Up, gate and down (build_ffn); what the layer has decides."""
        up = self.biased(at, f"ffn_up{suffix}", self.linear(at, f"ffn_up{suffix}", x))
        if self.weight(at, f"ffn_gate{suffix}.weight") is not None:
            gate = self.linear(at, f"ffn_gate{suffix}", x)
            x = like("glu", self.biased(at, f"ffn_gate{suffix}", gate), up)
        elif self.model.architecture.startswith(_SQUARED):
            x = like("sqr", like("unary", up))
        elif self._has_gate_within(at, f"ffn_down{suffix}", up):
            x = tensor("glu", (up.ne[0] // 2, *up.ne[1:]), src=(up,))
        else:
            x = like("unary", up)
        x = self.linear(at, f"ffn_down{suffix}", x)
        return self.biased(at, f"ffn_down{suffix}", x)

    def _has_gate_within(self, at: Placed, down: str, up: Node) -> bool:
        """Whether the first half of `up` is the gate of the rest, as in phi3, glm4 and chatglm."""
        weight = self.weight(at, f"{down}.weight")
        return weight is not None and up.ne[0] == 2 * weight.ne[0]

    # Inputs

    def ids(self, n: int, *, size: float = I32) -> Node:
        """An input of indices."""
        return leaf_input(n, size=size)

    def cache(self, kind: LayerKind) -> Cache:
        """The inputs of one kind of cache, made once."""
        layer = next(x for x in self.model.layers if x.kind is kind)
        has_v = layer.v_width > 0
        widest = max(x.v_width for x in self.model.layers)
        v_ids = self.n if self.shape.has_plain_v else self.n * widest
        cells, n_stream = kv_cells(self.model, layer, self.shape), self.shape.n_stream
        heads = max(layer.n_head_kv, 1)
        size = F16 if self.shape.flash_attn else F32
        made = Cache(
            k_ids=self.ids(self.n, size=I64),
            v_ids=self.ids(v_ids, size=I64) if has_v else None,
            mask=leaf_input(cells, self.n // n_stream, 1, n_stream, size=size),
        )
        if has_v:  # MLA's one cache is left as it is
            made.k_rotation = _rotation(self.shape.type_k, layer.k_width // heads, is_key=True)
            made.v_rotation = _rotation(self.shape.type_v, layer.v_width // heads, is_key=False)
        self.caches[kind] = made
        return made


def _rotation(cache_type: str, head: int, *, is_key: bool) -> Node | None:
    """The Hadamard matrix that a quantised cache's heads are turned by, None where they are not."""
    if CACHE_TYPES[cache_type].block == 1 or not head or head % ROTATED_STEP:
        return None
    width = ROTATED_STEP
    while is_key and head % (2 * width) == 0:
        width *= 2
    return leaf_input(width, width)


def _weight(found: WeightInfo, backend: int) -> Node:
    node = tensor("", full(*found.shape), n_bytes=found.n_bytes)
    node.is_weight, node.buffer = True, backend
    return node


def head_weight(found: WeightInfo | None, backend: int) -> Node | None:
    """A weight outside of blocks."""
    return None if found is None else _weight(found, backend)
