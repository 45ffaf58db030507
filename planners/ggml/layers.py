"""What each repeating block of an architecture keeps between tokens: kinds, widths and states.

The rules are llama.cpp's (src/llama-hparams.cpp, src/llama-model.cpp and src/models/*, b11434).
"""

from msgspec import Struct, field

from planners.ggml.header import GgufArray, GgufHeader, Scalar, Tensor
from planners.model import DIFFUSERS, LayerInfo, LayerKind, RecurrentShape, WeightInfo

MAX_LAYERS = 512  # the deepest model so far has 162 (Nemotron Ultra 253B)
USUAL_HEAD = 128  # elements; what most models of today have
MAX_WIDTH = 1 << 31  # llama.cpp holds widths in uint32

ENCODERS = frozenset({
    "bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "neo-bert",
    "modern-bert", "eurobert", "gemma-embedding", "t5encoder",
})  # fmt: skip
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_RWKV = _RECURRENT - {"mamba", "mamba2"}
_HYBRID_BY_HEADS = frozenset({"jamba", "granitehybrid", "lfm2", "lfm2moe", "plamo2", "kimi-linear"})
_HYBRID_BY_FFN = frozenset({"nemotron_h", "nemotron_h_moe"})
_HYBRID_BY_PERIOD = frozenset({"qwen3next", "qwen35", "qwen35moe"})
_BOTH = frozenset({"falcon-h1"})
_SWA_PERIOD = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4, "llama4": 4, "exaone4": 4,
    "olmo2": 4, "plamo3": 8, "afmoe": 4, "smallthinker": 4, "exaone-moe": 4, "mellum": 4,
    "muse-glimmer": 4, "cohere2moe": 4, "laguna": 4,
}  # fmt: skip
_INDEXED = frozenset({"deepseek32", "glm-dsa", "minimax-m3"})
_EXAONE_LAYERS = 64
_LLAMA4_CHUNK = 8192
_ROPE_PERIOD = 4
_SWA_FROM_SECOND = frozenset(
    {"smallthinker", "cohere2moe", "laguna"}
)  # the first of each period sees all


class Facts(Struct):
    """Typed look-ups in a header's metadata; what was missing or odd collects in `warnings`."""

    header: GgufHeader
    architecture: str
    warnings: list[str] = field(default_factory=list)

    def scalar(self, key: str) -> Scalar | None:
        """The value of a key, None where it is missing or an array."""
        value = self.header.pairs.get(key)
        return None if isinstance(value, GgufArray) else value

    def integer(self, key: str) -> int | None:
        """A sane whole number of the architecture's own namespace."""
        value = self.header.pairs.get(f"{self.architecture}.{key}")
        if isinstance(value, GgufArray):
            value = max((v for v in value.items or () if isinstance(v, int)), default=None)
        if value is None or isinstance(value, str):
            return None
        if not 0 <= value < MAX_WIDTH:
            self.warnings.append(f"{self.architecture}.{key} is {value}: ignored")
            return None
        return int(value)

    def expected(self, key: str, default: int) -> int:
        """Like `integer`, with a default that is told."""
        value = self.integer(key)
        if value is None:
            self.warnings.append(f"{self.architecture}.{key} is missing: taken to be {default}")
            return default
        return value

    def per_layer(self, key: str, n_layer: int) -> tuple[int, ...] | None:
        """One number per layer, from an array or a number for all; None where missing."""
        value = self.header.pairs.get(f"{self.architecture}.{key}")
        if isinstance(value, GgufArray) and value.items:
            kept = [int(v) if isinstance(v, int) and 0 <= v < MAX_WIDTH else 0 for v in value.items]
            if len(kept) < n_layer:
                self.warnings.append(
                    f"{self.architecture}.{key} has {len(kept)} items for {n_layer} layers: "
                    "the last one is repeated"
                )
            return tuple((kept + kept[-1:] * n_layer)[:n_layer])
        whole = self.integer(key)
        return None if whole is None else (whole,) * n_layer


def layers(
    facts: Facts, tensors: tuple[tuple[Tensor, ...], ...], *, n_embd: int
) -> tuple[LayerInfo, ...]:
    """Every repeating block, given the tensors of each."""
    n_layer = len(tensors)
    heads = facts.per_layer("attention.head_count", n_layer)
    if heads is None:
        heads = (_default_heads(facts, tensors, n_embd=n_embd),) * n_layer
    heads_kv = facts.per_layer("attention.head_count_kv", n_layer) or heads
    widths_ff = facts.per_layer("feed_forward_length", n_layer)
    if widths_ff is None:
        widths_ff = (_default_width(facts, tensors),) * n_layer
    kinds = _kinds(facts, heads=heads, heads_kv=heads_kv, widths_ff=widths_ff)
    head_width = n_embd // max(heads) if max(heads, default=0) else 0
    found = []
    for i, kind in enumerate(kinds):
        key, value = _head_widths(facts, kind, default=head_width)
        is_latent = facts.integer("attention.key_length_mla") is not None
        keeps = kind in (LayerKind.FULL, LayerKind.SWA)
        found.append(
            _layer(
                tensors[i],
                kind=kind,
                n_head=heads[i],
                n_head_kv=1 if is_latent and keeps else heads_kv[i],
                key_width=key,
                # MLA keeps one latent row per token, from which V is read too.
                value_width=0 if is_latent else value,
                n_ff=widths_ff[i],
                n_ff_expert=facts.integer("expert_feed_forward_length") or widths_ff[i],
                index_widths=_index_widths(facts, i, v_head=value),
                state_width=state_width(facts, kind, n_embd=n_embd, n_head=heads[i]),
                has_rope=_has_rope(facts, i, kind, kinds),
            )
        )
    return tuple(found)


def _default_heads(facts: Facts, tensors: tuple[tuple[Tensor, ...], ...], *, n_embd: int) -> int:
    """Heads of USUAL_HEAD elements where the file does not count them; 0 where nothing attends."""
    attends = _first(tensors, ("attn_q.weight", "attn_qkv.weight")) is not None
    if facts.architecture == "clip" or not attends:
        return 0
    return facts.expected("attention.head_count", max(1, n_embd // USUAL_HEAD))


def _default_width(facts: Facts, tensors: tuple[tuple[Tensor, ...], ...]) -> int:
    """The width of the feed-forward network by its tensor; 0 where there is none."""
    up = _first(tensors, ("ffn_up.weight",))
    if facts.architecture == "clip" or up is None or len(up.shape) < 2:
        return 0
    return facts.expected("feed_forward_length", up.shape[1])


def _first(tensors: tuple[tuple[Tensor, ...], ...], names: tuple[str, ...]) -> Tensor | None:
    """The first tensor of any block with one of these names."""
    return next((t for block in tensors for t in block if t.name.endswith(names)), None)


def _layer(
    tensors: tuple[Tensor, ...],
    *,
    kind: LayerKind,
    n_head: int,
    n_head_kv: int,
    key_width: int,
    value_width: int,
    n_ff: int,
    n_ff_expert: int,
    index_widths: tuple[int, int],
    state_width: int,
    has_rope: bool,
) -> LayerInfo:
    parts = {tensor.name.split(".", 2)[-1] for tensor in tensors}
    expert_bytes = sum(tensor.n_bytes for tensor in tensors if is_expert(tensor.name))
    keeps = kind in (LayerKind.FULL, LayerKind.SWA)
    return LayerInfo(
        weight_bytes=sum(tensor.n_bytes for tensor in tensors),
        expert_bytes=expert_bytes,
        kind=kind,
        n_head=n_head,
        n_head_kv=n_head_kv,
        k_width=n_head_kv * key_width if keeps else 0,
        v_width=n_head_kv * value_width if keeps else 0,
        n_ff=n_ff_expert if expert_bytes else n_ff,
        q_width=n_head * key_width,
        index_width=index_widths[0] if keeps else 0,
        index_v_width=index_widths[1] if keeps else 0,
        state_width=state_width,
        has_gate=any(part.startswith("ffn_gate") and "inp" not in part for part in parts),
        has_qk_norm="attn_q_norm.weight" in parts,
        has_rope=has_rope,
        weights=tuple(
            WeightInfo(_within_block(t.name), t.shape, t.n_bytes, t.type_name) for t in tensors
        ),
    )


def _has_rope(facts: Facts, i: int, kind: LayerKind, kinds: tuple[LayerKind, ...]) -> bool:
    """Not every layer knows positions: some skip every fourth, others those without a window."""
    is_windowed = LayerKind.SWA in kinds
    if facts.architecture == "smollm3" or (facts.architecture == "llama4" and is_windowed):
        return (i + 1) % _ROPE_PERIOD != 0
    is_windowed = is_windowed and facts.architecture in ("exaone4", "cohere2")
    return not is_windowed or kind is LayerKind.SWA


def _within_block(name: str) -> str:
    """ "attn_q.weight" of "blk.7.attn_q.weight"; a name outside of blocks as it is."""
    _, is_block, rest = name.partition("blk.")
    return rest.partition(".")[2] if is_block else name


def is_expert(name: str) -> bool:
    """True for the tensors that `--cpu-moe` keeps on the host: `ffn_(up|down|gate)_(ch|)exps`."""
    return "_exps" in name or "_chexps" in name


def _index_widths(facts: Facts, i: int, *, v_head: int) -> tuple[int, int]:
    """Elements of an indexer's one key per token, and of the V that is kept beside it.

    llama-kv-cache-dsa.cpp; minimax-m3's keeps a head of V, which nobody reads, and has no indexer
    in its first, dense layers (llama-kv-cache-msa.cpp).
    """
    if facts.architecture not in _INDEXED:
        return 0, 0
    key = facts.integer("attention.indexer.key_length") or 0
    if facts.architecture != "minimax-m3":
        return key, 0
    is_dense = i < (facts.integer("leading_dense_block_count") or 0)
    return (0, 0) if is_dense else (key, v_head)


def _head_widths(facts: Facts, kind: LayerKind, *, default: int) -> tuple[int, int]:
    key = facts.integer("attention.key_length")
    value = facts.integer("attention.value_length")
    if kind is LayerKind.SWA:
        key = facts.integer("attention.key_length_swa") or key
        value = facts.integer("attention.value_length_swa") or value
    return default if key is None else key, default if value is None else value


def _kinds(
    facts: Facts, *, heads: tuple[int, ...], heads_kv: tuple[int, ...], widths_ff: tuple[int, ...]
) -> tuple[LayerKind, ...]:
    """The kind of every layer."""
    arch, n_layer = facts.architecture, len(heads)
    if arch in ENCODERS or arch in DIFFUSERS:
        return (LayerKind.NONE,) * n_layer
    if arch in _RECURRENT:
        return (LayerKind.RECURRENT,) * n_layer
    if arch in _HYBRID_BY_HEADS:
        kinds = [LayerKind.FULL if n else LayerKind.RECURRENT for n in heads_kv]
    elif arch in _HYBRID_BY_FFN:
        kinds = [
            LayerKind.NONE if n_ff else LayerKind.FULL if n else LayerKind.RECURRENT
            for n, n_ff in zip(heads_kv, widths_ff, strict=True)
        ]
    elif arch in _HYBRID_BY_PERIOD:
        period = facts.integer("full_attention_interval") or 4
        kinds = [
            LayerKind.RECURRENT if (i + 1) % period else LayerKind.FULL for i in range(n_layer)
        ]
    else:
        kinds = _windows(facts, n_layer)
    return _without_unused(facts, kinds, heads_kv)


def _windows(facts: Facts, n_layer: int) -> list[LayerKind]:
    """FULL or SWA, by the pattern in the file or by the architecture's own."""
    arch = facts.architecture
    if not sliding_window(facts):
        return [LayerKind.FULL] * n_layer
    pattern = facts.header.pairs.get(f"{arch}.attention.sliding_window_pattern")
    if isinstance(pattern, GgufArray) and pattern.items:
        told = (pattern.items * n_layer)[:n_layer]
        return [LayerKind.SWA if flag else LayerKind.FULL for flag in told]
    period = facts.integer("attention.sliding_window_pattern") or _SWA_PERIOD.get(arch, 1)
    if arch in _SWA_FROM_SECOND:
        return [LayerKind.SWA if i % period else LayerKind.FULL for i in range(n_layer)]
    return [LayerKind.SWA if i % period < period - 1 else LayerKind.FULL for i in range(n_layer)]


def sliding_window(facts: Facts) -> int:
    """The window in tokens; 0 where the engine uses none, as for llama, qwen2 and phi3."""
    told = f"{facts.architecture}.attention.sliding_window_pattern" in facts.header.pairs
    if facts.architecture not in _SWA_PERIOD and not told:
        return 0
    if facts.architecture == "exaone4" and facts.integer("block_count") != _EXAONE_LAYERS:
        return 0  # its loader knows the window of the 32B alone
    window = facts.integer("attention.sliding_window")
    if facts.architecture == "llama4":
        return 0 if window == 0 else _LLAMA4_CHUNK  # whatever else the file says
    return window if window else facts.integer("attention.chunk_size") or 0


def _without_unused(
    facts: Facts, kinds: list[LayerKind], heads_kv: tuple[int, ...]
) -> tuple[LayerKind, ...]:
    """`kinds`, with NONE for layers that read an earlier one's cache and for nextn blocks."""
    n_layer = len(kinds)
    shared = facts.integer("attention.shared_kv_layers") or 0
    nextn = facts.integer("nextn_predict_layers") or 0
    first_unused = n_layer - min(n_layer, max(shared, nextn))
    attends = (LayerKind.FULL, LayerKind.SWA)
    return tuple(
        LayerKind.NONE if kind in attends and (i >= first_unused or not heads_kv[i]) else kind
        for i, kind in enumerate(kinds)
    )


def recurrent_shape(facts: Facts) -> RecurrentShape | None:
    """The `ssm.*` dimensions, None where there are none."""
    d_inner, d_state = facts.integer("ssm.inner_size"), facts.integer("ssm.state_size")
    if not d_inner or not d_state:
        return None
    return RecurrentShape(
        d_inner=d_inner,
        d_state=d_state,
        n_group=facts.integer("ssm.group_count") or 0,
        n_head=facts.integer("ssm.time_step_rank") or 0,
        n_taps=facts.integer("ssm.conv_kernel") or 4,
    )


def state_width(facts: Facts, kind: LayerKind, *, n_embd: int, n_head: int) -> int:
    """Elements of recurrent state that one sequence keeps in one layer; 0 where it keeps none."""
    arch = facts.architecture
    if kind is not LayerKind.RECURRENT and arch not in _BOTH:
        return 0
    if arch in _RWKV:
        shifts = facts.integer("token_shift_count") or 2
        return shifts * n_embd + n_embd * (facts.integer("wkv.head_size") or 0)
    if arch in ("lfm2", "lfm2moe"):
        return n_embd * max((facts.integer("shortconv.l_cache") or 0) - 1, 0)
    taps = max((facts.integer("ssm.conv_kernel") or 0) - 1, 0)
    if width := facts.integer("kda.head_dim"):
        return 3 * taps * n_head * width + width * width * n_head
    shape = recurrent_shape(facts)
    if shape is None:
        return 0
    convolution = taps * (shape.d_inner + 2 * shape.n_group * shape.d_state)
    return convolution + shape.d_state * shape.d_inner
