import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.continuity import delivered
from proxy.continuity.delivered import (
    CONTENT,
    KEPT_BYTES,
    PACKED_BYTES,
    REASONING,
    Delivered,
    Kind,
    Unreadable,
    told_by,
)

FRAME = {"id": "chatcmpl-1", "created": 7, "model": "m", "object": "chat.completion.chunk"}


def chat(delta: dict[str, Any], *, index: int = 0, finish: str | None = None) -> bytes:
    choice = {"finish_reason": finish, "index": index, "delta": delta}
    return framed({"choices": [choice], **FRAME})


def framed(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def kept(*events: bytes) -> Delivered:
    found = Delivered()
    for event in events:
        found.add(event)
    return found


def test_what_went_out_is_read_back_text_by_text() -> None:
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{"}}
    told = told_by(
        kept(
            chat({"role": "assistant", "content": None}),
            b":\n\n",
            chat({"reasoning_content": "Hm"}) + chat({"content": "Hel"}),
            chat({"content": "lo 🌈"}),
            chat({"tool_calls": [call]}),
            chat({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}),
            chat({}, finish="tool_calls"),
            framed({"choices": [], **FRAME, "usage": {"completion_tokens": 3}}),
            b"data: [DONE]\n\n",
        ),
        Kind.CHAT,
    )

    assert told.texts == {
        (0, REASONING): "Hm",
        (0, CONTENT): "Hello 🌈",
        (0, "tool 0 name"): "f",
        (0, "tool 0 "): "{}",
    }
    assert told.has_calls
    assert told.has_reasoning
    assert told.call_ids == {(0, 0): "x"}
    assert told.finishes == {0: "tool_calls"}
    assert told.first.id == "chatcmpl-1"
    assert told.usage is not None
    assert told.is_done


def test_choices_are_told_apart() -> None:
    texts = [{"text": "a", "index": 1}, {"text": "b", "index": 0}, {"text": "c", "index": 1}]

    told = told_by(kept(*(framed({"choices": [t], **FRAME}) for t in texts)), Kind.TEXT)

    assert told.texts == {(1, CONTENT): "ac", (0, CONTENT): "b"}


def test_a_raw_stream_has_no_choices_and_its_progress_is_no_text() -> None:
    told = told_by(
        kept(
            framed({"content": "", "tokens": [0], "prompt_progress": {"total": 9}}),
            framed({"index": 0, "content": "ab", "timings": {"predicted_n": 2}}),
            framed({"index": 0, "content": "", "stop": True, "model": "m"}),
        ),
        Kind.COMPLETION,
    )

    assert told.texts == {(0, CONTENT): "ab"}
    assert told.predicted_n == 2
    assert told.is_done


def test_nothing_was_told_by_a_role_alone() -> None:
    told = told_by(kept(chat({"role": "assistant", "content": None})), Kind.CHAT)

    assert not told.has_text
    assert told.roles == {0}


@pytest.mark.parametrize("payload", [b"{", b"[]", b'{"choices":5}', b'{"id":"\xff"}'])
def test_what_no_child_writes_is_not_read(payload: bytes) -> None:
    with pytest.raises(Unreadable):
        told_by(kept(b"data: " + payload + b"\n\n"), Kind.CHAT)


def test_a_stream_beyond_its_bound_is_not_kept_at_all() -> None:
    found = kept(chat({"content": "a"}), bytes(KEPT_BYTES))

    assert not found.is_whole
    assert found.kept_bytes == 0
    assert found.held_bytes < 1000


@given(st.lists(st.text(min_size=1, max_size=20), min_size=50, max_size=300))
def test_no_more_is_kept_than_twice_what_went_out(texts: list[str]) -> None:
    events = [chat({"content": text}) for text in texts]

    found = kept(*events)

    assert found.held_bytes <= 2 * sum(map(len, events))
    assert told_by(found, Kind.CHAT).content == "".join(texts)


def test_of_a_long_stream_less_is_held_than_its_text_takes_in_any_dialect() -> None:
    texts = [f" word {n}" for n in range(4000)]

    found = kept(*(chat({"content": text}) for text in texts))

    assert found.held_bytes < 2 * PACKED_BYTES
    assert found.kept_bytes > 6 * PACKED_BYTES
    assert told_by(found, Kind.CHAT).content == "".join(texts)


def test_every_kind_is_one_of_the_childs_routes() -> None:
    assert {kind.value for kind in delivered.Kind} == {
        b"/v1/chat/completions",
        b"/v1/completions",
        b"/completion",
        b"/infill",
    }
