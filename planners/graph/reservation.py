"""Compute buffers of a launch, in bytes per device: its graph drawn, scheduled and allocated.

Exact for llama-server b10434 on the host, on Vulkan and on remote devices; other backends run the
same graph in the order in which it is drawn, and some reserve a little beside it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from planners.graph.allocation import ENDLESS, most_bytes, reserved_bytes
from planners.graph.architectures import draw, odd_layers
from planners.graph.blocks import Builder, Placed
from planners.graph.compute import n_copies, n_outputs, n_tokens
from planners.graph.fallback import can_scan, host_weights, is_remote
from planners.graph.families import DELTA_NETS, KNOWN
from planners.graph.kv_cache import LaunchShape
from planners.graph.outline import MOST_DRAWN_WHOLE, outline
from planners.graph.reorder import reordered
from planners.graph.schedule import Backends, Split, leafs, ordered, split
from planners.graph.tensors import Graph, Node, Undrawn
from planners.hardware import HOST, DeviceId
from planners.model import LayerInfo, LayerKind, ModelInfo

VULKAN = "vulkan"
MOST_DRAWN = 64  # layers in one graph; each takes half a millisecond or two
_TRIED_TOKENS = 16  # of each sequence, in the graph that fused operations are tried with
_RESTRICTED = frozenset({"ssm_scan", "gated_delta_net", "flash_attn", "mul_mat"})
_DELTA_WIDTHS = (16, 32, 64, 128)  # of V's heads (ggml-vulkan.cpp, GATED_DELTA_NET)
# ggml-vulkan.cpp, suballocation_block_size: 1 GiB, or the most that the device lets allocate at
# once. No log tells that, and Vulkan requires it to be 1 GiB at least (maintenance3).
_VULKAN_CHUNK = 1 << 30
_HEAD_STEP = 8  # ggml-vulkan.cpp, FLASH_ATTN_EXT
_TURNS = 3  # splits per device: at its first layer, states go back once; and the model's two ends
_REMEMBERED = 512  # reservations; a placement tries a few dozen
_MODELS = 64  # whose equal layers are known


def is_drawn(model: ModelInfo) -> bool:
    """Whether the model's graph can be drawn: by its own rules, or by its likeness to llama's."""
    is_like = model.architecture in KNOWN or _is_plain(model)
    return is_like and bool(model.layers) and _has_all_tensors(_Known(model))


def is_known(model: ModelInfo) -> bool:
    """Whether the drawing is the engine's own graph, not one alike."""
    return model.architecture in KNOWN


def _is_plain(model: ModelInfo) -> bool:
    """A decoder whose every layer attends, whatever its name."""
    kinds = {layer.kind for layer in model.layers}
    return kinds <= {LayerKind.FULL, LayerKind.SWA}


def compute_bytes(
    model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId]
) -> Mapping[DeviceId, int] | None:
    """Bytes on HOST and on each device of the split; None where the graph is not known.

    `owners`: where each layer lies, the output layer last.
    """
    if not is_drawn(model):
        return None
    try:
        return _drawn(model, shape, owners)
    except (Undrawn, ArithmeticError, LookupError):
        # A file that only claims the architecture: no heads, a matrix without dimensions.
        return None


class _Known(Struct, frozen=True, eq=False):
    """A model, equal to all that have its digest: hashing its tensors would take longer."""

    model: ModelInfo

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and (
            self.model is other.model
            or (bool(self.model.digest) and self.model.digest == other.model.digest)
        )

    def __hash__(self) -> int:
        return hash(self.model.digest)


def _drawn(
    model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId]
) -> Mapping[DeviceId, int]:
    known = _Known(model)
    # Where kinds of layers take turns, what is free lies scattered, and no few stand for all.
    devices = [device for device, _ in shape.split]
    differ = _has_turns(known) and not _masks_alone_differ(model, shape)
    is_mixed = differ and not all(map(is_remote, devices))
    most_whole = MOST_DRAWN if is_mixed else MOST_DRAWN_WHOLE
    sizes, is_torn = _outlined(known, shape, owners, most_whole=most_whole)
    if is_torn and model.n_layer > most_whole:
        # What each of them hands over is held for every batch under way, and never freed.
        return _outlined(known, shape, owners, most_whole=model.n_layer)[0]
    return sizes


def _outlined(
    known: _Known, shape: LaunchShape, owners: Sequence[DeviceId], *, most_whole: int
) -> tuple[Mapping[DeviceId, int], bool]:
    """Bytes, and whether batches under way at once hold more for every layer."""
    model, firsts, odd = known.model, _firsts(known), _odd(known)
    *left, output_left = host_weights(model, shape, owners)
    all_devices = [device for device, _ in shape.split]
    limits = dict(shape.binding_limits)
    kinds = [*zip(firsts, odd, strict=True)]
    alike = _alike(known) if _masks_alone_differ(model, shape) else None
    part = outline(
        kinds, left, owners, devices=all_devices, limits=limits, most_whole=most_whole, alike=alike
    )
    if len(part.layers) > max(MOST_DRAWN, most_whole):
        raise Undrawn(f"{len(part.layers)} layers differ")
    devices = [device for device in all_devices if device in part.stand_in.values()]
    host = len(devices)
    place = {HOST: host} | {device: i for i, device in enumerate(devices)}
    is_whole = HOST not in owners
    sketch = _Sketch(
        known=known,
        # Two splits with one outline have one graph: what tells them apart is left out.
        shape=replace(
            shape, split=(), n_cpu_moe=0, on_host=(), binding_limits=(), host_tiles=False
        ),
        layers=tuple((firsts[i], place[owners[i]], left[i], odd[i]) for i in part.layers),
        is_local=tuple(not is_remote(device) for device in devices),
        bindings=tuple(limits.get(device) for device in devices),
        output=host if output_left else place[owners[-1]],
        last=place[owners[-1]],
        is_whole=is_whole,
        host_works=not is_whole or shape.kv_on_host or any(left) or bool(output_left),
        n_copies=n_copies(shape, is_whole=is_whole),
    )
    sizes, n_splits = _reserved(sketch)
    is_torn = sketch.n_copies > 1 and n_splits > _TURNS * len(devices)
    return {device: sizes[place[stands]] for device, stands in part.stand_in.items()}, is_torn


_Drawn = tuple[int, int, frozenset[str], bool]


class _Sketch(Struct, frozen=True):
    """All that a reservation depends on, its devices without names."""

    known: _Known
    shape: LaunchShape
    layers: tuple[_Drawn, ...]
    """Each layer drawn: one like it, its backend, its weights that stay in host memory, and
    whether it is odd."""
    is_local: tuple[bool, ...]
    bindings: tuple[int | None, ...]
    output: int
    """Where the output's matrix lies."""
    last: int
    """The output layer's backend, whose norm stays there though the matrix may not."""
    is_whole: bool
    """Whether no layer lies on the host."""
    host_works: bool
    """Whether weights or caches beside the input's lie on the host."""
    n_copies: int
    """Batches that are under way at once."""

    @property
    def host(self) -> int:
        """The number of the host's backend: the last."""
        return len(self.is_local)


@lru_cache(maxsize=_REMEMBERED)
def _reserved(sketch: _Sketch) -> tuple[tuple[int, ...], int]:
    """Bytes per backend, and how often a prompt's graph goes from one to another."""
    model, shape = sketch.known.model, sketch.shape
    n = n_tokens(shape)
    is_fused = model.architecture not in DELTA_NETS or _fuses(sketch)
    n_out = min(n, n_outputs(model, shape))
    graph = _drawing(sketch, n=n, n_outputs=n_out, is_fused=is_fused).graph
    splits = split(graph, _backends(sketch))
    prefill = _allocated(splits, graph, sketch)
    if not _reserves_for_decode(sketch):
        return prefill, len(splits)
    decode = _of_decode(sketch, within=None if model.recurrent else prefill)
    return tuple(max(sizes) for sizes in zip(prefill, decode, strict=True)), len(splits)


def _of_decode(sketch: _Sketch, *, within: tuple[int, ...] | None) -> tuple[int, ...]:
    """Bytes per backend for one token per slot; `within` where it needs no more for certain.

    It is small: on most machines all results of a layer of each kind take less, side by side, than
    those of a prompt that follow one another, and no more than one layer's are in use at a time.
    """
    if within is not None:
        # What layers hand on is held for every batch under way: then each of them counts.
        layers = sketch.layers if sketch.n_copies > 1 else _each_once(sketch.layers)
        few = replace(sketch, layers=layers)
        graph = _decode_graph(few)
        splits = split(graph, _backends(few))
        most = most_bytes(ordered(splits), leafs(splits, graph), n_backends=sketch.host + 1)
        if all(size <= limit for size, limit in zip(most, within, strict=True)):
            return within
    graph = _decode_graph(sketch)
    return _allocated(split(graph, _backends(sketch)), graph, sketch)


def _decode_graph(sketch: _Sketch) -> Graph:
    slots = sketch.shape.n_parallel
    return _drawing(sketch, n=slots, n_outputs=slots, is_fused=True).graph


def _each_once(layers: tuple[_Drawn, ...]) -> tuple[_Drawn, ...]:
    """The first of equal layers on one backend, and the last layer, whose rows are picked."""
    return (*dict.fromkeys(layers[:-1]), *layers[-1:])


def _drawing(sketch: _Sketch, *, n: int, n_outputs: int, is_fused: bool) -> Builder:
    """The graph of a batch of `n` tokens, in equal shares for all slots."""
    model, shape, host = sketch.known.model, sketch.shape, sketch.host
    build = Builder(
        model=model,
        shape=shape,
        n=n,
        n_seqs=shape.n_parallel,
        n_outputs=n_outputs,
        host=host,
        is_fused=is_fused,
    )
    layers = [
        Placed(
            layer=model.layers[i],
            backend=backend,
            kv_backend=host if shape.kv_on_host else backend,
            host=host,
            on_host=left,
            is_pinned=sketch.is_whole,
            is_odd=is_odd,
        )
        for i, backend, left, is_odd in sketch.layers
    ]
    draw(build, layers, output=sketch.output, last=sketch.last, host=host)
    return build


def _reserves_for_decode(sketch: _Sketch) -> bool:
    """Whether the graph of one token per slot can need more than the widest batch's.

    The engine reserves for both. States are as large in either, and what lies on the host is
    computed there in small batches.
    """
    return sketch.known.model.recurrent is not None or sketch.host_works


def _fuses(sketch: _Sketch) -> bool:
    """Whether delta nets are one operation: given up for all layers where one would run elsewhere.

    The engine tries a small batch (llama-context.cpp, resolve_fused_ops).
    """
    if not sketch.host_works and _all_fuse(sketch):
        return True
    n = _TRIED_TOKENS * sketch.shape.n_parallel
    build = _drawing(sketch, n=n, n_outputs=n, is_fused=True)
    split(build.graph, _backends(sketch))
    fused = [node.backend for node in build.graph.nodes if node.op == "gated_delta_net"]
    recurrent = [b for i, b, *_ in sketch.layers
                 if sketch.known.model.layers[i].kind is LayerKind.RECURRENT]  # fmt: skip
    return fused == recurrent


@lru_cache(maxsize=_MODELS)
def _has_all_tensors(known: _Known) -> bool:
    layers = known.model.layers
    return all(layer.weights and (layer.n_head_kv or not layer.k_width) for layer in layers)


@lru_cache(maxsize=_MODELS)
def _has_turns(known: _Known) -> bool:
    is_one_kind = len({layer.kind for layer in known.model.layers}) < 2
    return not is_one_kind or sum(a != b for a, b in pairwise(_odd(known))) > 1


def _masks_alone_differ(model: ModelInfo, shape: LaunchShape) -> bool:
    """Whether a window changes nothing of what a layer's results take, wherever it lies.

    Scores are results without flash attention. A device that cannot attend, or that has its caches
    on the host, is sent copies of them, which are as long as the window.
    """
    if not shape.flash_attn or shape.kv_on_host or shape.binding_limits:
        return False
    if shape.backend != VULKAN:
        return True
    if (shape.type_k == "bf16") != (shape.type_v == "bf16"):
        return False
    layers = {id(layer): layer for layer in model.layers}.values()
    widths = ((layer.k_width, layer.v_width, max(layer.n_head_kv, 1)) for layer in layers)
    return not any(k // heads % _HEAD_STEP or v // heads % _HEAD_STEP for k, v, heads in widths)


@lru_cache(maxsize=_MODELS)
def _alike(known: _Known) -> tuple[tuple[int, bool], ...] | None:
    """For each layer the first that equals it but for a window; None where no two kinds do.

    None, too, where kinds that differ in more than that take turns.
    """
    firsts, odd = _firsts(known), _odd(known)
    kinds = {*zip(firsts, odd, strict=True)}
    if {known.model.layers[i].kind for i, _ in kinds} != {LayerKind.FULL, LayerKind.SWA}:
        return None
    first: dict[LayerInfo, int] = {}
    number = {
        i: first.setdefault(replace(known.model.layers[i], kind=LayerKind.FULL), i)
        for i in sorted({*firsts})
    }
    found = tuple((number[i], is_odd) for i, is_odd in zip(firsts, odd, strict=True))
    takes_turns = sum(a != b for a, b in pairwise(found)) > 1
    return None if takes_turns or len({*found}) == len(kinds) else found


@lru_cache(maxsize=_MODELS)
def _odd(known: _Known) -> tuple[bool, ...]:
    return odd_layers(known.model)


@lru_cache(maxsize=_MODELS)
def _firsts(known: _Known) -> tuple[int, ...]:
    """For each layer the first one that equals it."""
    first: dict[LayerInfo, int] = {}
    number: dict[int, int] = {}  # equal layers mostly are one object: hash it once
    for i, layer in enumerate(known.model.layers):
        if id(layer) not in number:
            number[id(layer)] = first.setdefault(layer, i)
    return tuple(number[id(layer)] for layer in known.model.layers)


def _all_fuse(sketch: _Sketch) -> bool:
    """Whether every device has the operation for the model's states."""
    ssm = sketch.known.model.recurrent
    if sketch.shape.backend != VULKAN or not any(sketch.is_local):
        return True
    return ssm is not None and ssm.n_head > 0 and ssm.d_inner // ssm.n_head in _DELTA_WIDTHS


def _allocated(splits: Sequence[Split], graph: Graph, sketch: _Sketch) -> tuple[int, ...]:
    if sketch.shape.backend == VULKAN:
        for run in splits:
            if run.backend < sketch.host and sketch.is_local[run.backend]:
                run.nodes = reordered(run.nodes)
    nodes, first = ordered(splits), leafs(splits, graph)
    return reserved_bytes(nodes, first, chunk_bytes=_chunk_bytes(sketch))


def _chunk_bytes(sketch: _Sketch) -> Sequence[int]:
    """How large a buffer each backend makes; the host's is the first device's where it has some."""
    if sketch.shape.backend != VULKAN:
        return (ENDLESS,) * (sketch.host + 1)
    has_pinned = bool(sketch.is_local) and sketch.is_local[0]
    return [_VULKAN_CHUNK if local else ENDLESS for local in (*sketch.is_local, has_pinned)]


def _backends(sketch: _Sketch) -> Backends:
    is_local, bindings = (*sketch.is_local, False), (*sketch.bindings, None)
    shape, is_vulkan = sketch.shape, sketch.shape.backend == VULKAN
    has_cache = not sketch.known.model.is_encoder
    mixes_bf16 = has_cache and (shape.type_k == "bf16") != (shape.type_v == "bf16")

    def supports(backend: int, node: Node) -> bool:
        if not is_local[backend]:
            return True
        limit = bindings[backend]
        if limit is not None and any(x.n_bytes > limit for x in (node, *node.src)):
            return False
        return node.op not in _RESTRICTED or _runs(node, is_vulkan=is_vulkan, mixes_bf16=mixes_bf16)

    offloads = tuple(local and shape.op_offload for local in is_local)
    return Backends(sketch.host + 1, offloads, supports, sketch.n_copies)


def _runs(node: Node, *, is_vulkan: bool, mixes_bf16: bool) -> bool:
    """Whether a local device runs one of the operations that not all devices run as all others."""
    match node.op:
        case "ssm_scan":
            return _can_scan(node)
        case "gated_delta_net":
            return not is_vulkan or node.src[2].ne[0] in _DELTA_WIDTHS
        case "flash_attn":
            return not is_vulkan or _can_attend(node, mixes_bf16=mixes_bf16)
        case "mul_mat":
            return not is_vulkan or _can_multiply(*node.src)
        case _:
            return True


def _can_multiply(a: Node, b: Node) -> bool:
    """Vulkan repeats no weight over streams, and reads no quantised rows with gaps (MUL_MAT)."""
    if a.ne[3] != b.ne[3]:
        return False
    is_quantised = not float(a.size).is_integer()
    has_gaps = a.nb[1] != a.nb[0] * a.ne[0] or (a.ne[3] > 1 and a.nb[3] != a.nb[2] * a.ne[2])
    return not (is_quantised and has_gaps)


def _can_attend(node: Node, *, mixes_bf16: bool) -> bool:
    """Vulkan attends over bf16 only where K and V are (ggml-vulkan.cpp, FLASH_ATTN_EXT)."""
    _, k, v, *_ = node.src
    return not mixes_bf16 and not k.ne[0] % _HEAD_STEP and not v.ne[0] % _HEAD_STEP


def _can_scan(node: Node) -> bool:
    kept, decay = node.src[0], node.src[3]
    return can_scan(is_mamba_2=decay.ne[0] == 1, d_state=kept.ne[0], head=kept.ne[1])


def forget() -> None:
    """Drop remembered reservations: for those who measure what one takes."""
    _reserved.cache_clear()
    _firsts.cache_clear()
    _has_all_tensors.cache_clear()
    _has_turns.cache_clear()
    _odd.cache_clear()
    _alike.cache_clear()
