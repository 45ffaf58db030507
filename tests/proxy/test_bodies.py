import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.bodies import MAX_VALUES, amended, bound_values, decoded, read_body, texts_in
from proxy.errors import BadJson, BodyTooLarge, CallerLeft, TooManyValues


class Asked(msgspec.Struct):
    model: str | None = None
    n: int | None = None


ASKED = msgspec.json.Decoder(Asked)


def receiving(*messages: dict[str, Any]) -> Callable[[], Awaitable[dict[str, Any]]]:
    """An ASGI `receive` that gives these messages, one after another."""
    left = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(left)

    return receive


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_parts_is_read_whole() -> None:
    receive = receiving(part(b"ab", more=True), part(b"cd"))

    assert await read_body(receive, [], limit_bytes=4) == b"abcd"


async def test_a_body_announced_over_the_limit_is_refused_unread() -> None:
    receive = receiving()

    with pytest.raises(BodyTooLarge):
        await read_body(receive, [(b"content-length", b"5")], limit_bytes=4)


async def test_a_body_that_turns_out_over_the_limit_is_refused() -> None:
    receive = receiving(part(b"abc", more=True), part(b"de", more=True))

    with pytest.raises(BodyTooLarge):
        await read_body(receive, [], limit_bytes=4)


async def test_a_caller_who_leaves_in_mid_body_is_no_request() -> None:
    receive = receiving(part(b"abc", more=True), {"type": "http.disconnect"})

    with pytest.raises(CallerLeft):
        await read_body(receive, [], limit_bytes=4)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(b"", "missing request body", id="empty"),
        pytest.param(b" \n", "missing request body", id="blank"),
        pytest.param(b'{"model":', "no JSON", id="cut"),
        pytest.param(b"model=x", "no JSON", id="a form"),
        pytest.param(b"[1]", "wrong shape", id="an array"),
        pytest.param(b'{"model":5}', "wrong shape", id="a number for a name"),
        pytest.param(b'{"model":"a"} x', "no JSON", id="trailing text"),
        pytest.param(b'{"model":"\xff"}', "no JSON", id="no UTF-8"),
        pytest.param(b'{"a":' + b"[" * 100_000, "nested too deeply", id="100,000 brackets"),
        pytest.param(b'{"n":' + b"9" * 5000 + b"}", "wrong shape", id="5,000 digits"),
    ],
)
def test_what_is_no_request_is_refused_with_a_reason(body: bytes, why: str) -> None:
    with pytest.raises(BadJson, match=why):
        decoded(body, ASKED)


@pytest.mark.parametrize("tiny", [b"0,", b"[],", b'{"a":1},', b'"",', b'"\\"",', b'"', b"{"])
def test_a_body_of_nothing_but_tiny_values_is_refused_undecoded(tiny: bytes) -> None:
    body = b'{"model":"tiny","context":[' + tiny * (4 * MAX_VALUES + 1)

    with pytest.raises(TooManyValues, match=f"more than {MAX_VALUES} values"):
        decoded(body, ASKED)


@pytest.mark.parametrize("text", ["a,b,", '{"k":[1,2]},', "[[[[", "\\,", '",', "\\\\,[{"], ids=repr)
def test_texts_may_hold_as_many_commas_and_brackets_as_they_like(text: str) -> None:
    body = json.dumps({"prompt": text * 100_000, "n": 1}).encode()

    bound_values(body, limit=2)

    with pytest.raises(TooManyValues):
        bound_values(body, limit=1)


@pytest.mark.parametrize("tail", [b"", b"\\\\", b'\\"', b'\\\\\\"', b"\\u005c"])
def test_a_quotation_mark_is_known_for_one_wherever_the_body_is_cut(tail: bytes) -> None:
    for n in range((64 << 10) - 20, (64 << 10) + 4):
        body = b'{"a":"' + b"x" * n + tail + b'","b":[1,2],"c":",[{"}'

        bound_values(body, limit=5)
        with pytest.raises(TooManyValues):
            bound_values(body, limit=4)


JSON_OBJECTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3),
    ),
    max_size=5,
)


@given(told=JSON_OBJECTS, blanks=st.sampled_from(["", " ", "\n\t "]), indent=st.booleans())
def test_amended_members_override_and_all_others_stay(
    told: dict[str, object], blanks: str, indent: bool
) -> None:
    body = (json.dumps(told, indent=2 if indent else None) + blanks).encode()

    result = json.loads(b"".join(amended(body, b'"id_slot":3,"stream":true')))

    assert result == {**told, "id_slot": 3, "stream": True}


def test_a_large_body_is_amended_without_a_copy() -> None:
    body = b'{"prompt":"' + b"x" * 1_000_000 + b'"}'

    first, _ = amended(body, b'"id_slot":0')

    assert isinstance(first, memoryview)
    assert first.obj is body


def test_every_text_is_found_however_deep_but_for_what_a_key_holds() -> None:
    told = {"a": ["one", 2, {"text": "two", "b": {"c": "three"}}], "text": ["four"]}

    assert sorted(texts_in(told)) == ["four", "one", "three", "two"]
    assert sorted(texts_in(told, but_for="text")) == ["one", "three"]
    assert list(texts_in("alone")) == ["alone"]
    assert list(texts_in(None)) == []
