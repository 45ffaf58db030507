"""What would end a child for everybody, on every way to it."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.engine_limits import (
    MAX_GROUPS,
    MAX_MESSAGES,
    MAX_RULES,
    MAX_WINDOW,
    TEXT_BYTES,
    TOKEN_BYTES,
    GrammarTooLarge,
    TextsTooLong,
    TextTooLong,
    TooManyMessages,
    check_grammars,
    check_messages,
    check_pairs,
    check_text,
)
from tests.fakes.fleet_of_one import fleet_of_one
from tests.fakes.real_engine import engine
from tests.fakes.serving import SETTINGS, serving

ENOUGH, TOO_MANY = "(" * MAX_GROUPS, "(" * (MAX_GROUPS + 1)
RULES = 'a ::= "b"\n' * (MAX_RULES + 1)
HOLDS_ITSELF = json.dumps(
    {"parsers": [{"type": "sequence", "children": [0]}], "rules": {}, "root": 0}
)
TRIGGER = {"type": 2, "value": "never said"}
MESSAGES = [{"role": "user", "content": "Hi"}]


def schema(pattern: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}


def formatted(pattern: str) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema(pattern)}}


def function(pattern: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema(pattern)}}


@pytest.mark.parametrize(
    ("told", "param"),
    [
        ({"grammar": TOO_MANY}, "grammar"),
        ({"grammar": RULES}, "grammar"),
        ({"grammar_triggers": [{"type": 2, "value": TOO_MANY}]}, "grammar_triggers"),
        ({"json_schema": schema(TOO_MANY)}, "json_schema"),
        ({"response_format": formatted(TOO_MANY)}, "response_format"),
        ({"tools": [function(TOO_MANY)]}, "tools"),
    ],
    ids=["groups", "rules", "trigger", "json_schema", "response_format", "tools"],
)
def test_more_groups_or_rules_than_a_child_bears_are_refused_by_their_field(
    told: dict[str, Any], param: str
) -> None:
    with pytest.raises(GrammarTooLarge) as refused:
        check_grammars(json.dumps(told).encode())

    assert refused.value.param == param


@pytest.mark.parametrize(
    ("plain", "escaped"),
    [(b"(", rb"\u0028"), (b"::=", rb"\u003A:\u003d"), (b"grammar", rb"gr\u0061mmar")],
)
def test_no_escape_hides_them(plain: bytes, escaped: bytes) -> None:
    told = json.dumps({"grammar": RULES if plain == b"::=" else TOO_MANY}).encode()

    with pytest.raises(GrammarTooLarge):
        check_grammars(told.replace(plain, escaped))


@pytest.mark.parametrize(
    "told",
    [
        {"grammar": ENOUGH},
        {"prompt": TOO_MANY},
        {"messages": [{"role": "user", "content": TOO_MANY + RULES}]},
        {"tools": [function("(a)")] * (MAX_GROUPS + 1)},
    ],
    ids=["at the limit", "a prompt", "a message", "many small ones"],
)
def test_as_many_as_it_bears_go_on_and_prompts_are_no_grammars(told: dict[str, Any]) -> None:
    check_grammars(json.dumps(told).encode())


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/completion", {"prompt": "a", "grammar": TOO_MANY}),
        ("/infill", {"input_prefix": "a", "grammar": TOO_MANY}),
        ("/v1/completions", {"prompt": "a", "grammar": TOO_MANY}),
        ("/v1/chat/completions", {"messages": MESSAGES, "response_format": formatted(TOO_MANY)}),
        ("/apply-template", {"messages": MESSAGES, "response_format": formatted(TOO_MANY)}),
        ("/api/chat", {"messages": MESSAGES, "format": schema(TOO_MANY)}),
        ("/api/generate", {"prompt": "a", "format": schema(TOO_MANY)}),
        (
            "/v1/messages",
            {
                "messages": MESSAGES,
                "max_tokens": 1,
                "tools": [{"name": "f", "input_schema": schema(TOO_MANY)}],
            },
        ),
        (
            "/v1/messages/count_tokens",
            {"messages": MESSAGES, "tools": [{"name": "f", "input_schema": schema(TOO_MANY)}]},
        ),
        (
            "/v1/responses",
            {
                "input": "a",
                "text": {
                    "format": {"type": "json_schema", "name": "x", "schema": schema(TOO_MANY)}
                },
            },
        ),
    ],
)
async def test_they_are_refused_in_every_dialect_without_a_load(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(path, json={"model": "tiny", **told})

    assert reply.status_code == 400
    assert f"more than {MAX_GROUPS} opening brackets" in reply.text
    assert fleet.launches == 0


@pytest.mark.parametrize("field", ["repeat_last_n", "dry_penalty_last_n"])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
async def test_a_window_that_is_longer_than_any_context_is_refused(
    tmp_path: Path, path: str, field: str
) -> None:
    told = {"model": "tiny", "prompt": "a", "messages": MESSAGES, field: MAX_WINDOW + 1}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(path, json=told)

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == field
    assert fleet.launches == 0


@pytest.mark.llama
@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"chat_parser": HOLDS_ITSELF}, 400),
        ({"chat_parser": None}, 200),
        ({"grammar": 'root ::= "a"', "grammar_lazy": True, "grammar_triggers": [TRIGGER]}, 200),
        (
            {
                "grammar": 'root ::= "a"',
                "grammar_lazy": True,
                "grammar_triggers": [{**TRIGGER, "type": 99}],
            },
            400,
        ),
        ({"repeat_last_n": MAX_WINDOW, "repeat_penalty": 1.1}, 200),
        ({"grammar": f'root ::= {ENOUGH} "a" {")" * MAX_GROUPS}'}, 200),
        ({"grammar": f'root ::= {"(" * 20000} "a" {")" * 20000}'}, 400),
    ],
    ids=["a parser", "no parser", "a trigger", "no trigger", "a window", "deep enough", "too deep"],
)
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
async def test_an_engine_outlives_what_is_let_through(
    tmp_path: Path, path: str, told: dict[str, Any], status: int
) -> None:
    base = {"model": "smollm2", "prompt": "Hi", "n_predict": 2, "max_tokens": 2, "seed": 1}
    async with engine(tmp_path) as (fleet, at):
        reply = await at.client.post(path, json={**base, **told})
        after = await at.client.post(path, json=base)

    assert (reply.status_code, after.status_code) == (status, 200)
    assert fleet.launches == 1


@pytest.mark.parametrize("role", [b'"role"', rb'"r\u006fle"'], ids=["plain", "escaped"])
def test_more_messages_than_a_template_gets_through_are_refused(role: bytes) -> None:
    message = b"{" + role + b':"user","content":""}'

    def chat(n: int) -> bytes:
        return b'{"messages":[' + b",".join([message] * n) + b"]}"

    check_messages(chat(MAX_MESSAGES))
    with pytest.raises(TooManyMessages):
        check_messages(chat(MAX_MESSAGES + 1))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES * (MAX_MESSAGES + 1)}),
        ("/v1/messages", {"messages": MESSAGES * (MAX_MESSAGES + 1), "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES * (MAX_MESSAGES + 1)}),
        ("/v1/responses", {"input": MESSAGES * (MAX_MESSAGES + 1)}),
        ("/api/chat", {"messages": MESSAGES * (MAX_MESSAGES + 1)}),
        ("/apply-template", {"messages": MESSAGES * (MAX_MESSAGES + 1)}),
    ],
)
async def test_no_route_brings_them_to_a_child(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(path, json={"model": "tiny", **told})

    assert reply.status_code == 400
    assert f"more than {MAX_MESSAGES} messages" in reply.text


@pytest.mark.parametrize(
    ("path", "told", "status"),
    [
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 20}, 200),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 65}, 400),
        ("/v1/chat/completions", {"n_probs": 49152, "max_tokens": 2}, 200),
        ("/v1/chat/completions", {"n_probs": 49152, "max_tokens": 3}, 400),
        ("/v1/chat/completions", {"n_probs": 49152, "max_tokens": 1, "n_predict": -1}, 400),
        ("/v1/completions", {"prompt": "a", "logprobs": 49152}, 400),
        ("/completion", {"prompt": "a", "n_probs": 49152}, 400),
        ("/completion", {"prompt": "a", "n_probs": 49152, "n_predict": 2}, 200),
        ("/infill", {"input_prefix": "a", "n_probs": 49152}, 400),
    ],
)
async def test_probabilities_that_would_fill_the_memory_are_refused(
    tmp_path: Path, path: str, told: dict[str, Any], status: int
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(path, json={"model": "tiny", "messages": MESSAGES, **told})

    assert reply.status_code == status, reply.text
    assert status == 200 or reply.json()["error"]["code"] == "too_many_probabilities"


LONG = "x" * TEXT_BYTES


def part(**told: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [told]}]}


@pytest.mark.parametrize(
    "told",
    [
        {"messages": [{"role": "user", "content": LONG + "x"}]},
        {
            "messages": [{"role": "user", "content": LONG[:-9]}],
            "tools": [{"image_url": "0123456789"}],
        },
        part(type="text", text=LONG + "x"),
        {"prompt": LONG + "x"},
        {"input": ["a", LONG + "x"]},
        {"content": LONG + "x"},
        {"input_prefix": LONG + "x"},
    ],
    ids=["a message", "tools", "a part", "prompt", "input", "content", "input_prefix"],
)
def test_far_more_text_than_a_context_holds_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(TextTooLong):
        check_text(json.dumps(told).encode(), model="tiny", n_ctx=4096)


@pytest.mark.parametrize(
    ("told", "n_ctx"),
    [
        ({"prompt": LONG}, 4096),
        ({"prompt": LONG + "x"}, TEXT_BYTES // TOKEN_BYTES + 1),
        ({"input": [LONG] * 8}, 4096),
        ({"input": [LONG] * 9}, (9 << 20) // TOKEN_BYTES),
        (part(type="image_url", image_url={"url": "data:image/png;base64," + LONG}), 4096),
        (part(type="input_audio", input_audio={"data": LONG}), 4096),
    ],
    ids=[
        "at the limit",
        "a large context",
        "several texts",
        "several for a large context",
        "an image",
        "audio",
    ],
)
def test_what_a_context_may_hold_goes_on_and_images_are_no_text(
    told: dict[str, Any], n_ctx: int
) -> None:
    check_text(json.dumps(told).encode(), model="tiny", n_ctx=n_ctx)


@pytest.mark.parametrize("param", ["input", "content", "prompt"])
def test_texts_that_each_may_fit_are_too_many_together_with_both_numbers(param: str) -> None:
    told = {param: [LONG] * 8 + ["x"]}

    with pytest.raises(TextsTooLong) as refused:
        check_text(json.dumps(told).encode(), model="tiny", n_ctx=4096)

    assert str(refused.value) == (
        "the texts of this request are 8388609 bytes together, and 8388608 are read at a time;"
        " send fewer of them in one request"
    )


def test_a_query_counts_once_for_each_document_that_it_is_read_with() -> None:
    check_pairs("x" * 4095, ["y"] * 2048)

    with pytest.raises(TextsTooLong):
        check_pairs("x" * 4096, ["y"] * 2048)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": LONG}], "truncate": True}),
        ("/v1/completions", {"prompt": LONG + "x"}),
        ("/tokenize", {"content": LONG + "x"}),
    ],
)
async def test_no_child_counts_its_tokens(tmp_path: Path, path: str, told: dict[str, Any]) -> None:
    wide = replace(SETTINGS, max_body_bytes=1 << 22)
    async with fleet_of_one(tmp_path) as fleet, serving(fleet, settings=wide) as at:
        reply = await at.client.post(path, json={"model": "tiny", **told})

    assert reply.status_code == 400
    assert "far more than the context of 4096 tokens" in reply.text
