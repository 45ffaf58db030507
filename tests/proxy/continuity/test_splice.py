import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.continuity.continuation import Continue, Finish, Replay, Resend
from proxy.continuity.delivered import Delivered, Kind, Progress, Told, Unreadable, told_by
from proxy.continuity.splice import Diverged, Splice, ending

FRAME = {"id": "new", "created": 9, "model": "m", "object": "chat.completion.chunk"}
OLD = {**FRAME, "id": "old", "created": 7}
ON = Continue(b"", sent_tokens=3, is_exact=True)
READ = Progress(total=40, cache=10, time_ms=50.0)
ROLE = {"role": "assistant", "content": None}


def chunk(
    delta: dict[str, Any], *, frame: dict[str, Any] = FRAME, finish: str | None = None, **more: Any
) -> bytes:
    choice = {"finish_reason": finish, "index": 0, "delta": delta}
    return json.dumps({"choices": [choice], **frame, **more}).encode()


def said(text: str, **more: Any) -> bytes:
    return chunk({"content": text}, **more)


def raw(text: str, **more: Any) -> bytes:
    return json.dumps({"index": 0, "content": text, **more}).encode()


def told(*events: bytes, kind: Kind = Kind.CHAT) -> Told:
    delivered = Delivered()
    for event in events:
        delivered.add(b"data: " + event + b"\n\n")
    return told_by(delivered, kind)


BEGUN = told(chunk(ROLE, frame=OLD), said("Hel", frame=OLD), said("lo", frame=OLD))


def spliced(splice: Splice, *events: bytes) -> list[Any]:
    taken = (splice.take(event) for event in events)
    return [json.loads(event) if event != b"[DONE]" else "end" for event in taken if event]


def texts(found: list[Any]) -> list[Any]:
    return [event["choices"][0]["delta"].get("content") for event in found if event != "end"]


def test_a_continuation_goes_on_under_the_first_id_without_a_second_role() -> None:
    found = spliced(Splice(ON, BEGUN), chunk(ROLE), said(" you"), b"[DONE]")

    assert texts(found) == [" you"]
    assert found[0]["id"] == "old"
    assert found[-1] == "end"


def test_what_it_took_is_told_as_of_one_reply() -> None:
    timings = {
        "cache_n": 42, "prompt_n": 1, "prompt_ms": 5.0, "predicted_n": 7, "predicted_ms": 70.0,
        "predicted_per_token_ms": 10.0,
    }  # fmt: skip
    usage = {"completion_tokens": 7, "prompt_tokens": 43, "total_tokens": 50}

    (found,) = spliced(
        Splice(ON, BEGUN, prompt=READ), chunk({}, finish="stop", usage=usage, timings=timings)
    )

    assert found["usage"] == {
        "completion_tokens": 10,
        "prompt_tokens": 40,
        "total_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 10},
    }
    assert found["timings"] == {
        "cache_n": 10, "prompt_n": 30, "prompt_ms": 50.0, "predicted_n": 10,
        "predicted_ms": 100.0, "predicted_per_token_ms": 10.0,
    }  # fmt: skip


def test_a_raw_end_is_told_likewise() -> None:
    so_far = told(raw("Hello"), kind=Kind.COMPLETION)

    found = spliced(
        Splice(ON, so_far, prompt=READ),
        raw(" you", tokens_predicted=1, tokens_evaluated=43),
        raw("", stop=True, tokens_predicted=7, tokens_evaluated=43),
    )

    assert [(e["tokens_predicted"], e["tokens_evaluated"]) for e in found] == [(4, 40), (10, 40)]


def test_how_the_prompt_is_read_again_is_not_shown_but_noted() -> None:
    progress = {"total": 43, "cache": 42, "processed": 43, "time_ms": 1}
    splice = Splice(ON, BEGUN, wants_progress=True)

    assert not spliced(splice, chunk(ROLE, prompt_progress=progress))
    assert (splice.prompt_tokens, splice.cached_tokens) == (43, 42)


def test_a_caller_who_has_nothing_yet_sees_the_prompt_read() -> None:
    progress = chunk(ROLE, prompt_progress={"total": 43, "cache": 0})

    assert spliced(Splice(Resend(), told(), wants_progress=True), progress)
    assert not spliced(Splice(Resend(), told()), progress)


def test_the_echo_of_a_callers_beginning_comes_without_its_progress() -> None:
    echo = said("Hello", prompt_progress={"total": 43, "cache": 0})

    found = spliced(Splice(Resend(), told()), echo)

    assert texts(found) == ["Hello"]
    assert "prompt_progress" not in found[0]


@pytest.mark.parametrize(
    ("again", "left"),
    [
        (["Hel", "lo", " you"], [" you"]),
        (["Hello you"], [" you"]),
        (["H", "ello", " ", "you"], [" ", "you"]),
    ],
    ids=["in the same pieces", "in one", "in others"],
)
def test_of_a_replay_only_what_is_new_is_told(again: list[str], left: list[str]) -> None:
    splice = Splice(Replay(), BEGUN)

    found = spliced(splice, chunk(ROLE), *map(said, again), chunk({}, finish="stop"), b"[DONE]")

    assert texts(found) == [*left, None]


@pytest.mark.parametrize(
    "again",
    [
        [said("Hal")],
        [said("Hel"), chunk({}, finish="stop")],
        [said("Hel"), b"[DONE]"],
    ],
    ids=["another text", "an earlier end", "a stream that ends"],
)
def test_a_replay_that_says_something_else_is_no_reply(again: list[bytes]) -> None:
    with pytest.raises(Diverged):
        spliced(Splice(Replay(), BEGUN), *again)


def call(arguments: str, *, name: str | None = None, id_: str | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    head = {"id": id_, "type": "function"} if id_ else {}
    return {"tool_calls": [{"index": 0, **head, "function": function}]}


def test_a_replay_that_says_what_was_to_be_called_is_no_reply() -> None:
    so_far = told(chunk(call('{"a', name="f", id_="first")))

    with pytest.raises(Diverged):
        spliced(Splice(Replay(), so_far), said("I do not know."))


def test_a_call_that_follows_a_text_is_new_once_the_text_was_written_again() -> None:
    found = spliced(Splice(Replay(), BEGUN), said("Hello"), chunk(call("{", name="f", id_="one")))

    assert [event["choices"][0]["delta"] for event in found] == [call("{", name="f", id_="one")]


def test_a_replayed_tool_call_keeps_the_id_that_its_caller_knows() -> None:
    so_far = told(chunk(call('{"a', name="f", id_="first")))

    found = spliced(
        Splice(Replay(), so_far),
        chunk(call("{", name="f", id_="second")),
        chunk(call('"a":')),
        chunk(call("1}")),
    )

    deltas = [event["choices"][0]["delta"] for event in found]
    assert deltas == [call('":'), call("1}")]


def test_a_replayed_text_completion_and_a_raw_one_are_cut_too() -> None:
    def text(piece: str) -> bytes:
        return json.dumps({"choices": [{"text": piece, "index": 0}], **FRAME}).encode()

    plain = spliced(Splice(Replay(), told(text("Hel"), kind=Kind.TEXT)), text("Hello"), text("!"))
    bare = spliced(
        Splice(Replay(), told(raw("Hel"), kind=Kind.COMPLETION)), raw("He"), raw("llo"), raw("!")
    )

    assert [event["choices"][0]["text"] for event in plain] == ["lo", "!"]
    assert [event["content"] for event in bare] == ["lo", "!"]


def test_choices_are_replayed_each_by_itself() -> None:
    def text(piece: str, index: int, *, finish: str | None = None) -> bytes:
        choice = {"text": piece, "index": index, "finish_reason": finish}
        return json.dumps({"choices": [choice], **FRAME}).encode()

    so_far = told(text("ab", 0), text("x", 1), kind=Kind.TEXT)
    again = [text("abc", 0), text("", 0, finish="stop"), text("xy", 1), text("", 1, finish="stop")]

    found = spliced(Splice(Replay(), so_far), *again, b"[DONE]")

    pieces = [(e["choices"][0]["index"], e["choices"][0]["text"]) for e in found[:-1]]
    assert pieces == [(0, "c"), (0, ""), (1, "y"), (1, "")]


def test_the_end_of_a_choice_that_was_told_is_not_told_again() -> None:
    ended = {"index": 0, "content": "", "stop": True}
    before = told(
        raw("Hello"), json.dumps(ended).encode(), raw("Go", index=1), kind=Kind.COMPLETION
    )
    again = [raw("Hello"), json.dumps(ended).encode(), raw("Good", index=1)]

    found = spliced(Splice(Replay(), before), *again, raw("", index=1, stop=True))

    assert [(event["index"], event["content"]) for event in found] == [(1, "od"), (1, "")]


def test_the_end_of_a_raw_reply_has_the_prompt_of_its_caller() -> None:
    end = {"index": 0, "content": "", "stop": True, "prompt": "Once. Hello"}

    (found,) = spliced(
        Splice(ON, told(raw("Hello"), kind=Kind.COMPLETION)),
        json.dumps(end | {"tokens_evaluated": 9, "tokens_predicted": 2}).encode(),
    )

    assert found["prompt"] == "Once. "


def test_an_error_of_the_second_child_is_passed_on() -> None:
    error = b'{"error":{"code":500,"message":"no"}}'

    assert Splice(ON, BEGUN).take(error) == error


@pytest.mark.parametrize("event", [b"{", b"[]", b"5", b'{"choices":5}'])
def test_what_no_child_writes_is_not_passed_on(event: bytes) -> None:
    with pytest.raises(Unreadable):
        Splice(ON, BEGUN).take(event)


def test_the_end_alone_is_written_where_all_else_was() -> None:
    found = ending(Finish("length", 3), BEGUN, prompt=READ, wants_usage=True)

    last, usage = (json.loads(event) for event in found[:-1])
    assert last["choices"] == [{"finish_reason": "length", "index": 0, "delta": {}}]
    assert last["id"] == usage["id"] == "old"
    assert usage["usage"] == {"completion_tokens": 3, "prompt_tokens": 40, "total_tokens": 43}
    assert found[-1] == b"[DONE]"


def test_an_end_that_was_told_is_not_told_twice() -> None:
    finished = told(said("a"), chunk({}, finish="stop"))
    done = told(said("a"), chunk({}, finish="stop"), b"[DONE]")

    assert ending(Finish("stop", 1), finished, prompt=None, wants_usage=False) == [b"[DONE]"]
    assert ending(Finish("stop", 1), done, prompt=None, wants_usage=True) == []


@given(
    reply=st.text(min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    at=st.integers(0, 40),
)
def test_wherever_a_reply_breaks_its_replay_makes_it_whole(
    reply: str, cuts: list[int], at: int
) -> None:
    places = sorted({0, len(reply), *(min(cut, len(reply)) for cut in cuts)})
    pieces = [reply[a:b] for a, b in pairwise(places)]
    so_far = told(said(reply[:at])) if reply[:at] else told()

    found = spliced(Splice(Replay(), so_far), *map(said, pieces), b"[DONE]")

    assert reply[:at] + "".join(filter(None, texts(found))) == reply
