import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.continuity.continuation import (
    MAX_SEED,
    Asked,
    Continue,
    Finish,
    Impossible,
    Replay,
    Resend,
    Way,
    asked_by,
    goes_on_anywhere,
    seed_member,
    way_on,
    written,
)
from proxy.continuity.delivered import CONTENT, REASONING, Channel, Kind, Progress, Told

USER = {"role": "user", "content": "Hi"}
GREEDY = {"temperature": 0, "seed": 1}


def asked(**members: Any) -> Asked:
    found = asked_by(json.dumps(members).encode())
    assert found is not None
    return found


def told(
    content: str = "Hello", *, kind: Kind = Kind.CHAT, texts: dict[Channel, str] | None = None
) -> Told:
    return Told(kind, texts={(0, CONTENT): content} if texts is None else texts)


def way(
    members: dict[str, Any],
    so_far: Told | None = None,
    *,
    keeps_math: bool = False,
    is_restored: bool = False,
    sent_tokens: int = 3,
) -> Way:
    return way_on(
        asked(**{"messages": [USER], **GREEDY, **members}),
        told() if so_far is None else so_far,
        keeps_math=keeps_math,
        is_restored=is_restored,
        sent_tokens=sent_tokens,
    )


def added(found: Way) -> dict[str, Any]:
    """The members that a continuation adds to its request."""
    assert isinstance(found, Continue)
    members: dict[str, Any] = json.loads(b"{" + found.extra + b"}")
    return members


def test_where_nothing_was_delivered_the_request_is_sent_again() -> None:
    assert isinstance(way({}, told(texts={})), Resend)
    assert isinstance(way({"tools": [{}], "n": 3}, told(texts={})), Resend)


def test_a_chat_goes_on_from_its_partial_message() -> None:
    found = way({}, told('He said "hi" 🌈'), is_restored=True, keeps_math=True)

    assert added(found) == {
        "messages": [USER, {"role": "assistant", "content": 'He said "hi" 🌈'}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert isinstance(found, Continue)
    assert found.is_exact


@pytest.mark.parametrize("kind", [Kind.TEXT, Kind.COMPLETION])
@pytest.mark.parametrize(
    ("prompt", "longer"),
    [
        ("Once", "OnceHello"),
        ([1, 2, 3], [1, 2, 3, "Hello"]),
        (["Once ", 5], ["Once ", 5, "Hello"]),
    ],
)
def test_a_text_goes_on_from_a_longer_prompt(kind: Kind, prompt: Any, longer: Any) -> None:
    found = way({"prompt": prompt}, told(kind=kind))

    assert added(found) == {"prompt": longer}


@pytest.mark.parametrize("kind", [Kind.TEXT, Kind.COMPLETION])
@pytest.mark.parametrize("prompt", ["Once", [1, 2, 3], ["Once ", 5]])
def test_a_text_goes_on_from_the_tokens_that_it_was_written_in(kind: Kind, prompt: Any) -> None:
    found = way_on(
        asked(prompt=prompt, **GREEDY),
        told("\n\n", kind=kind),
        keeps_math=True,
        is_restored=True,
        sent_tokens=2,
        ids=(1, 2, 3, 198, 198),
    )

    assert added(found) == {"prompt": [1, 2, 3, 198, 198]}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_only_what_is_left_may_still_be_written(name: str) -> None:
    assert added(way({name: 10}, sent_tokens=3))[name] == 7


@pytest.mark.parametrize("sent", [10, 11])
def test_where_nothing_is_left_no_child_is_asked(sent: int) -> None:
    assert way({"max_tokens": 10}, sent_tokens=sent) == Finish("length", sent)


def test_no_limit_is_none() -> None:
    assert "max_tokens" not in added(way({"max_tokens": -1}))


def test_a_reply_that_was_finished_lacks_its_end_alone() -> None:
    so_far = told()
    so_far.finishes[0] = "stop"

    assert way({}, so_far) == Finish("stop", 3)


def test_a_sampled_reply_goes_on_with_other_chances() -> None:
    found = way({"temperature": 0.8, "seed": MAX_SEED}, is_restored=True, keeps_math=True)

    assert added(found)["seed"] == 0
    assert isinstance(found, Continue)
    assert not found.is_exact


@pytest.mark.parametrize(
    ("members", "so_far"),
    [
        pytest.param({}, told(), id="text"),
        pytest.param({"temperature": 0.8}, told(), id="sampled text"),
        pytest.param({"response_format": {"type": "json_object"}}, told(), id="JSON"),
        pytest.param({"tools": [{}]}, told(texts={(0, "tool 0 "): "{"}), id="a tool call"),
        pytest.param({}, told(texts={(0, REASONING): "Hm"}), id="a thought"),
        pytest.param({"prompt": ["a", "b"]}, told(kind=Kind.TEXT), id="several prompts"),
        pytest.param({}, told(kind=Kind.INFILL), id="a gap"),
    ],
)
def test_after_a_crash_the_same_math_writes_any_reply_again(
    members: dict[str, Any], so_far: Told
) -> None:
    found = way(members, so_far, keeps_math=True)

    assert isinstance(found, Replay)
    assert not found.otherwise


@pytest.mark.parametrize(
    ("prompt", "extra"),
    [
        (Progress(total=9, cache=0), b'"cache_prompt":false'),
        (Progress(total=9, cache=4), b""),
        (None, b""),
    ],
    ids=["read whole", "partly cached", "not told"],
)
def test_a_prompt_that_was_read_whole_is_read_whole_again(
    prompt: Progress | None, extra: bytes
) -> None:
    so_far = told(texts={(0, "tool 0 "): "{"})
    so_far.prompt = prompt

    assert way({}, so_far, keeps_math=True, is_restored=True) == Replay(extra)


def test_without_a_seed_nothing_is_written_again() -> None:
    drawn = {"temperature": 0.8, "seed": -1}

    assert isinstance(way(drawn, keeps_math=True), Continue)


@pytest.mark.parametrize("is_restored", [True, False])
@pytest.mark.parametrize(
    ("members", "so_far", "says"),
    [
        pytest.param({}, told(texts={(0, "tool 0 "): "{"}), "tool call", id="a tool call"),
        pytest.param({}, told(texts={(0, REASONING): "Hm"}), "thinking", id="a thought"),
        pytest.param({"n": 2}, told(), "several choices", id="several choices"),
        pytest.param({"prompt": ["a", "b"]}, told(kind=Kind.TEXT), "choices", id="prompts"),
        pytest.param({"echo": True}, told(kind=Kind.TEXT), "echoed", id="an echo"),
        pytest.param({}, told(kind=Kind.INFILL), "gap", id="a gap"),
        pytest.param(
            {"prompt": "a", "grammar": "root ::= [0-9]+"},
            told(kind=Kind.COMPLETION),
            "grammar",
            id="a grammar of a raw completion",
        ),
        pytest.param(
            {"messages": [USER, {"role": "assistant", "content": [{"type": "text"}]}]},
            told(),
            "no plain text",
            id="a beginning in parts",
        ),
        pytest.param({"prompt": {"a": 1}}, told(kind=Kind.TEXT), "neither", id="an odd prompt"),
    ],
)
def test_on_other_math_what_text_cannot_carry_is_written_again_if_it_comes_out_so(
    members: dict[str, Any], so_far: Told, says: str, is_restored: bool
) -> None:
    found = way(members, so_far, is_restored=is_restored)
    drawn = way({"temperature": 0.8, "seed": -1, **members}, so_far, is_restored=is_restored)

    assert isinstance(found, Replay)
    assert says in found.otherwise
    assert isinstance(drawn, Impossible)
    assert says in drawn.reason


@pytest.mark.parametrize(
    "members",
    [{"response_format": {"type": "json_schema"}}, {"json_schema": {}}, {"tools": [{}]}],
    ids=["response format", "schema", "tools that were not called"],
)
def test_a_chat_goes_on_within_its_grammar_though_in_other_words(members: dict[str, Any]) -> None:
    found = way(members)

    assert isinstance(found, Continue)
    assert not found.is_exact


@pytest.mark.parametrize(
    ("members", "kind", "anywhere"),
    [
        ({}, Kind.CHAT, True),
        ({"response_format": {"type": "json_object"}}, Kind.CHAT, True),
        ({"tools": [{}]}, Kind.CHAT, False),
        ({"tools": [{}], "response_format": {"type": "json_object"}}, Kind.CHAT, False),
        ({"n": 2}, Kind.CHAT, False),
        ({"prompt": "a", "max_tokens": 5}, Kind.TEXT, True),
        ({"prompt": ["a", "b"]}, Kind.TEXT, False),
        ({"prompt": "a", "echo": True}, Kind.TEXT, False),
        ({"prompt": "a", "grammar": "root ::= [a]"}, Kind.COMPLETION, False),
        ({"prompt": "a"}, Kind.INFILL, False),
    ],
    ids=[
        "a chat", "JSON", "tools", "tools and JSON", "choices", "a text", "texts", "an echo",
        "a grammar of a raw completion", "a gap",
    ],
)  # fmt: skip
def test_what_text_carries_goes_on_anywhere(
    members: dict[str, Any], kind: Kind, anywhere: bool
) -> None:
    assert goes_on_anywhere(asked(**members), kind) is anywhere


@pytest.mark.parametrize("format_", [None, {"type": "text"}])
def test_a_plain_response_format_is_no_grammar(format_: Any) -> None:
    assert not asked(response_format=format_).is_constrained


@pytest.mark.parametrize(
    ("more", "content", "goes_on", "wrote"),
    [
        ({}, "The sea is", "The sea is", " is"),
        ({"continue_final_message": True}, " is", "The sea is", " is"),
    ],
    ids=["echoed", "gone on with"],
)
def test_the_callers_own_beginning_is_told_once(
    more: dict[str, Any], content: str, goes_on: str, wrote: str
) -> None:
    begun = {"messages": [USER, {"role": "assistant", "content": "The sea"}], **more}

    found = added(way(begun, told(content)))

    assert found["messages"] == [USER, {"role": "assistant", "content": goes_on}]
    assert written(asked(**begun), told(content)) == wrote


@pytest.mark.parametrize("seed", [None, -1, 1 << 32])
def test_a_seed_is_fixed_where_the_caller_has_none(seed: int | None) -> None:
    assert seed_member(asked(seed=seed), chance=123) == b'"seed":123'


def test_a_callers_seed_stays() -> None:
    assert seed_member(asked(seed=0), chance=123) == b""


@pytest.mark.parametrize("body", [b"", b"[]", b'{"seed":"x"}', b'{"messages":{}}', b"\xff"])
def test_a_body_of_another_shape_asks_for_nothing(body: bytes) -> None:
    assert asked_by(body) is None


@given(
    members=st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.sampled_from([0, 0.8]),
            "seed": st.integers(-1, 5),
            "max_tokens": st.integers(-1, 8),
            "n_predict": st.integers(-1, 8),
            "tools": st.just([{}]),
            "grammar": st.just("root ::= [a]"),
            "prompt": st.one_of(st.text(), st.lists(st.integers()), st.lists(st.text())),
            "messages": st.lists(
                st.fixed_dictionaries(
                    {"role": st.sampled_from(["user", "assistant"]), "content": st.text()}
                )
            ),
        },
    ),
    kind=st.sampled_from(list(Kind)),
    keeps_math=st.booleans(),
    is_restored=st.booleans(),
    sent=st.integers(0, 9),
    content=st.text(),
)
def test_every_request_has_a_way_and_each_continuation_is_a_request(
    members: dict[str, Any],
    kind: Kind,
    keeps_math: bool,
    is_restored: bool,
    sent: int,
    content: str,
) -> None:
    so_far = told(texts={(0, CONTENT): content} if content else {}, kind=kind)

    found = way_on(
        asked(**members),
        so_far,
        keeps_math=keeps_math,
        is_restored=is_restored,
        sent_tokens=sent,
    )

    if isinstance(found, Continue):
        new = {**members, **added(found)}
        limits = [new[n] for n in ("max_tokens", "n_predict") if new.get(n, -1) >= 0]
        assert all(limit > 0 for limit in limits)
        assert keeps_math or not found.is_exact
    if isinstance(found, Replay):
        assert keeps_math or found.otherwise
