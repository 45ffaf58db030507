"""proxy.openai.assemble, and the pieces of proxy.child.chunks that it is made of."""

import json
from typing import Any

import pytest

from proxy.errors import ChildFailed, UpstreamBroken
from proxy.openai.assemble import Assembly

TIMINGS = {"prompt_n": 3, "prompt_ms": 30.0, "predicted_n": 2, "predicted_ms": 40.0, "cache_n": 1}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "id": "c", "model": "m"}
LAST = {"choices": [], "id": "c", "model": "m", "usage": {"total_tokens": 5}, "timings": TIMINGS}


def delta(**members: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": members, "finish_reason": None}]}


def assembled(*chunks: dict[str, Any], chat: bool = True) -> Assembly:
    """An assembly that was given these chunks and the stream's end."""
    whole = Assembly("child", chat=chat)
    for chunk in (*chunks, END, LAST):
        whole.add(json.dumps(chunk).encode())
    whole.add(b"[DONE]")
    return whole


def message(*chunks: dict[str, Any]) -> Any:
    return json.loads(assembled(*chunks).reply())["choices"][0]["message"]


def test_texts_and_reasoning_are_joined_as_they_were_written() -> None:
    told = message(
        delta(role="assistant", content=None),
        delta(reasoning_content="h\u00e9"),
        delta(reasoning_content="m"),
        delta(content='a "quoted'),
        delta(content='"\n'),
    )

    assert told == {"role": "assistant", "content": 'a "quoted"\n', "reasoning_content": "h\u00e9m"}


def test_tool_calls_are_joined_by_their_index_and_leave_the_text_empty() -> None:
    def piece(index: int, arguments: str, **more: object) -> dict[str, object]:
        return {"index": index, "function": {"arguments": arguments, **more}}

    told = message(
        delta(tool_calls=[{**piece(1, "{}", name="g"), "id": "c2"}]),
        delta(tool_calls=[{**piece(0, "", name="f"), "id": "c1"}]),
        delta(tool_calls=[piece(0, '{"city":')]),
        delta(tool_calls=[piece(0, '"Oslo"}')]),
    )

    assert told["content"] == ""
    assert told["tool_calls"] == [
        {"type": "function", "id": "c1", "function": {"name": "f", "arguments": '{"city":"Oslo"}'}},
        {"type": "function", "id": "c2", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_usage_and_timings_are_those_of_the_last_chunk_that_has_them() -> None:
    whole = assembled(delta(content="x"))

    reply = json.loads(whole.reply())

    assert (reply["usage"], reply["timings"]) == ({"total_tokens": 5}, TIMINGS)
    assert whole.timings is not None
    assert whole.timings.usage().decode_s == 0.04


def test_a_stream_that_never_said_done_is_no_reply() -> None:
    whole = Assembly("child", chat=True)
    whole.add(json.dumps(END).encode())

    with pytest.raises(UpstreamBroken, match="ended before its end"):
        whole.reply()


def test_a_stream_that_never_finished_is_no_reply() -> None:
    whole = Assembly("child", chat=True)
    whole.add(json.dumps(delta(content="x")).encode())
    whole.add(b"[DONE]")

    with pytest.raises(UpstreamBroken, match="ended before its end"):
        whole.reply()


@pytest.mark.parametrize(
    ("event", "error", "says"),
    [
        (b'{"error":{"message":"out of luck"}}', ChildFailed, "out of luck"),
        (b'{"choices":', UpstreamBroken, "another shape"),
        (b'{"choices":5}', UpstreamBroken, "another shape"),
    ],
    ids=["an error", "cut", "another type"],
)
def test_an_event_that_is_no_chunk_is_raised(
    event: bytes, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Assembly("child", chat=True).add(event)


def test_the_pieces_of_several_choices_are_told_apart_by_their_index() -> None:
    def piece(index: int, text: str, finish: str | None = None, **more: object) -> bytes:
        choice = {"index": index, "text": text, "finish_reason": finish}
        return json.dumps({"choices": [choice], **more}).encode()

    usage = {"completion_tokens": 1, "prompt_tokens": 2, "total_tokens": 3}
    whole = Assembly("child", chat=False, n_choices=2)
    for event in (
        piece(1, "b"),
        piece(0, "a"),
        piece(1, "", "stop", usage=usage, timings=TIMINGS),
        piece(0, "", "length", usage=usage, timings=TIMINGS),
        b"[DONE]",
    ):
        whole.add(event)

    reply = json.loads(whole.reply())

    told = [(choice["text"], choice["finish_reason"]) for choice in reply["choices"]]
    assert told == [("a", "length"), ("b", "stop")]
    assert (reply["usage"]["total_tokens"], reply["timings"]["predicted_n"]) == (6, 4)


def test_a_choice_that_was_not_asked_for_is_never_mixed_into_another() -> None:
    with pytest.raises(UpstreamBroken, match="nobody asked for"):
        Assembly("child", chat=False).add(b'{"choices":[{"index":1,"text":"x"}]}')
