"""Slot files as bytes; tests/supervisor/moving/test_slots.py has those that real engines write."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.moving.slot_file import (
    MAGIC,
    MAX_STREAMS,
    VERSION,
    SlotFileError,
    SlotLayout,
    SlotMemory,
    Span,
    bridged,
    reading,
    reading_ids,
    slot_file_bytes,
    slot_memory,
)
from tests.fakes.tiny_models import info_of, tiny_models

PLAIN = SlotMemory(n_caches=1, has_v=True, has_state=False)


class Written(Struct, frozen=True):
    """A file made up for a test."""

    n_stream: int = 4
    stream: int = 2
    n_cells: int = 3
    n_layer: int = 2
    cell_words: int = 3
    memory: SlotMemory = PLAIN
    state: bytes = b""

    def cells(self) -> bytes:
        """One stream's cells, none but the bytes' lengths true to life."""
        places = b"".join(
            struct.pack(f"<{self.cell_words}I", i, 1, *[0] * (self.cell_words - 2))
            for i in range(self.n_cells)
        )
        layer = struct.pack("<IQ", 1, 8) + bytes(range(8)) * self.n_cells
        layers = layer * (self.n_layer * (2 if self.memory.has_v else 1))
        return (
            struct.pack("<I", self.n_cells) + places + struct.pack("<2I", 0, self.n_layer) + layers
        )

    def cache(self) -> bytes:
        """With its empty streams."""
        after = self.n_stream - self.stream - 1
        return (
            struct.pack("<I", self.n_stream) + bytes(4 * self.stream) + self.cells()
            + bytes(4 * after)
        )  # fmt: skip

    def whole(self) -> bytes:
        """The file."""
        head = struct.pack("<III", MAGIC, VERSION, self.n_cells) + bytes(4 * self.n_cells)
        return head + self.cache() * self.memory.n_caches + self.state


def layout_of(data: bytes, memory: SlotMemory = PLAIN) -> SlotLayout:
    """What reading a file of these bytes gives, with a bound on its steps."""
    steps = reading(memory, file_bytes=len(data))
    wanted = next(steps)
    for _ in range(20_000):
        try:
            wanted = steps.send(data[wanted.at : wanted.end])
        except StopIteration as done:
            layout: SlotLayout = done.value
            return layout
    raise AssertionError("no end")


def ids_of(data: bytes) -> tuple[int, ...]:
    """The tokens that a file of these bytes tells."""
    steps = reading_ids(file_bytes=len(data))
    wanted = next(steps)
    while True:
        try:
            wanted = steps.send(data[wanted.at : wanted.end])
        except StopIteration as done:
            found: tuple[int, ...] = done.value
            return found


def headed(*words: int) -> bytes:
    """The head of a file with these words where its tokens are."""
    return struct.pack(f"<III{len(words)}i", MAGIC, VERSION, len(words), *words)


def rewritten(data: bytes, layout: SlotLayout, *, n_stream: int) -> bytes:
    parts = bridged(layout, n_stream=n_stream)
    return b"".join(p if isinstance(p, bytes) else data[p.at : p.end] for p in parts)


def test_a_file_tells_its_streams_and_its_tokens() -> None:
    layout = layout_of(Written(n_stream=4, stream=2, n_cells=3).whole())

    assert layout.n_stream == 4
    assert layout.n_cells == layout.n_ids == 3


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ((5, 7, 7), (5, 7, 7)),
        ((-1, 1, 3, 5, 7, 7, 0), (5, 7, 7)),
        ((-1, 1, 0, 0), ()),
        ((-1, 1, 3, 5, -1, 7, 1, 4), ()),
        ((-1, 1, 9, 5, 7, 7, 0), ()),
        ((-1, 1, -9, 5, 7, 7, 0), ()),
        ((-1, 2, 3, 5, 7, 7, 0), ()),
        ((5, -1, 7), ()),
        ((), ()),
    ],
    ids=[
        "plain", "packed", "an empty slot's", "with an image", "cut short", "of a count below none",
        "packed in another way", "plain, with an image", "none",
    ],
)  # fmt: skip
def test_a_file_tells_its_tokens_where_all_of_them_are_words(
    words: tuple[int, ...], ids: tuple[int, ...]
) -> None:
    assert ids_of(headed(*words)) == ids


def test_tokens_beyond_a_files_end_are_refused() -> None:
    with pytest.raises(SlotFileError, match="truncated"):
        ids_of(headed(1, 2, 3)[:-1])


@given(
    n_stream=st.integers(1, 8),
    place=st.integers(0, 7),
    target=st.integers(1, 8),
    n_caches=st.integers(1, 2),
    cell_words=st.sampled_from([3, 5, 6]),
    has_v=st.booleans(),
    state=st.binary(max_size=40),
)
def test_a_bridged_file_is_the_one_that_a_child_of_the_other_count_would_have_written(
    n_stream: int,
    place: int,
    target: int,
    n_caches: int,
    cell_words: int,
    has_v: bool,
    state: bytes,
) -> None:
    memory = SlotMemory(n_caches=n_caches, has_v=has_v, has_state=bool(state))
    source = Written(
        n_stream=n_stream,
        stream=place % n_stream,
        cell_words=cell_words,
        memory=memory,
        state=state,
    )
    data = source.whole()

    found = rewritten(data, layout_of(data, memory), n_stream=target)

    assert found == replace(source, n_stream=target, stream=0).whole()


def test_a_file_without_a_cache_is_the_same_to_every_child() -> None:
    memory = SlotMemory(n_caches=0, has_v=False, has_state=True)
    data = Written(memory=memory, state=b"the state").whole()

    layout = layout_of(data, memory)

    assert layout.n_stream is None
    assert rewritten(data, layout, n_stream=3) == data


@pytest.mark.parametrize("n_stream", [0, -1, MAX_STREAMS + 1])
def test_no_child_has_so_many_streams(n_stream: int) -> None:
    with pytest.raises(SlotFileError, match="streams"):
        bridged(layout_of(Written().whole()), n_stream=n_stream)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "truncated", id="empty"),
        pytest.param(b"GGUF" + bytes(60), "no slot file", id="a model"),
        pytest.param(struct.pack("<III", MAGIC, 3, 0), "no slot file", id="a later version"),
        pytest.param(
            struct.pack("<III", MAGIC, VERSION, 0xFFFFFFFF), "token ids", id="absurd tokens"
        ),
        pytest.param(struct.pack("<IIII", MAGIC, VERSION, 0, 0), "streams", id="no streams"),
        pytest.param(
            struct.pack("<IIII", MAGIC, VERSION, 0, 1 << 31), "streams", id="absurd streams"
        ),
        pytest.param(Written().whole()[:-4], "truncated", id="its last word is missing"),
        pytest.param(Written().whole() + b"more", "follow", id="more than its cache"),
        pytest.param(
            struct.pack("<IIIII", MAGIC, VERSION, 0, 1, 1 << 30), "cells", id="absurd cells"
        ),
        pytest.param(
            struct.pack("<IIII", MAGIC, VERSION, 0, 2) + Written().cells() * 2,
            "two streams",
            id="a file of all slots",
        ),
        pytest.param(
            struct.pack("<III", MAGIC, VERSION, 0) + Written(cell_words=8).cache(),
            "unknown width|over|truncated",
            id="places of another build",
        ),
    ],
)
def test_what_is_no_slot_file_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(SlotFileError, match=says):
        layout_of(data)


@given(st.data())
def test_no_bytes_make_it_run_on_or_ask_for_what_is_not_there(data: st.DataObject) -> None:
    whole = bytearray(Written().whole())
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    steps = reading(PLAIN, file_bytes=len(cut))

    try:
        wanted = next(steps)
        for _ in range(20_000):
            assert 0 <= wanted.at <= wanted.end <= len(cut)
            assert wanted.n_bytes <= 64
            wanted = steps.send(cut[wanted.at : wanted.end])
    except (SlotFileError, StopIteration):
        return
    raise AssertionError("no end")


def test_a_file_that_shrinks_while_it_is_read_is_refused() -> None:
    steps = reading(PLAIN, file_bytes=100)
    next(steps)

    with pytest.raises(SlotFileError, match="truncated"):
        steps.send(b"short")


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("dense", PLAIN),
        ("windows-6", SlotMemory(n_caches=2, has_v=True, has_state=False)),
        ("state-2", SlotMemory(n_caches=0, has_v=False, has_state=True)),
        ("hybrid-2", SlotMemory(n_caches=1, has_v=True, has_state=True)),
        ("convolutions", SlotMemory(n_caches=1, has_v=True, has_state=True)),
    ],
)
def test_what_a_file_holds_follows_from_the_layers(name: str, memory: SlotMemory) -> None:
    (model,) = (model for model in tiny_models() if model.name == name)

    assert slot_memory(info_of(model)) == memory


def test_a_files_upper_bound_grows_with_its_tokens_alone() -> None:
    (model,) = (model for model in tiny_models() if model.name == "dense")
    info = info_of(model)
    one = LaunchShape(n_ctx=1024, n_parallel=1, n_batch=512, n_ubatch=512)
    four = LaunchShape(n_ctx=4096, n_parallel=4, n_batch=512, n_ubatch=512)

    assert slot_file_bytes(info, one, n_tokens=100) == slot_file_bytes(info, four, n_tokens=100)
    assert slot_file_bytes(info, one, n_tokens=200) > slot_file_bytes(info, one, n_tokens=100)


def test_a_span_ends_where_the_next_begins() -> None:
    assert Span(8, 4).end == 12
