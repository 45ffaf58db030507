"""The part of a launch that its compute buffers depend on, and what its backends can do.

Two launches with one sketch reserve the same. It knows devices by number alone, and draws nothing.
"""

from collections.abc import Sequence
from functools import lru_cache, partial

from msgspec import Struct
from msgspec.structs import replace

from planners.graph.allocation import ENDLESS
from planners.graph.blocks import Fused
from planners.graph.kv_cache import LaunchShape
from planners.graph.likeness import Known
from planners.graph.recording import Player, Recordings
from planners.graph.schedule import Backends
from planners.graph.support import RESTRICTED, VULKAN, runs
from planners.graph.tensors import Node, Runs

# ggml-vulkan.cpp, suballocation_block_size: 1 GiB, or the most that the device lets allocate at
# once. No log tells that, and Vulkan requires it to be 1 GiB at least (maintenance3).
_VULKAN_CHUNK = 1 << 30
_RECORDED = 8  # launches of which layers are recorded; a search has few under way at once

Drawn = tuple[int, int, frozenset[str], bool]


class Sketch(Struct, frozen=True):
    """All that a reservation depends on, its devices without names."""

    known: Known
    shape: LaunchShape
    layers: tuple[Drawn, ...]
    """Each layer drawn: one like it, its backend, its weights that stay in host memory, and
    whether it is odd."""
    is_local: tuple[bool, ...]
    bindings: tuple[int | None, ...]
    output: int
    """Where the output's matrix lies."""
    last: int
    """Where the output's norm lies: with the output layer, though the matrix may not."""
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

    def reorders(self, backend: int) -> bool:
        """Whether that backend runs nodes in an order of its own."""
        return self.shape.backend == VULKAN and backend < self.host and self.is_local[backend]


def gathered(sketch: Sketch) -> Sketch:
    """Each kind of layer once, on the host or on the first of devices that are all alike."""
    here = {sketch.host: min(1, sketch.host)}
    layers = tuple((i, here.get(b, 0), left, is_odd) for i, b, left, is_odd in sketch.layers)
    return replace(
        sketch,
        layers=each_once(layers),
        is_local=sketch.is_local[:1],
        bindings=sketch.bindings[:1],
        output=here.get(sketch.output, 0),
        last=here.get(sketch.last, 0),
    )


def each_once(layers: tuple[Drawn, ...]) -> tuple[Drawn, ...]:
    """The first of equal layers on one backend, and the last layer, whose rows are picked."""
    return (*dict.fromkeys(layers[:-1]), *layers[-1:])


def player_of(sketch: Sketch, backends: Backends, fused: Fused) -> Player:
    """On which backends layers follow one another undisturbed, and what these run."""
    known: dict[tuple[bool, int | None], Runs] = {}

    def runs_on(backend: int) -> Runs | None:
        if backend == sketch.host:
            return None
        alike = sketch.is_local[backend], sketch.bindings[backend]
        return known.setdefault(alike, partial(backends.supports, backend))

    recordings = _recordings(sketch.known, replace(sketch.shape, backend=""), fused)
    return Player(runs_on, sketch.reorders, holds=sketch.n_copies > 1, recordings=recordings)


@lru_cache(maxsize=_RECORDED)
def _recordings(known: Known, shape: LaunchShape, fused: Fused) -> Recordings:
    """What is common to all layouts of a launch: their graphs differ in where layers lie alone."""
    return Recordings()


def chunk_sizes(sketch: Sketch) -> Sequence[int]:
    """How large a buffer each backend makes; the host's is the first device's where it has some."""
    if sketch.shape.backend != VULKAN:
        return (ENDLESS,) * (sketch.host + 1)
    has_pinned = bool(sketch.is_local) and sketch.is_local[0]
    return [_VULKAN_CHUNK if local else ENDLESS for local in (*sketch.is_local, has_pinned)]


def backends_of(sketch: Sketch) -> Backends:
    is_local, bindings = (*sketch.is_local, False), (*sketch.bindings, None)
    shape, is_vulkan = sketch.shape, sketch.shape.backend == VULKAN
    has_cache = not sketch.known.model.keeps_nothing
    mixes_bf16 = has_cache and (shape.type_k == "bf16") != (shape.type_v == "bf16")

    def supports(backend: int, node: Node) -> bool:
        if not is_local[backend]:
            return True
        limit = bindings[backend]
        if limit is not None and any(x.n_bytes > limit for x in (node, *node.src)):
            return False
        return node.op not in RESTRICTED or runs(node, is_vulkan=is_vulkan, mixes_bf16=mixes_bf16)

    offloads = tuple(local and shape.op_offload for local in is_local)
    return Backends(sketch.host + 1, offloads, supports, sketch.n_copies)


def forget_recordings() -> None:
    """Drop what was recorded of layers."""
    _recordings.cache_clear()
