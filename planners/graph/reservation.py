"""Compute buffers of a launch, in bytes per device: its graph drawn, scheduled and allocated.

Exact for llama-server b10434 on the host, on Vulkan and on remote devices; other backends run the
same graph in the order in which it is drawn, and some reserve a little beside it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from planners.graph.allocation import PlayedBefore, most_bytes, reserved_bytes
from planners.graph.architectures import draw
from planners.graph.blocks import Builder, Fused, Placed
from planners.graph.compute import n_copies, n_outputs, n_tokens
from planners.graph.fallback import host_weights, is_remote
from planners.graph.families import DELTA_NETS, KNOWN
from planners.graph.kinds import forget_kinds
from planners.graph.kv_cache import F32_BYTES, LaunchShape
from planners.graph.likeness import (
    Known,
    alike_but_for_masks,
    first_equals,
    forget_models,
    has_all_tensors,
    has_turns,
    masks_alone_differ,
    oddities,
)
from planners.graph.outline import MOST_DRAWN_WHOLE, outline
from planners.graph.recording import Player
from planners.graph.reorder import Orders, reordered, reordered_around_played
from planners.graph.schedule import Split, leafs, ordered, split
from planners.graph.sketch import (
    Sketch,
    backends_of,
    chunk_sizes,
    each_once,
    forget_recordings,
    gathered,
    player_of,
)
from planners.graph.support import VULKAN, fuses_delta_net
from planners.graph.tensors import Graph, Undrawn
from planners.hardware import HOST, DeviceId
from planners.model import DIFFUSERS, LayerKind, ModelInfo

MOST_DRAWN = 64  # layers in one graph; each takes half a millisecond or two
_TRIED_TOKENS = 16  # of each sequence, in the graph that fused operations are tried with
_PINNED_BELOW = 32  # tokens: norms of smaller batches are (llama-context.cpp, graph_get_cb)
_OUTPUTS = frozenset({"output.weight", "token_embd.weight"})
_OUTPUT_NORMS = frozenset({"output_norm.weight"})
_TURNS = 3  # splits per device: at its first layer, states go back once; and the model's two ends
_REMEMBERED = 512  # reservations; a placement tries a few dozen


def is_drawn(model: ModelInfo) -> bool:
    """Whether the model's graph can be drawn: by its own rules, or by its likeness to llama's."""
    is_like = model.architecture in KNOWN or _is_plain(model)
    return is_like and bool(model.layers) and has_all_tensors(Known(model))


def is_known(model: ModelInfo) -> bool:
    """Whether the drawing is the engine's own graph, not one alike."""
    return model.architecture in KNOWN


def _is_plain(model: ModelInfo) -> bool:
    """A decoder whose every layer attends, whatever its name."""
    kinds = {layer.kind for layer in model.layers}
    return model.architecture in DIFFUSERS or kinds <= {LayerKind.FULL, LayerKind.SWA}


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


def _drawn(
    model: ModelInfo, shape: LaunchShape, owners: Sequence[DeviceId]
) -> Mapping[DeviceId, int]:
    known = Known(model)
    most_whole = MOST_DRAWN if _is_scattered(known, shape) else MOST_DRAWN_WHOLE
    sizes, is_torn = _outlined(known, shape, owners, most_whole=most_whole)
    if is_torn:
        # What each of them hands over is held for every batch under way, and never freed.
        return _outlined(known, shape, owners, most_whole=model.n_layer, is_torn=True)[0]
    return sizes


def _is_scattered(known: Known, shape: LaunchShape) -> bool:
    """Whether what is free lies scattered, so that no few layers stand for all.

    It does where kinds of layers take turns; and on a remote device where a layer goes to the host
    and back, for a weight or a cache, or the one device's states are as large as its results.
    """
    if has_turns(known) and _alike(known, shape) is None:
        return True
    is_parted = bool(shape.on_host) or shape.kv_on_host or known.model.recurrent is not None
    return is_parted and any(is_remote(device) for device, _ in shape.split)


def _alike(known: Known, shape: LaunchShape) -> tuple[tuple[int, bool], ...] | None:
    return alike_but_for_masks(known) if masks_alone_differ(known.model, shape) else None


def _outlined(
    known: Known,
    shape: LaunchShape,
    owners: Sequence[DeviceId],
    *,
    most_whole: int,
    is_torn: bool = False,
) -> tuple[Mapping[DeviceId, int], bool]:
    """Bytes, and whether batches under way at once hold more for every layer."""
    left = host_weights(known.model, shape, owners)
    devices = [device for device, _ in shape.split]
    kinds = [*zip(first_equals(known), oddities(known), strict=True)]
    part = outline(
        kinds, left[:-1], owners, devices=devices, limits=dict(shape.binding_limits),
        most_whole=most_whole, alike=_alike(known, shape), is_torn=is_torn,
    )  # fmt: skip
    if len(part.layers) > max(MOST_DRAWN, most_whole):
        raise Undrawn(f"{len(part.layers)} layers differ")
    drawn = [device for device in devices if device in part.stand_in.values()]
    place = {device: i for i, device in enumerate((*drawn, HOST))}
    sizes, is_torn = _reserved(_sketched(known, shape, owners, left, part.layers, place))
    return {device: sizes[place[stands]] for device, stands in part.stand_in.items()}, is_torn


def _sketched(
    known: Known,
    shape: LaunchShape,
    owners: Sequence[DeviceId],
    left: Sequence[frozenset[str]],
    layers: Sequence[int],
    place: Mapping[DeviceId, int],
) -> Sketch:
    """The graph of those layers, each device and at last the host by its place."""
    firsts, odd, limits = first_equals(known), oddities(known), dict(shape.binding_limits)
    is_whole, devices = HOST not in owners, [device for device in place if device != HOST]
    # Two splits with one outline have one graph: what tells them apart is left out.
    bare = replace(shape, split=(), n_cpu_moe=0, on_host=(), binding_limits=(), host_tiles=False)
    return Sketch(
        known=known,
        shape=bare,
        layers=tuple((firsts[i], place[owners[i]], left[i], odd[i]) for i in layers),
        is_local=tuple(not is_remote(device) for device in devices),
        bindings=tuple(limits.get(device) for device in devices),
        output=place[HOST] if left[-1] & _OUTPUTS else place[owners[-1]],
        last=place[HOST] if left[-1] & _OUTPUT_NORMS else place[owners[-1]],
        is_whole=is_whole,
        host_works=not is_whole or shape.kv_on_host or any(left),
        n_copies=n_copies(shape, is_whole=is_whole),
    )


@lru_cache(maxsize=_REMEMBERED)
def _reserved(sketch: Sketch) -> tuple[tuple[int, ...], bool]:
    """Bytes per backend, and whether each layer hands on something that is held for all batches."""
    model, shape = sketch.known.model, sketch.shape
    n = n_tokens(shape)
    fused = _fused(sketch) if model.architecture in DELTA_NETS else Fused()
    n_out = min(n, n_outputs(model, shape))
    backends = backends_of(sketch)
    player = player_of(sketch, backends, fused)
    graph = _drawing(sketch, n=n, n_outputs=n_out, fused=fused, player=player).graph
    splits = split(graph, backends)
    is_torn = sketch.n_copies > 1 and len(splits) > _TURNS * sketch.host
    prefill = _allocated(splits, graph, sketch, player.recordings.played)
    if prefill is None:
        graph = _drawing(sketch, n=n, n_outputs=n_out, fused=fused).graph
        prefill = _allocated_plainly(graph, sketch)
    if not _reserves_for_decode(sketch):
        return prefill, is_torn
    decode = _of_decode(sketch, fused, within=prefill, is_torn=is_torn)
    return tuple(max(sizes) for sizes in zip(prefill, decode, strict=True)), is_torn


def _of_decode(
    sketch: Sketch, fused: Fused, *, within: tuple[int, ...], is_torn: bool
) -> tuple[int, ...]:
    """Bytes per backend for one token per slot; `within` where it needs no more for certain.

    It is small: on most machines all results of a layer of each kind take less, side by side, than
    those of a prompt that follow one another, and no more than one layer's are in use at a time.
    Twice that is enough wherever in the buffer they lie: below what comes to a layer or above it.
    """
    is_told = (
        not is_torn
        and sketch.host > 1
        and len({*zip(sketch.is_local, sketch.bindings, strict=True)}) < 2
    )
    if is_told and _is_within(gathered(sketch), fused, within):
        return within
    # What torn layers hand on is held for every batch under way: then each of them counts, once.
    few = sketch if is_torn else replace(sketch, layers=each_once(sketch.layers))
    most = _most_of_decode(few, fused)
    times = 1 if is_torn else 2
    if all(times * size <= limit for size, limit in zip(most, within, strict=True)):
        return within
    return _allocated_plainly(_decode_graph(sketch, fused), sketch)


def _is_within(alone: Sketch, fused: Fused, within: tuple[int, ...]) -> bool:
    """Whether one device alone, and the host beside it, need no more than any of them has.

    It has no neighbour that hands something on: that is added, once for each batch under way.
    """
    handed = F32_BYTES * alone.known.model.n_embd * alone.shape.n_parallel
    handed *= alone.n_copies
    *devices, host = within
    *mosts, on_host = (2 * (size + handed) for size in _most_of_decode(alone, fused))
    return on_host <= host and max(mosts, default=0) <= min(devices, default=0)


@lru_cache(maxsize=_REMEMBERED)
def _most_of_decode(sketch: Sketch, fused: Fused) -> tuple[int, ...]:
    """Per backend all results of a decode side by side."""
    graph = _decode_graph(sketch, fused)
    splits = split(graph, backends_of(sketch))
    return most_bytes(ordered(splits), leafs(splits, graph), n_backends=sketch.host + 1)


def _decode_graph(sketch: Sketch, fused: Fused) -> Graph:
    slots = sketch.shape.n_parallel
    return _drawing(sketch, n=slots, n_outputs=slots, fused=fused).graph


def _drawing(
    sketch: Sketch, *, n: int, n_outputs: int, fused: Fused, player: Player | None = None
) -> Builder:
    """The graph of a batch of `n` tokens, in equal shares for all slots."""
    model, shape, host = sketch.known.model, sketch.shape, sketch.host
    build = Builder(
        model=model,
        shape=shape,
        n=n,
        n_seqs=shape.n_parallel,
        n_outputs=n_outputs,
        host=host,
        fused=fused,
        player=player,
    )
    layers = [
        Placed(
            layer=model.layers[i],
            backend=backend,
            kv_backend=host if shape.kv_on_host else backend,
            host=host,
            on_host=left,
            is_pinned=sketch.is_whole or n < _PINNED_BELOW,
            is_odd=is_odd,
        )
        for i, backend, left, is_odd in sketch.layers
    ]
    draw(build, layers, output=sketch.output, last=sketch.last, host=host)
    return build


def _reserves_for_decode(sketch: Sketch) -> bool:
    """Whether the graph of one token per slot can need more than the widest batch's.

    The engine reserves for both. States are as large in either, and what lies on the host is
    computed there in small batches.
    """
    return sketch.known.model.recurrent is not None or sketch.host_works


def _fused(sketch: Sketch) -> Fused:
    """Which delta nets are one operation: none of a kind where one of them would run elsewhere.

    The engine tries a batch of one token per slot, and then one of a few.
    """
    has_others = sketch.shape.backend == VULKAN and any(sketch.is_local)
    if not sketch.host_works and (not has_others or fuses_delta_net(sketch.known.model)):
        return Fused()
    # Where it runs is decided within its layer, which has weights before it and a state behind it.
    few = replace(sketch, layers=each_once(sketch.layers))
    steps = _stays(few, Fused(), each=1)
    return Fused(steps, _stays(few, Fused(steps), each=_TRIED_TOKENS))


def _stays(few: Sketch, fused: Fused, *, each: int) -> bool:
    """Whether the operation runs where its layer lies, for batches of `each` tokens per slot."""
    n = each * few.shape.n_parallel
    build = _drawing(few, n=n, n_outputs=n, fused=fused)
    split(build.graph, backends_of(few))
    chosen = [node.backend for node in build.graph.nodes if node.op == "gated_delta_net"]
    return chosen == [b for i, b, *_ in few.layers
                      if few.known.model.layers[i].kind is LayerKind.RECURRENT]  # fmt: skip


def _allocated(
    splits: Sequence[Split], graph: Graph, sketch: Sketch, played: PlayedBefore
) -> tuple[int, ...] | None:
    """Bytes per backend; None where layers that are played mingle with what is beside them."""
    known: Orders = {}
    for run in splits:
        if sketch.reorders(run.backend):
            nodes = reordered_around_played(run.nodes, known)
            if nodes is None:
                return None
            run.nodes = nodes
    nodes, first = ordered(splits), leafs(splits, graph)
    return reserved_bytes(nodes, first, chunk_bytes=chunk_sizes(sketch), played=played)


def _allocated_plainly(graph: Graph, sketch: Sketch) -> tuple[int, ...]:
    """Bytes per backend of a graph in which no layer is played."""
    splits = split(graph, backends_of(sketch))
    known: Orders = {}
    for run in splits:
        if sketch.reorders(run.backend):
            run.nodes = reordered(run.nodes, known)
    first = leafs(splits, graph)
    return reserved_bytes(ordered(splits), first, chunk_bytes=chunk_sizes(sketch), played={})


def forget() -> None:
    """Drop remembered reservations: for those who measure what one takes."""
    _reserved.cache_clear()
    _most_of_decode.cache_clear()
    forget_recordings()
    forget_models()
    forget_kinds()
