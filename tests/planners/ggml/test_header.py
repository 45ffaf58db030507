import struct
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planners.ggml.header import GgufArray, GgufError, GgufKind, NeedMore, read_header
from tests.fakes.gguf_writer import Hole, Value, file_size, gguf_header, pair, text_array

HOLES = (Hole("token_embd.weight", (64, 100)), Hole("blk.0.ffn_up.weight", (64, 256), 2))
PAIRS: dict[str, Value] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.rope.freq_base": 10000.0,
    "llama.use": True,
    "llama.attention.head_count": [4, 8],
    "general.tags": ["a", "b"],
    "general.size": 1 << 40,
}
HEADER = gguf_header(PAIRS, HOLES)
SIZE = file_size(HEADER, HOLES)
COUNTS = b"GGUF" + struct.pack("<I", 3)


def kind_of(data: bytes, *, file_bytes: int | None = None) -> GgufKind:
    with pytest.raises(GgufError) as caught:
        read_header(data, file_bytes=len(data) if file_bytes is None else file_bytes)
    return caught.value.kind


def test_pairs_of_every_kind_are_read() -> None:
    header = read_header(HEADER, file_bytes=SIZE)

    assert header.pairs == {
        **{key: value for key, value in PAIRS.items() if not isinstance(value, list)},
        "llama.attention.head_count": GgufArray(2, (4, 8)),
        "general.tags": GgufArray(2, ("a", "b")),
    }


def test_tensors_are_sized_by_their_type() -> None:
    header = read_header(HEADER, file_bytes=SIZE)

    assert [(t.name, t.n_bytes, t.n_elements) for t in header.tensors] == [
        ("token_embd.weight", 64 * 100 * 4, 6400),
        ("blk.0.ffn_up.weight", 64 * 256 * 18 // 32, 16384),
    ]


def test_version_2_reads_like_version_3() -> None:
    older = read_header(gguf_header(PAIRS, HOLES, version=2), file_bytes=SIZE)

    assert older.version == 2
    assert older.tensors == read_header(HEADER, file_bytes=SIZE).tensors


def test_a_memoryview_of_a_longer_file_gives_the_same_digest() -> None:
    whole = memoryview(HEADER + b"\0" * (SIZE - len(HEADER)))

    assert read_header(whole, file_bytes=SIZE).digest == read_header(
        HEADER, file_bytes=SIZE
    ).digest  # fmt: skip


def test_text_that_is_no_utf8_stays_readable() -> None:
    header = gguf_header({"general.name": "caf\udce9 de Paris"}, HOLES)

    pairs = read_header(header, file_bytes=file_size(header, HOLES)).pairs

    assert pairs["general.name"] == "caf\ufffd de Paris"


def test_a_type_newer_than_the_table_is_sized_by_its_offsets() -> None:
    entry = HEADER.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    newer = HEADER[:entry] + struct.pack("<I", 99) + HEADER[entry + 4 :]

    header = read_header(newer, file_bytes=SIZE)

    assert [t.n_bytes for t in header.tensors] == [25600, 9216]
    assert "99" in header.warnings[0]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        pytest.param(b"", GgufKind.EMPTY, id="empty"),
        pytest.param(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n",
            GgufKind.GIT_LFS,
            id="git-lfs pointer",
        ),
        pytest.param(b"<!DOCTYPE html>\n<html>", GgufKind.TEXT, id="web page"),
        pytest.param(b'  {"error": "not found"}', GgufKind.TEXT, id="JSON"),
        pytest.param(b"Entry not found\n", GgufKind.TEXT, id="plain text"),
        pytest.param(b"lmgg" + bytes(64), GgufKind.OLD_GGML, id="GGML"),
        pytest.param(b"fmgg" + bytes(64), GgufKind.OLD_GGML, id="GGMF"),
        pytest.param(b"tjgg" + bytes(64), GgufKind.OLD_GGML, id="GGJT"),
        pytest.param(b"\x7fELF" + bytes(64), GgufKind.NOT_GGUF, id="another format"),
        pytest.param(b"GG", GgufKind.TRUNCATED, id="two bytes"),
        pytest.param(b"GGUF", GgufKind.TRUNCATED, id="magic alone"),
        pytest.param(HEADER[:200], GgufKind.TRUNCATED, id="cut in the pairs"),
        pytest.param(HEADER[:-4], GgufKind.TRUNCATED, id="cut in the tensors"),
        pytest.param(HEADER, GgufKind.TRUNCATED, id="no tensor data"),
        pytest.param(b"GGUF" + struct.pack(">IQQ", 3, 1, 1), GgufKind.BIG_ENDIAN, id="big-endian"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 1, 1, 1), GgufKind.VERSION, id="version 1"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 99, 1, 1), GgufKind.VERSION, id="version 99"),
        pytest.param(COUNTS + struct.pack("<QQ", 1, 1 << 60), GgufKind.ABSURD, id="pairs"),
        pytest.param(COUNTS + struct.pack("<QQ", 1 << 60, 1), GgufKind.ABSURD, id="tensors"),
        pytest.param(
            COUNTS + struct.pack("<QQQ", 0, 1, 1 << 62), GgufKind.ABSURD, id="length of a key"
        ),
        pytest.param(
            COUNTS + struct.pack("<QQ", 0, 1) + pair("k", struct.pack("<I", 77)),
            GgufKind.MALFORMED,
            id="type of a value",
        ),
        pytest.param(
            COUNTS + struct.pack("<QQ", 0, 1) + pair("k", struct.pack("<IIQ", 9, 8, 1 << 63)),
            GgufKind.ABSURD,
            id="texts in an array",
        ),
        pytest.param(
            COUNTS + struct.pack("<QQ", 0, 1) + pair("k", struct.pack("<IIQ", 9, 4, 1 << 63)),
            GgufKind.TRUNCATED,
            id="numbers in an array",
        ),
        pytest.param(
            COUNTS
            + struct.pack("<QQ", 0, 1)
            + pair("k", struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9),
            GgufKind.ABSURD,
            id="nesting",
        ),
        pytest.param(
            COUNTS + struct.pack("<QQ", 0, 1) + pair("general.alignment", struct.pack("<II", 4, 0)),
            GgufKind.MALFORMED,
            id="alignment of 0",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(data: bytes, kind: GgufKind) -> None:
    assert kind_of(data) is kind


def test_a_length_that_leads_past_the_file_is_truncation() -> None:
    array = struct.pack("<IIQ", 9, 8, 5000) + struct.pack("<Q", 1 << 50) + bytes(64_000)

    assert kind_of(COUNTS + struct.pack("<QQ", 0, 1) + pair("k", array)) is GgufKind.TRUNCATED


def test_more_than_was_given_is_asked_for_until_it_suffices() -> None:
    wanted = [16]
    while (more := _wanted(HEADER[: wanted[-1]])) is not None:
        wanted.append(more)

    assert wanted == sorted(set(wanted))
    assert len(wanted) < 10
    assert wanted[-1] <= SIZE


def _wanted(head: bytes) -> int | None:
    try:
        read_header(head, file_bytes=SIZE)
    except NeedMore as more:
        return more.wanted_bytes
    return None


def test_a_header_that_never_ends_is_refused_rather_than_read() -> None:
    endless = COUNTS + struct.pack("<QQ", 0, 1) + pair("k", struct.pack("<IQ", 8, 1 << 40))

    assert kind_of(endless, file_bytes=1 << 41) is GgufKind.ABSURD


def test_a_vocabulary_is_counted_and_not_kept() -> None:
    values = {"tokenizer.ggml.tokens": text_array(5000, length=5)}
    head = COUNTS + struct.pack("<QQ", 0, 1) + b"".join(pair(k, v) for k, v in values.items())

    pairs = read_header(head, file_bytes=len(head)).pairs

    assert pairs == {"tokenizer.ggml.tokens": GgufArray(5000, None)}


def test_the_header_of_a_70b_model_takes_at_most_150_ms() -> None:
    holes = [Hole(f"blk.{i}.{part}.weight", (64, 64)) for i in range(80) for part in "abcdefghi"]
    shell = gguf_header({"general.architecture": "llama"}, holes)
    texts = pair("tokenizer.ggml.tokens", text_array(128_256, length=7)) + pair(
        "tokenizer.ggml.merges", text_array(280_147, length=9)
    )
    one_pair = 24 + len(pair("general.architecture", struct.pack("<IQ", 8, 5))) + 5
    head = shell[:16] + struct.pack("<Q", 3) + shell[24:one_pair] + texts + shell[one_pair:]
    size = file_size(head, holes)

    took_s = min(_seconds(lambda: read_header(head, file_bytes=size)) for _ in range(5))

    assert took_s < 0.15


def test_the_worst_array_is_refused_or_read_within_a_second() -> None:
    array = text_array(1 << 21, length=0)
    head = COUNTS + struct.pack("<QQ", 0, 1) + pair("k", array)

    assert _seconds(lambda: read_header(head, file_bytes=len(head))) < 1.0


def _seconds(act: Callable[[], object]) -> float:
    start_s = time.process_time()
    act()
    return time.process_time() - start_s


@settings(max_examples=300, deadline=1000)
@given(data=st.binary(max_size=2000), prefix=st.sampled_from([b"", b"GGUF", COUNTS]))
def test_any_bytes_are_a_header_or_a_named_error(data: bytes, prefix: bytes) -> None:
    assert outcome(prefix + data)


@settings(max_examples=500, deadline=1000)
@given(at=st.integers(0, len(HEADER) - 8), patch=st.binary(min_size=1, max_size=8))
def test_a_mutated_header_is_a_header_or_a_named_error(at: int, patch: bytes) -> None:
    assert outcome(HEADER[:at] + patch + HEADER[at + len(patch) :])


@settings(max_examples=200, deadline=1000)
@given(at=st.integers(0, len(HEADER) - 8), number=st.integers(0, (1 << 64) - 1))
def test_no_count_costs_time_or_memory(at: int, number: int) -> None:
    assert outcome(HEADER[:at] + struct.pack("<Q", number) + HEADER[at + 8 :])


@pytest.mark.parametrize("known_bytes", [None, SIZE], ids=["cut off", "read piece by piece"])
def test_a_file_cut_anywhere_asks_for_more_or_is_named(known_bytes: int | None) -> None:
    for length in range(len(HEADER)):
        head = HEADER[:length]
        with pytest.raises((GgufError, NeedMore)) as caught:
            read_header(head, file_bytes=length if known_bytes is None else known_bytes)
        if known_bytes is None:
            assert isinstance(caught.value, GgufError)


SCALARS = {
    0: ("<B", st.integers(0, 2**8 - 1)),
    1: ("<b", st.integers(-(2**7), 2**7 - 1)),
    2: ("<H", st.integers(0, 2**16 - 1)),
    3: ("<h", st.integers(-(2**15), 2**15 - 1)),
    4: ("<I", st.integers(0, 2**32 - 1)),
    5: ("<i", st.integers(-(2**31), 2**31 - 1)),
    6: ("<f", st.floats(width=32, allow_nan=False)),
    7: ("<?", st.booleans()),
    10: ("<Q", st.integers(0, 2**64 - 1)),
    11: ("<q", st.integers(-(2**63), 2**63 - 1)),
    12: ("<d", st.floats(allow_nan=False)),
}
"""Every scalar type of a GGUF file: its layout, its values."""


@given(data=st.data(), number=st.sampled_from(sorted(SCALARS)))
def test_any_value_of_any_type_is_read_back(data: st.DataObject, number: int) -> None:
    layout, values = SCALARS[number]
    one = data.draw(values)
    many = data.draw(st.lists(values, max_size=20))
    body = b"".join(struct.pack(layout, item) for item in many)
    pairs = (
        pair("one", struct.pack("<I", number) + struct.pack(layout, one)),
        pair("many", struct.pack("<IIQ", 9, number, len(many)) + body),
    )
    head = COUNTS + struct.pack("<QQ", 0, len(pairs)) + b"".join(pairs)

    found = read_header(head, file_bytes=len(head)).pairs

    assert found == {"one": one, "many": GgufArray(len(many), tuple(many))}


@given(st.text(max_size=200), st.lists(st.text(max_size=50), max_size=20))
def test_any_text_is_read_back(one: str, many: list[str]) -> None:
    head = gguf_header({"one": one, "many": many or ["x"]})

    found = read_header(head, file_bytes=len(head)).pairs

    assert found == {"one": one, "many": GgufArray(len(many or ["x"]), tuple(many or ["x"]))}


def outcome(data: bytes) -> str:
    """What reading came to; anything but a header or a named error is raised."""
    try:
        return read_header(data, file_bytes=len(data) + 4096).digest
    except (GgufError, NeedMore) as exc:
        return str(exc)
