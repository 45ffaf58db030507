"""A GGUF file's header, from bytes alone: v2 and v3, little-endian. Each way to be bad has a name.

Time and memory are bounded whatever the bytes: counts are checked before they are believed, and
long arrays are stepped over, not built.
"""

import hashlib
import struct
from enum import Enum
from itertools import pairwise
from math import prod

from msgspec import Struct

from planners.errors import PlanError
from planners.ggml.types import TENSOR_TYPES

MAX_HEADER_BYTES = 64 << 20  # the largest seen hold a vocabulary of 262k and 514k merges: 16 MB
MAX_PAIRS = 1 << 16  # models have 20 to 60
MAX_TENSORS = 1 << 16  # 1100 in the largest; an old unmerged mixture of experts has a few thousand
MAX_DIMENSIONS = 8  # ggml has 4
MAX_KEY_BYTES = 1 << 16  # gguf.md
MAX_KEPT_TEXT_BYTES = 1 << 20  # chat templates are below 100 kB
MAX_KEPT_ITEMS = 1 << 12  # of one array: per-layer values; vocabularies are stepped over
MAX_KEPT_ITEMS_IN_ALL = 1 << 16
MAX_STEPPED_ITEMS = 1 << 21  # texts and nested arrays in all; 0.8 M in the largest seen
MAX_DEPTH = 3

Scalar = str | int | float | bool


class GgufKind(Enum):
    """What is wrong with a file that is no model."""

    EMPTY = "empty"
    GIT_LFS = "git_lfs"
    TEXT = "text"
    OLD_GGML = "old_ggml"
    NOT_GGUF = "not_gguf"
    BIG_ENDIAN = "big_endian"
    VERSION = "version"
    TRUNCATED = "truncated"
    ABSURD = "absurd"
    MALFORMED = "malformed"
    SPLIT_PART = "split_part"


class GgufError(PlanError):
    """A file that cannot be a model, and which way."""

    def __init__(self, kind: GgufKind, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class NeedMore(Exception):
    """The header is longer than the bytes given: read `wanted_bytes` of the file and ask again."""

    def __init__(self, wanted_bytes: int) -> None:
        self.wanted_bytes = wanted_bytes
        super().__init__(f"the header goes on; {wanted_bytes} bytes are wanted")


class GgufArray(Struct, frozen=True):
    """An array value: how long it is, and its items where they are few numbers or texts."""

    n_items: int
    items: tuple[Scalar, ...] | None


class Tensor(Struct, frozen=True):
    """One tensor's entry."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    n_bytes: int
    """Without padding."""

    @property
    def type_name(self) -> str:
        """As planners.ggml.types has it; "" of a type that is not known there."""
        kind = TENSOR_TYPES.get(self.type_number)
        return "" if kind is None else kind.name

    @property
    def n_elements(self) -> int:
        """The product of its shape."""
        return prod(self.shape)


class GgufHeader(Struct, frozen=True):
    """All that stands before the tensor data."""

    version: int
    pairs: dict[str, Scalar | GgufArray]
    tensors: tuple[Tensor, ...]
    digest: str
    """SHA-256 of the header, hex."""
    file_bytes: int
    warnings: tuple[str, ...]


def read_header(head: bytes | memoryview, *, file_bytes: int) -> GgufHeader:
    """The header of a file of `file_bytes` bytes that starts with `head`.

    Raises GgufError, NeedMore.
    """
    reader = _Reader(head, file_bytes=file_bytes)
    version = _version(reader)
    n_tensors, n_pairs = reader.unpack(_TWO_COUNTS)
    if n_pairs > MAX_PAIRS or n_tensors > MAX_TENSORS:
        raise GgufError(
            GgufKind.ABSURD,
            f"absurd counts: {n_pairs} metadata pairs (at most {MAX_PAIRS} are read) and "
            f"{n_tensors} tensors (at most {MAX_TENSORS})",
        )
    pairs: dict[str, Scalar | GgufArray] = {}
    for _ in range(n_pairs):
        key = reader.key()
        pairs[key] = reader.value(reader.unpack(_U32)[0])
    entries = [_tensor_entry(reader) for _ in range(n_tensors)]
    alignment = _alignment(pairs)
    start = -(-reader.at // alignment) * alignment if entries else reader.at
    tensors, warnings = _sized(entries, data_bytes=file_bytes - start)
    digest = hashlib.sha256(reader.head[: reader.at]).hexdigest()
    return GgufHeader(version, pairs, tensors, digest, file_bytes, warnings)


_U8, _I8 = struct.Struct("<B"), struct.Struct("<b")
_U16, _I16 = struct.Struct("<H"), struct.Struct("<h")
_U32, _I32, _F32 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<f")
_U64, _I64, _F64 = struct.Struct("<Q"), struct.Struct("<q"), struct.Struct("<d")
_BOOL = struct.Struct("<?")
_TWO_COUNTS = struct.Struct("<QQ")
_ARRAY_HEAD = struct.Struct("<IQ")
_TENSOR_TAIL = struct.Struct("<IQ")

_TEXT, _ARRAY = 8, 9
_SCALARS = {
    0: _U8, 1: _I8, 2: _U16, 3: _I16, 4: _U32, 5: _I32, 6: _F32, 7: _BOOL,
    10: _U64, 11: _I64, 12: _F64,
}  # fmt: skip


class _Reader:
    """A cursor over the head that never passes its end in silence."""

    def __init__(self, head: bytes | memoryview, *, file_bytes: int) -> None:
        self.head = memoryview(head)[: max(file_bytes, 0)]
        self.at = 0
        self._file_bytes = file_bytes
        self._stepped = 0
        self._kept = 0

    def need(self, n_bytes: int) -> None:
        """Return when `n_bytes` more lie in the head; raise what is the case otherwise."""
        end = self.at + n_bytes
        if end <= len(self.head):
            return
        if end > self._file_bytes:
            raise GgufError(
                GgufKind.TRUNCATED,
                f"truncated in the header: it goes on for at least {end} bytes, "
                f"the file ends at {self._file_bytes}",
            )
        if end > MAX_HEADER_BYTES:
            raise GgufError(
                GgufKind.ABSURD,
                f"absurd header: longer than {MAX_HEADER_BYTES} bytes, the most that is read",
            )
        # Doubling keeps the re-reads of a caller that starts small below twice the header.
        raise NeedMore(min(self._file_bytes, MAX_HEADER_BYTES, max(end, 2 * len(self.head))))

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """The numbers of `layout` at the cursor."""
        self.need(layout.size)
        values = layout.unpack_from(self.head, self.at)
        self.at += layout.size
        return values

    def text(self, *, at_most: int) -> str | None:
        """The text at the cursor, broken UTF-8 as U+FFFD; None where above `at_most` bytes."""
        (length,) = self.unpack(_U64)
        self.need(length)
        start, self.at = self.at, self.at + length
        if length > at_most:
            return None
        return str(self.head[start : self.at], "utf-8", "replace")

    def key(self) -> str:
        """A key or a tensor's name."""
        (length,) = self.unpack(_U64)
        if length > MAX_KEY_BYTES:
            raise GgufError(GgufKind.ABSURD, f"absurd name of {length} bytes at byte {self.at - 8}")
        self.at -= 8
        return self.text(at_most=MAX_KEY_BYTES) or ""

    def value(self, type_number: int) -> Scalar | GgufArray:
        """One metadata value."""
        if type_number == _TEXT:
            kept = self.text(at_most=MAX_KEPT_TEXT_BYTES)
            return GgufArray(1, None) if kept is None else kept
        if type_number == _ARRAY:
            return self._array(depth=1)
        return self.unpack(self._layout(type_number))[0]

    def _layout(self, type_number: int) -> struct.Struct:
        layout = _SCALARS.get(type_number)
        if layout is None:
            raise GgufError(
                GgufKind.MALFORMED,
                f"malformed: metadata type {type_number} at byte {self.at} is unknown",
            )
        return layout

    def _array(self, *, depth: int) -> GgufArray:
        item_type, n_items = self.unpack(_ARRAY_HEAD)
        if item_type == _ARRAY:
            self._step_arrays(n_items, depth=depth)
            return GgufArray(n_items, None)
        if item_type == _TEXT:
            return self._texts(n_items)
        layout = self._layout(item_type)
        self.need(n_items * layout.size)
        start, self.at = self.at, self.at + n_items * layout.size
        if not self._keeps(n_items):
            return GgufArray(n_items, None)
        kept = layout.iter_unpack(self.head[start : self.at])
        return GgufArray(n_items, tuple(item for (item,) in kept))

    def _texts(self, n_items: int) -> GgufArray:
        self._budget(n_items, least_bytes=8)
        if not self._keeps(n_items):
            self._step_texts(n_items)
            return GgufArray(n_items, None)
        kept = [self.text(at_most=MAX_KEY_BYTES) for _ in range(n_items)]
        return GgufArray(n_items, tuple(item or "" for item in kept))

    def _step_texts(self, n_items: int) -> None:
        # The hot loop: half a million texts in a large header. One unpack per text, no bounds
        # check: a length that leads astray ends in struct.error, and `need` says what is the case.
        head, at, unpack, missing = self.head, self.at, _U64.unpack_from, 0
        try:
            for _ in range(n_items):
                at += 8 + unpack(head, at)[0]
        except (struct.error, OverflowError):
            missing = _U64.size
        self.at = at
        self.need(missing)

    def _step_arrays(self, n_items: int, *, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise GgufError(
                GgufKind.ABSURD, f"absurd nesting: arrays deeper than {MAX_DEPTH} levels"
            )
        self._budget(n_items, least_bytes=12)
        for _ in range(n_items):
            self._array(depth=depth + 1)

    def _keeps(self, n_items: int) -> bool:
        """True while the items of arrays may still be built; the bound on memory."""
        if n_items > MAX_KEPT_ITEMS or self._kept + n_items > MAX_KEPT_ITEMS_IN_ALL:
            return False
        self._kept += n_items
        return True

    def _budget(self, n_items: int, *, least_bytes: int) -> None:
        """Count items that cost a step each, and refuse more than any real file has."""
        self._stepped += n_items
        if self._stepped > MAX_STEPPED_ITEMS:
            raise GgufError(
                GgufKind.ABSURD,
                f"absurd array of {n_items} items; at most {MAX_STEPPED_ITEMS} texts are read",
            )
        if self.at + n_items * least_bytes > self._file_bytes:
            self.need(n_items * least_bytes)


def _version(reader: _Reader) -> int:
    head = bytes(reader.head[:512])
    if head[:4] != b"GGUF":
        raise _no_gguf(head, file_bytes=len(reader.head))
    reader.at = 4
    (version,) = reader.unpack(_U32)
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0 and version:
        raise GgufError(
            GgufKind.BIG_ENDIAN,
            "a big-endian GGUF file; convert it with gguf_convert_endian.py from llama.cpp",
        )
    raise GgufError(
        GgufKind.VERSION, f"GGUF version {version}; versions 2 and 3 are read: convert it anew"
    )


def _no_gguf(head: bytes, *, file_bytes: int) -> GgufError:
    if not head:
        return GgufError(GgufKind.EMPTY, "an empty file, not a model")
    if head.startswith(b"version https://git-lfs"):
        return GgufError(GgufKind.GIT_LFS, "a git-lfs pointer, not a model: run git lfs pull")
    if head[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        return GgufError(GgufKind.OLD_GGML, "an old GGML file from before GGUF; convert it anew")
    if head[:4] == b"FUGG":
        return GgufError(GgufKind.BIG_ENDIAN, "a GGUF file with its bytes swapped")
    if len(head) < 4 and b"GGUF".startswith(head):
        return GgufError(GgufKind.TRUNCATED, f"truncated: {file_bytes} bytes are no header")
    start = head.lstrip()[:16].lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return GgufError(
            GgufKind.TEXT, "a web page, not a model: the download was answered with HTML"
        )
    if start.startswith(b"{"):
        return GgufError(GgufKind.TEXT, "JSON text, not a model")
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return GgufError(GgufKind.TEXT, "plain text, not a model")
    magic = head[:4].hex(" ")
    return GgufError(GgufKind.NOT_GGUF, f"no GGUF file: it starts with bytes {magic}")


def _alignment(pairs: dict[str, Scalar | GgufArray]) -> int:
    alignment = pairs.get("general.alignment", 32)
    if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment <= 0:
        raise GgufError(GgufKind.MALFORMED, f"malformed: general.alignment is {alignment!r}")
    return alignment


class _Entry(Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int


def _tensor_entry(reader: _Reader) -> _Entry:
    name = reader.key()
    (n_dimensions,) = reader.unpack(_U32)
    if n_dimensions > MAX_DIMENSIONS:
        raise GgufError(
            GgufKind.ABSURD, f"absurd tensor {name[:64]!r} of {n_dimensions} dimensions"
        )
    shape = reader.unpack(_SHAPES[n_dimensions])
    type_number, offset = reader.unpack(_TENSOR_TAIL)
    return _Entry(name, shape, type_number, offset)


_SHAPES = tuple(struct.Struct(f"<{n}Q") for n in range(MAX_DIMENSIONS + 1))


def _sized(entries: list[_Entry], *, data_bytes: int) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """Each tensor with its bytes; one of a type newer than the table spans up to the next."""
    offsets = sorted({entry.offset for entry in entries})
    following = dict(pairwise([*offsets, data_bytes]))
    tensors, unknown = [], set()
    for entry in entries:
        kind = TENSOR_TYPES.get(entry.type_number)
        tensor = Tensor(entry.name, entry.shape, entry.type_number, 0)
        if kind is None:
            unknown.add(entry.type_number)
            n_bytes = max(0, following[entry.offset] - entry.offset)
        else:
            n_bytes = kind.row_bytes(tensor.n_elements)
        if entry.offset + n_bytes > data_bytes:
            raise GgufError(
                GgufKind.TRUNCATED,
                f"truncated: tensor {entry.name[:64]!r} ends at byte {entry.offset + n_bytes} of "
                f"the tensor data, the file has {max(data_bytes, 0)} bytes of it",
            )
        tensors.append(Tensor(entry.name, entry.shape, entry.type_number, n_bytes))
    told = ", ".join(str(number) for number in sorted(unknown))
    warnings = (f"tensor types {told} are unknown here: their sizes are read from the offsets",)
    return tuple(tensors), warnings if unknown else ()
