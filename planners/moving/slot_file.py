"""Slot files of llama-server: where their KV caches lie, and the same file for another slot count.

    magic, version, n, n × token | per KV cache: n_stream, n_stream × (n_cells, cells, K, V)
                                 | recurrent state, to the end

A child with split slots writes a stream for each slot, all but one of them empty, and refuses files
of another number of streams; nothing else in a file depends on it. (llama.cpp llama-context.cpp
`state_seq_save_file`, llama-kv-cache.cpp `state_write`; seen in files of b10434.) Sans-I/O: which
bytes are wanted comes out, bytes come in.
"""

import struct
from collections.abc import Generator

from msgspec import Struct

from planners.errors import PlanError
from planners.graph.kv_cache import LaunchShape, cache_type, kv_cells, state_bytes
from planners.model import LayerKind, ModelInfo

MAGIC = 0x67677371  # "ggsq", llama.h LLAMA_STATE_SEQ_MAGIC
VERSION = 2  # llama.h LLAMA_STATE_SEQ_VERSION
MAX_STREAMS = 256  # llama-cparams.h LLAMA_MAX_SEQ
MAX_LAYERS = 512  # llama-hparams.h LLAMA_MAX_LAYERS
MAX_TOKENS = 1 << 24
MAX_ROW_BYTES = 1 << 24
_CELL_BYTES = (12, 20, 24)
"""Of a cell's place: position, a count of one, the sequence; M-RoPE adds x and y, then a token."""
_WORD = 4
_PACKED, _PACKED_HEAD = (-1, 1), 3
"""How token ids begin that are packed: these words, then how many follow, then what is no token."""


class SlotFileError(PlanError):
    """A slot file that is not what its model's would be; it is of no use then."""


class Span(Struct, frozen=True):
    """A part of a file."""

    at: int
    n_bytes: int

    @property
    def end(self) -> int:
        """Where the next part begins."""
        return self.at + self.n_bytes


class SlotMemory(Struct, frozen=True):
    """What a model keeps of a slot, in a file's order: KV caches, then a recurrent state."""

    n_caches: int
    """Two where some layers have sliding windows: those have a cache of their own."""
    has_v: bool
    """False where V is a part of K (MLA)."""
    has_state: bool


class SavedCache(Struct, frozen=True):
    """One KV cache within a file."""

    at: int
    """Of its `n_stream`."""
    n_stream: int
    cells: Span | None
    """Those of the one stream that has any, with their count before them; None where none has."""
    end: int


class SlotLayout(Struct, frozen=True):
    """Where in a file what lies."""

    n_ids: int
    """Token ids in its head; a few more than it has tokens, since llama-server packs them."""
    n_cells: int
    """Tokens in its first cache; 0 where there is none."""
    caches: tuple[SavedCache, ...]
    n_bytes: int

    @property
    def n_stream(self) -> int | None:
        """Slots of the child that can restore it as it stands; None where it is the same to all."""
        return self.caches[0].n_stream if self.caches else None


Reading = Generator[Span, bytes, SlotLayout]
Ids = Generator[Span, bytes, tuple[int, ...]]


def slot_file_bytes(info: ModelInfo, shape: LaunchShape, *, n_tokens: int) -> int:
    """At most so many bytes does a file of `n_tokens` tokens take."""
    k, v = cache_type(shape.type_k), cache_type(shape.type_v)
    rows = sum(
        min(n_tokens, kv_cells(info, layer, shape))
        * (k.row_bytes(layer.k_width) + v.row_bytes(layer.v_width))
        for layer in info.layers
    )
    # A token and its place in each cache; types and row sizes of each layer; the empty streams.
    places = n_tokens * (_WORD + 2 * max(_CELL_BYTES)) + 64
    heads = 32 * (info.n_layer + 1) + 2 * _WORD * MAX_STREAMS
    return rows + places + heads + state_bytes(info, shape) // shape.n_parallel


def slot_memory(info: ModelInfo) -> SlotMemory:
    """What slot files of this model hold."""
    kinds = {layer.kind for layer in info.layers}
    has_windows = LayerKind.SWA in kinds
    return SlotMemory(
        n_caches=2 if has_windows else int(LayerKind.FULL in kinds),
        has_v=any(layer.v_width for layer in info.layers),
        has_state=LayerKind.RECURRENT in kinds or any(layer.state_width for layer in info.layers),
    )


def reading(memory: SlotMemory, *, file_bytes: int) -> Reading:
    """Yields the parts that it wants sent in, each small, and returns the layout.

    Steps are bounded by layers and streams, whatever the bytes. Raises SlotFileError.
    """
    reader = _Reader(file_bytes)
    n_ids = yield from _n_ids(reader)
    reader.skip(n_ids * _WORD)
    caches, n_cells = [], 0
    for _ in range(memory.n_caches):
        cache, n = yield from _cache(reader, has_v=memory.has_v)
        caches.append(cache)
        n_cells = max(n_cells, n)
    if not memory.has_state and reader.at != file_bytes:
        raise SlotFileError(f"{file_bytes - reader.at} bytes follow its last cache")
    return SlotLayout(n_ids=n_ids, n_cells=n_cells, caches=tuple(caches), n_bytes=file_bytes)


def reading_ids(*, file_bytes: int) -> Ids:
    """Yields the parts that it wants sent in, and returns the tokens of the slot, in their order.

    () where something else is among them, as an image is. Raises SlotFileError.
    """
    reader = _Reader(file_bytes)
    n_ids = yield from _n_ids(reader)
    at = reader.at
    reader.skip(n_ids * _WORD)
    ids = struct.unpack(f"<{n_ids}i", (yield from _exactly(Span(at, n_ids * _WORD))))
    if ids[:2] == _PACKED and len(ids) > _PACKED_HEAD:
        end = _PACKED_HEAD + ids[2]
        return ids[_PACKED_HEAD:end] if ids[end:] == (0,) else ()
    return ids if all(token >= 0 for token in ids) else ()


def _n_ids(reader: "_Reader") -> Generator[Span, bytes, int]:
    """Of the head; they come next."""
    magic, version, n_ids = yield from reader.words(3)
    if (magic, version) != (MAGIC, VERSION):
        raise SlotFileError(f"no slot file of version {VERSION}: it starts {magic:#x}, {version}")
    if n_ids > MAX_TOKENS:
        raise SlotFileError(f"{n_ids} token ids are more than {MAX_TOKENS}")
    return n_ids


def bridged(layout: SlotLayout, *, n_stream: int) -> tuple[bytes | Span, ...]:
    """The parts of the file that a child with `n_stream` split slots restores: words, and spans.

    A unified cache, or one slot, is one stream. Which slot it is restored into is free.
    """
    if not 0 < n_stream <= MAX_STREAMS:
        raise SlotFileError(f"{n_stream} streams are not between 1 and {MAX_STREAMS}")
    parts: list[bytes | Span] = []
    at = 0
    for cache in layout.caches:
        parts += [Span(at, cache.at - at), struct.pack("<I", n_stream)]
        if cache.cells is not None:
            parts.append(cache.cells)
        n_empty = n_stream - (cache.cells is not None)
        parts.append(bytes(_WORD * n_empty))
        at = cache.end
    parts.append(Span(at, layout.n_bytes - at))
    return tuple(part for part in parts if (len(part) if isinstance(part, bytes) else part.n_bytes))


class _Reader:
    """A place in a file of known length, which it never leaves."""

    def __init__(self, file_bytes: int) -> None:
        self.at = 0
        self._file_bytes = file_bytes

    def skip(self, n_bytes: int) -> None:
        """Steps over bytes. Raises SlotFileError where there are not so many."""
        if n_bytes > self._file_bytes - self.at:
            raise SlotFileError(
                f"truncated: {n_bytes} bytes are missing or wrong at {self.at}"
                f" of {self._file_bytes}"
            )
        self.at += n_bytes

    def words(self, n: int) -> Generator[Span, bytes, tuple[int, ...]]:
        """The next `n` words."""
        span = Span(self.at, n * _WORD)
        self.skip(span.n_bytes)
        return struct.unpack(f"<{n}I", (yield from _exactly(span)))


def _exactly(span: Span) -> Generator[Span, bytes, bytes]:
    found = yield span
    if len(found) != span.n_bytes:
        raise SlotFileError(f"truncated: {len(found)} of {span.n_bytes} bytes at {span.at}")
    return found


def _cache(reader: _Reader, *, has_v: bool) -> Generator[Span, bytes, tuple[SavedCache, int]]:
    """One cache, and the cells it has."""
    at = reader.at
    (n_stream,) = yield from reader.words(1)
    if not 0 < n_stream <= MAX_STREAMS:
        raise SlotFileError(f"{n_stream} streams are not between 1 and {MAX_STREAMS}")
    cells, n_cells = None, 0
    for _ in range(n_stream):
        start = reader.at
        (n,) = yield from reader.words(1)
        if not n:
            continue
        if cells is not None:
            raise SlotFileError("two streams have cells: it is not of one slot")
        if n > MAX_TOKENS:
            raise SlotFileError(f"{n} cells are more than {MAX_TOKENS}")
        yield from _cells(reader, n, has_v=has_v)
        cells, n_cells = Span(start, reader.at - start), n
    return SavedCache(at=at, n_stream=n_stream, cells=cells, end=reader.at), n_cells


def _cells(reader: _Reader, n: int, *, has_v: bool) -> Generator[Span, bytes, None]:
    """Steps over the cells of a stream: their places, then K and V of each layer."""
    is_transposed, n_layer = yield from _after_places(reader, n)
    for _ in range(n_layer):
        _type, low, high = yield from reader.words(3)
        reader.skip(n * _row_bytes(low | high << 32))
    if not has_v:
        return
    for _ in range(n_layer):
        if is_transposed:
            _type, element_bytes, width = yield from reader.words(3)
            reader.skip(n * _row_bytes(element_bytes * width))
        else:
            _type, low, high = yield from reader.words(3)
            reader.skip(n * _row_bytes(low | high << 32))


def _after_places(reader: _Reader, n: int) -> Generator[Span, bytes, tuple[bool, int]]:
    """Whether V is transposed and how many layers follow, by the width of a place that fits."""
    start = reader.at
    for cell_bytes in _CELL_BYTES:
        reader.at = start
        reader.skip(n * cell_bytes)
        is_transposed, n_layer = yield from reader.words(2)
        if is_transposed > 1 or not 0 < n_layer <= MAX_LAYERS:
            continue
        after = reader.at
        _type, low, high = yield from reader.words(3)
        reader.at = after
        if not high and 0 < low <= MAX_ROW_BYTES:
            return bool(is_transposed), n_layer
    raise SlotFileError(f"the places of its {n} cells are of an unknown width")


def _row_bytes(n_bytes: int) -> int:
    if n_bytes > MAX_ROW_BYTES:
        raise SlotFileError(f"a row of {n_bytes} bytes is over {MAX_ROW_BYTES}")
    return n_bytes
