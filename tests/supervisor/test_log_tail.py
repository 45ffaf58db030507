from supervisor.log_tail import MAX_LINE_BYTES, LogTail


def test_lines_are_joined_over_the_pieces_they_came_in() -> None:
    tail = LogTail()

    lines = [line for piece in (b"fir", b"st\nsec", b"ond\n") for line in tail.feed(piece)]

    assert lines == ["first", "second"]


def test_an_unfinished_line_is_the_last_one() -> None:
    tail = LogTail()

    list(tail.feed(b"whole\nhalf"))

    assert tail.last(2) == ("whole", "half")


def test_the_oldest_lines_make_way() -> None:
    tail = LogTail(max_lines=3)

    list(tail.feed(b"".join(b"%d\n" % n for n in range(10))))

    assert tail.last(10) == ("7", "8", "9")


def test_a_line_without_end_is_cut() -> None:
    tail = LogTail()

    for _ in range(100):
        list(tail.feed(b"x" * 1000))

    assert len(tail.last(1)[0]) == MAX_LINE_BYTES


def test_what_is_no_utf8_stays_readable() -> None:
    tail = LogTail()

    assert list(tail.feed(b"caf\xe9\r\n")) == ["caf\N{REPLACEMENT CHARACTER}"]


def test_asking_for_nothing_gives_nothing() -> None:
    tail = LogTail()
    list(tail.feed(b"a\n"))

    assert tail.last(0) == ()
