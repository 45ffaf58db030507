"""proxy.outline, held against the parser that reads what it does not know."""

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.outline import Outline

HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nA: b\r\n\r\n"


class Parsed:
    """What httptools makes of bytes: the messages in them, in full."""

    def __init__(self, data: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.url = self.body = b""
        self.n_begun = self.n_ended = 0
        self.is_refused = False
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_refused = True

    def on_message_begin(self) -> None:
        self.n_begun += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.n_ended += 1

    @property
    def is_one(self) -> bool:
        """Whether it was one message and no more; its headers are only its own then."""
        return not self.is_refused and self.n_begun == self.n_ended == 1

    @property
    def said(self) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
        return self.url, self.headers, self.body


def outline(data: bytes, *, start: bytes = b"POST ") -> Outline | None:
    return Outline.of(data, Parsed(data).headers, start=start)


@pytest.mark.parametrize(
    ("again", "found"),
    [
        (HEAD + b"12345", (b"5", b"12345")),
        (HEAD.replace(b"5", b"0"), (b"0", b"")),
        (HEAD.replace(b"5", b"11") + b"hello world", (b"11", b"hello world")),
        (HEAD.replace(b"5", b"007") + b"\r\n\r\n\r\n\r", (b"007", b"\r\n\r\n\r\n\r")),
    ],
    ids=["the same length", "none", "another", "zeros before it, blank lines in it"],
)
def test_a_message_with_the_same_head_is_known_by_its_bytes(
    again: bytes, found: tuple[bytes, bytes]
) -> None:
    known = outline(HEAD + b"hello")

    assert known is not None
    assert known.again(again) == found


def test_lengths_may_come_and_go_and_a_body_of_another_length_is_known_under_none() -> None:
    known = outline(HEAD + b"hello")
    eleven = HEAD.replace(b"5", b"11")

    assert known is not None
    assert known.again(eleven + b"hello world") == (b"11", b"hello world")
    assert known.again(eleven + b"hello") is None
    assert known.again(HEAD + b"hello world") is None
    assert known.again(HEAD + b"hello") == (b"5", b"hello")
    assert known.again(eleven + b"hello world") == (b"11", b"hello world")


@pytest.mark.parametrize(
    "other",
    [
        HEAD + b"hell",
        HEAD + b"hello!",
        HEAD + b"hello" + HEAD + b"hello",
        HEAD.replace(b"5", b"+5") + b"hello",
        HEAD.replace(b" 5", b" 5 ") + b"hello",
        HEAD.replace(b"5", b"") + b"",
        HEAD.replace(b"5", b"5, 5") + b"hello",
        HEAD.replace(b"5", b"5_0") + b"x" * 50,
        HEAD.replace(b"5", b"0" * 16 + b"5") + b"hello",
        HEAD.replace(b"5", "\u0665".encode()) + b"hello",
        HEAD.replace(b"A: b", b"A: c") + b"hello",
        HEAD.replace(b"A: b", b"A: b\r\nContent-Length: 5") + b"hello",
        HEAD.replace(b"embeddings", b"models"),
        HEAD[:-2],
        b"",
    ],
)
def test_any_other_message_is_left_to_the_parser(other: bytes) -> None:
    known = outline(HEAD + b"hello")

    assert known is not None
    assert known.again(other) is None


def test_a_message_without_a_body_is_known_alone() -> None:
    get = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: Keep-Alive\r\n\r\n"
    known = outline(get, start=b"GET ")

    assert known is not None
    assert known.again(get) == (b"", b"")
    assert known.again(get + get) is None


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"A: b", b"Expect: 100-continue"),
        (b"A: b", b"Connection: close"),
        (b"A: b", b"Connection: Upgrade\r\nUpgrade: h2c"),
        (b"A: b", b"A: b\r\n c"),
        (b"A: b", b"A: b\r\n\tc"),
        (b"A: b\r\n", b"A: b\n"),
        (b"POST", b"\r\nPOST"),
    ],
)
def test_a_head_that_says_more_or_ends_its_lines_otherwise_has_no_outline(
    line: bytes, instead: bytes
) -> None:
    assert outline(HEAD.replace(line, instead) + b"hello") is None


FIELDS = st.sampled_from(
    [
        b"Host: localhost", b"Content-Length: 5", b"content-length:0", b"Content-Length: 12",
        b"CONTENT-LENGTH:\t3", b"Content-Length : 5", b"X-Content-Length: 5", b"A: b\r\n c", b"A:",
        b"Transfer-Encoding: chunked", b"Connection: keep-alive", b"Connection: close",
        b"A: b\n", b"A: \r\n", b"", b" Content-Length: 7", b"Content-Length: 5\r\n 5",
        b"Authorization: Bearer x", b"Upgrade: h2c", b"Content-Length: 5\n",
    ]
)  # fmt: skip
HEADS = st.lists(FIELDS, max_size=5).map(
    lambda fields: b"\r\n".join((b"POST /a HTTP/1.1", *fields)) + b"\r\n\r\n"
)
BODIES = st.sampled_from([b"", b"hello", b"hello world!", b"abc", b"\r\n\r\n", b"POST / HTTP/1.1"])


@given(first=st.tuples(HEADS, BODIES), then=st.tuples(HEADS, BODIES), length=st.binary(max_size=4))
@settings(max_examples=400, deadline=None)
def test_whatever_an_outline_knows_the_parser_would_have_said(
    first: tuple[bytes, bytes], then: tuple[bytes, bytes], length: bytes
) -> None:
    came = b"".join(first)
    parsed = Parsed(came)
    known = Outline.of(came, parsed.headers, start=b"POST ") if parsed.is_one else None
    if known is None:
        return

    came_next = (b"".join(then), first[0] + then[1], first[0].replace(b"5", length) + then[1])
    for data in (*came_next, *came_next, came):  # the last length that was told is kept
        found = known.again(data)
        if found is not None:
            told, body = found
            again = Parsed(data)
            assert again.is_one
            assert again.said == (parsed.url, with_length(parsed.headers, told), body)


def with_length(headers: list[tuple[bytes, bytes]], told: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, told if name == b"content-length" else value) for name, value in headers]
