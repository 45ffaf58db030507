import json

import pytest

from proxy.errors import ChildFailed, UpstreamBroken
from proxy.ollama.reading import ChatReading, CompletionReading, Piece


def delta(**delta: object) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


def tool(index: int, arguments: str, **more: object) -> dict[str, object]:
    return {"index": index, "function": {"arguments": arguments, **more}}


def test_a_chunks_text_is_taken_as_it_is_written() -> None:
    reading = ChatReading("child", top_logprobs=0)
    event = b'{"choices":[{"delta":{"content":"\\u00e9\\n\\"q\\""}}]}'

    assert reading.read(event) == Piece(b'"\\u00e9\\n\\"q\\""')


QUOTES = rb'"\"}}],\"x"'
CHUNK = b'{"choices":[{"finish_reason":%b,"delta":{"content":%b}}],"id":"%b"%b}'


@pytest.mark.parametrize(
    ("event", "piece"),
    [
        pytest.param(CHUNK % (b"null", b'"b"', b"1", b""), Piece(b'"b"'), id="another text"),
        pytest.param(CHUNK % (b"null", b'"b"', b"2", b""), Piece(b'"b"'), id="another id"),
        pytest.param(
            CHUNK % (b"null", b'"b","reasoning_content":"c"', b"1", b""),
            Piece(b'"b"', b'"c"'),
            id="thinking too",
        ),
        pytest.param(CHUNK % (b"null", b'""', b"1", b""), None, id="no text"),
        pytest.param(CHUNK % (b"null", b"null", b"1", b""), None, id="null"),
        pytest.param(
            CHUNK % (b"null", QUOTES, b"1", b""), Piece(QUOTES), id="quotes"
        ),
    ],
)  # fmt: skip
def test_a_chunk_like_the_one_before_is_read_as_any_other(
    event: bytes, piece: Piece | None
) -> None:
    reading = ChatReading("child", top_logprobs=0)
    for _ in range(2):
        assert reading.read(CHUNK % (b"null", b'"a"', b"1", b"")) == Piece(b'"a"')

    assert reading.read(event) == piece
    assert reading.finish is None


def test_a_chunk_like_the_one_before_that_ends_the_reply_or_is_none_is_not_taken_for_it() -> None:
    reading = ChatReading("child", top_logprobs=0)
    reading.read(CHUNK % (b"null", b'"a"', b"1", b""))

    assert reading.read(CHUNK % (b'"length"', b'"b"', b"1", b"")) == Piece(b'"b"')
    assert reading.finish == "length"
    with pytest.raises(UpstreamBroken):
        reading.read(CHUNK % (b"null", b'"b" "c"', b"1", b""))


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b"[DONE]", id="the end"),
        pytest.param(delta(role="assistant", content=None), id="the role"),
        pytest.param(delta(), id="an empty delta"),
        pytest.param(delta(content=""), id="an empty text"),
        pytest.param(b'{"choices":[],"usage":{}}', id="usage"),
        pytest.param(
            b'{"choices":[{"delta":{"role":"assistant","content":null}}],"prompt_progress":{}}',
            id="progress",
        ),
    ],
)
def test_events_without_text_add_nothing(event: bytes) -> None:
    assert ChatReading("child", top_logprobs=0).read(event) is None


def test_reasoning_is_thinking() -> None:
    reading = ChatReading("child", top_logprobs=0)

    assert reading.read(delta(reasoning_content="hm")) == Piece(b'""', b'"hm"')


def test_tool_calls_are_collected_and_their_arguments_become_objects() -> None:
    reading = ChatReading("child", top_logprobs=0)
    first = {**tool(0, "", name="f"), "id": "c1", "type": "function"}
    for calls in ([first], [tool(0, '{"ci')], [tool(0, 'ty":"Oslo"}')], [tool(1, "{}", name="g")]):
        assert reading.read(delta(tool_calls=calls)) is None

    assert json.loads(reading.tool_calls()) == [
        {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"city": "Oslo"}}},
        {"function": {"index": 1, "name": "g", "arguments": {}}},
    ]


def test_arguments_that_are_no_object_are_told() -> None:
    reading = ChatReading("child", top_logprobs=0)
    reading.read(delta(tool_calls=[tool(0, "[1", name="f")]))

    with pytest.raises(ChildFailed, match="call to f"):
        reading.tool_calls()


@pytest.mark.parametrize(
    ("told", "reason"), [("length", "length"), ("stop", "stop"), ("tool_calls", "stop")]
)
def test_a_finish_reason_is_ollamas(told: str, reason: str) -> None:
    reading = ChatReading("child", top_logprobs=0)

    reading.read(json.dumps({"choices": [{"delta": {}, "finish_reason": told}]}).encode())

    assert reading.finish == reason


@pytest.mark.parametrize("top", [0, 1])
def test_logprobs_have_the_bytes_of_their_token_and_as_many_others_as_asked(top: int) -> None:
    entry = {"id": 1, "token": "é", "bytes": [1], "logprob": -0.5}
    others = [{**entry, "token": "e"}, {**entry, "token": "x"}]
    logprobs = {"content": [{**entry, "top_logprobs": others}]}
    event = {"choices": [{"delta": {"content": "é"}, "logprobs": logprobs}]}

    piece = ChatReading("child", top_logprobs=top).read(json.dumps(event).encode())

    assert piece is not None
    (told,) = json.loads(piece.logprobs)
    assert (told["token"], told["bytes"]) == ("é", [0xC3, 0xA9])
    assert [other["token"] for other in told.get("top_logprobs", [])] == ["e"][:top]


@pytest.mark.parametrize("reading", [ChatReading, CompletionReading])
def test_a_childs_error_and_what_is_no_event_are_raised(
    reading: type[ChatReading | CompletionReading],
) -> None:
    with pytest.raises(ChildFailed, match="out of luck"):
        reading("child", top_logprobs=0).read(b'{"error":{"message":"out of luck"}}')
    with pytest.raises(UpstreamBroken):
        reading("child", top_logprobs=0).read(b"{")


def test_a_completions_last_event_ends_it() -> None:
    reading = CompletionReading("child", top_logprobs=0)
    event = {"content": "", "stop": True, "stop_type": "limit", "timings": {"predicted_n": 3}}

    assert reading.read(b'{"content":" to","stop":false}') == Piece(b'" to"')
    assert reading.read(json.dumps(event).encode()) is None
    assert (reading.finish, reading.timings.predicted_n) == ("length", 3)
