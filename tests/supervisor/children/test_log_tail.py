import pytest

from supervisor.children.log_tail import BURST_BYTES, MAX_CHARS, MAX_LINE_BYTES, LogTail


def test_lines_are_joined_over_the_pieces_they_came_in() -> None:
    tail = LogTail()

    lines = [
        line for piece in (b"fir", b"st\nsec", b"ond\n") for line in tail.feed(piece, now_s=0.0)
    ]

    assert lines == ["first", "second"]


def test_an_unfinished_line_is_the_last_one() -> None:
    tail = LogTail()

    list(tail.feed(b"whole\nhalf", now_s=0.0))

    assert tail.last(2) == ("whole", "half")


def test_the_oldest_lines_make_way() -> None:
    tail = LogTail(max_lines=3)

    list(tail.feed(b"".join(b"%d\n" % n for n in range(10)), now_s=0.0))

    assert tail.last(10) == ("7", "8", "9")


def test_a_line_without_end_is_cut() -> None:
    tail = LogTail()

    for _ in range(100):
        list(tail.feed(b"x" * 1000, now_s=0.0))

    assert len(tail.last(1)[0]) == MAX_LINE_BYTES


def test_what_is_no_utf8_stays_readable() -> None:
    tail = LogTail()

    assert list(tail.feed(b"caf\xe9\r\n", now_s=0.0)) == ["caf\N{REPLACEMENT CHARACTER}"]


def test_asking_for_nothing_gives_nothing() -> None:
    tail = LogTail()
    list(tail.feed(b"a\n", now_s=0.0))

    assert tail.last(0) == ()


def fed(tail: LogTail, data: bytes, *, now_s: float) -> list[str]:
    return list(tail.feed(data, now_s=now_s))


def test_a_flood_is_dropped_unread_but_for_its_end() -> None:
    tail = LogTail()
    fed(tail, b"first\n" + b"x\n" * (BURST_BYTES // 2 - 10), now_s=0.0)

    read = [line for _ in range(100) for line in fed(tail, b"flood\n" * 10_000, now_s=0.0)]
    read += fed(tail, b"flood\nCUDA error: out of memory\n", now_s=0.0)

    assert len(read) < 2 * 10_000
    assert tail.last(1) == ("CUDA error: out of memory",)


def test_after_a_flood_it_reads_on_and_tells_of_the_gap() -> None:
    tail = LogTail()
    fed(tail, b"x\n" * (BURST_BYTES // 2), now_s=0.0)
    fed(tail, b"gone\n" * 100_000, now_s=0.0)
    fed(tail, b"the end\n", now_s=0.0)

    lines = fed(tail, b"calm again\n", now_s=10.0)

    assert lines[0] == "[inferenceosd: 500008 bytes came too fast and were not read]"
    assert lines[-2:] == ["the end", "calm again"]


def test_long_lines_make_way_by_their_length() -> None:
    tail = LogTail()

    for n in range(2 * MAX_CHARS // MAX_LINE_BYTES):
        fed(tail, b"y" * MAX_LINE_BYTES + b"\n", now_s=float(n))

    assert sum(map(len, tail.last(10_000))) <= MAX_CHARS


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (b'{"error":{"code":500,"message":"Failed to parse tools: SECRET"}}', "500 "),
        (b'{"error":{"code":400,"message":"' + b"SECRET" * 2000, "400 "),
        (b"SECRET", " "),
    ],
    ids=["whole", "longer than a line", "of another shape"],
)
def test_what_a_child_says_of_a_refused_request_is_not_kept(said: bytes, kept: str) -> None:
    tail = LogTail()

    lines = list(tail.feed(b"4.18.394.789 W srv    operator(): got exception: " + said, now_s=0.0))
    unfinished = tail.last(1)
    lines += tail.feed(b"\n", now_s=0.0)

    line = f"4.18.394.789 W srv    operator(): got exception: {kept.strip()} (its caller was told)"
    assert (lines, unfinished) == ([line], (line,))
