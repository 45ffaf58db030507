from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.child.sse import EventReader, WholeEvents, parted

PAYLOADS = st.lists(st.binary(min_size=1, max_size=60).filter(lambda b: b"\n" not in b), max_size=8)


@given(payloads=PAYLOADS, cuts=st.lists(st.integers(0, 600), max_size=12))
def test_events_are_the_same_however_the_stream_was_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(b"data: %b\n\n" % payload for payload in payloads)
    marks = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    reader = EventReader("child")

    events = [event for a, b in pairwise(marks) for event in reader.feed(stream[a:b])]

    assert events == payloads


@pytest.mark.parametrize("ping", [b":\n\n", b": ping\n\n"], ids=["bare", "worded"])
def test_pings_are_dropped(ping: bytes) -> None:
    reader = EventReader("child")

    events = reader.feed(ping + b"data: 1\n\n" + ping + b"data: 2\n\n")

    assert events == [b"1", b"2"]


def test_an_unfinished_event_is_kept_for_what_follows() -> None:
    reader = EventReader("child")

    assert reader.feed(b"data: 1\n") == []
    assert reader.feed(b"\ndata: 2") == [b"1"]


@given(payloads=PAYLOADS, cuts=st.lists(st.integers(0, 600), max_size=12))
def test_a_stream_is_passed_on_unchanged_and_in_whole_events(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(b"data: %b\n\n" % payload for payload in payloads)
    marks = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    whole = WholeEvents("child")

    parts = [whole.take(stream[a:b]) for a, b in pairwise(marks)]

    assert b"".join(parts) == stream
    assert all(part.endswith(b"\n\n") for part in parts if part)


def test_half_an_event_is_held_back() -> None:
    whole = WholeEvents("child")

    assert whole.take(b"data: 1\n\ndata: 2") == b"data: 1\n\n"
    assert whole.take(b"\n") == b""
    assert whole.take(b"\n") == b"data: 2\n\n"


ERROR = b'data: {"error":{"code":500}}\n\n'
SAID = b'data: {"text":"data: {\\"error\\":"}\n\n'


@pytest.mark.parametrize(
    ("events", "before", "error"),
    [
        (SAID, SAID, b""),
        (ERROR, b"", b'{"error":{"code":500}}'),
        (SAID + ERROR, SAID, b'{"error":{"code":500}}'),
        (ERROR + SAID, b"", b'{"error":{"code":500}}'),
    ],
    ids=["a text that looks like one", "alone", "after a token", "before another event"],
)
def test_an_error_is_told_from_what_came_before_it(
    events: bytes, before: bytes, error: bytes
) -> None:
    assert parted(events) == (before, error)
