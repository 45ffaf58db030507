"""What is told in the two dialects against the engine's own replies, where it has them right."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.chat_templates import HERMES, QWEN
from tests.fakes.events import named_events
from tests.fakes.real_engine import child_client, engine
from tests.fakes.weather_chats import (
    ANTHROPIC_WEATHER,
    RESPONSES_WEATHER,
    anthropic_chat,
    responses_chat,
)

pytestmark = pytest.mark.llama

HELLO = [{"role": "user", "content": "Say hello."}]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}
MESSAGES = {**GREEDY, "messages": HELLO, "max_tokens": 12}
RESPONSES = {**GREEDY, "input": "Say hello.", "max_output_tokens": 12}
SYSTEM = [{"type": "text", "text": "Answer in "}, {"type": "text", "text": "one word."}]
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
FORCED = {
    "messages": anthropic_chat(),
    "tools": [ANTHROPIC_WEATHER],
    "tool_choice": {"type": "any"},
    "max_tokens": 80,
}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 40}


@pytest.mark.parametrize(
    ("template", "more"),
    [
        pytest.param(None, {}, id="text"),
        pytest.param(None, {"system": SYSTEM, "max_tokens": 80, "top_k": 5}, id="to its end"),
        pytest.param(HERMES, FORCED, id="a tool"),
        pytest.param(QWEN, THINKING, id="thinking"),
    ],
)
async def test_a_message_is_the_engines_own(
    tmp_path: Path, template: str | None, more: dict[str, Any]
) -> None:
    asked = {**MESSAGES, **more}
    async with engine(tmp_path, template=template) as (fleet, at):
        whole = (await at.client.post("/v1/messages", json=asked)).json()
        async with child_client(fleet) as child:
            own = (await child.post("/v1/messages", json=asked)).json()

    assert bare_blocks(whole["content"]) == bare_blocks(own["content"])
    assert whole["stop_reason"] == own["stop_reason"]
    assert n_tokens(whole["usage"]) == n_tokens(own["usage"])
    assert own.keys() == whole.keys()


def bare_blocks(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a message without what is random."""
    return [{**block, "id": ""} for block in content]


def n_tokens(usage: dict[str, int]) -> tuple[int, int]:
    """Tokens read, those from the slot's cache among them, and written."""
    return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]


@pytest.mark.parametrize(
    ("template", "more", "kinds"),
    [
        pytest.param(None, {}, ["text"], id="text"),
        pytest.param(HERMES, FORCED, ["tool_use"], id="a tool"),
        pytest.param(QWEN, THINKING, ["thinking"], id="thinking"),
    ],
)
async def test_a_streamed_message_is_the_whole_one(
    tmp_path: Path, template: str | None, more: dict[str, Any], kinds: list[str]
) -> None:
    asked = {**MESSAGES, **more}
    async with engine(tmp_path, template=template) as (_, at):
        whole = (await at.client.post("/v1/messages", json=asked)).json()
        stream = await at.client.post("/v1/messages", json={**asked, "stream": True})

    start, *rest, delta, stop = named_events(stream.text)
    assert (start["type"], delta["type"], stop["type"]) == (
        "message_start",
        "message_delta",
        "message_stop",
    )
    assert start["message"]["usage"]["input_tokens"] > 0
    assert bare_blocks(accumulated(rest)) == bare_blocks(whole["content"])
    assert [block["type"] for block in whole["content"]] == kinds
    assert delta["delta"]["stop_reason"] == whole["stop_reason"]


def accumulated(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that a client puts together; each is closed before the next is opened."""
    blocks: list[dict[str, Any]] = []
    pieces = ""
    for event in events:
        match event["type"], event.get("delta"):
            case "content_block_start", _:
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
                pieces = ""
            case "content_block_delta", {"type": "input_json_delta", "partial_json": piece}:
                pieces += piece
                block = blocks[event["index"]]
            case "content_block_delta", {"type": kind, **told}:
                block = blocks[event["index"]]
                ((key, piece),) = told.items()
                assert kind == f"{key}_delta"
                block[key] += piece
            case "content_block_stop", _:
                assert event["index"] == len(blocks) - 1
                if pieces:
                    blocks[-1]["input"] = json.loads(pieces)
    return blocks


async def test_a_tool_chosen_by_its_name_is_called(tmp_path: Path) -> None:
    forced = {
        **FORCED,
        "tools": [CLOCK, ANTHROPIC_WEATHER],
        "tool_choice": {"type": "tool", "name": "weather"},
    }
    async with engine(tmp_path, template=HERMES) as (_, at):
        whole = (await at.client.post("/v1/messages", json={**MESSAGES, **forced})).json()

    (call,) = whole["content"]
    assert (call["type"], call["name"], whole["stop_reason"]) == ("tool_use", "weather", "tool_use")
    assert isinstance(call["input"]["city"], str)


async def test_the_result_of_a_tool_is_read(tmp_path: Path) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "Rain."}
    messages = [
        *HELLO,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    asked = {**MESSAGES, "tools": [ANTHROPIC_WEATHER], "messages": messages}
    async with engine(tmp_path, template=HERMES) as (fleet, at):
        counted = (await at.client.post("/v1/messages/count_tokens", json=asked)).json()
        reply = await at.client.post("/v1/messages", json=asked)
        async with child_client(fleet) as child:
            own = (await child.post("/v1/messages/count_tokens", json=asked)).json()

    assert counted == own
    assert reply.status_code == 200
    assert n_tokens(reply.json()["usage"])[0] == counted["input_tokens"]


async def test_a_model_that_could_think_does_not_unless_it_is_asked_to(tmp_path: Path) -> None:
    async with engine(tmp_path, template=QWEN) as (_, at):
        plain = (await at.client.post("/v1/messages", json=MESSAGES)).json()
        count = (await at.client.post("/v1/messages/count_tokens", json=MESSAGES)).json()

    assert [block["type"] for block in plain["content"]] == ["text"]
    assert n_tokens(plain["usage"])[0] == count["input_tokens"]


async def test_a_partial_answer_is_not_repeated(tmp_path: Path) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "The answer"}]
    async with engine(tmp_path) as (_, at):
        reply = (await at.client.post("/v1/messages", json={**MESSAGES, "messages": begun})).json()

    assert reply["content"][0]["text"].startswith(" to")


async def test_a_stop_sequence_is_met_and_named(tmp_path: Path) -> None:
    async with engine(tmp_path) as (fleet, at):
        whole = (await at.client.post("/v1/messages", json=MESSAGES)).json()["content"][0]["text"]
        word = whole.split()[2]
        asked = {**MESSAGES, "stop_sequences": ["nowhere", word]}
        stopped = (await at.client.post("/v1/messages", json=asked)).json()
        async with child_client(fleet) as child:
            own = (await child.post("/v1/messages", json=asked)).json()

    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", word)
    assert stopped["content"] == own["content"]
    assert stopped["content"][0]["text"] == whole[: whole.index(word)]


CALLED = {
    "input": responses_chat(),
    "tools": [RESPONSES_WEATHER],
    "tool_choice": "required",
    "max_output_tokens": 80,
}


@pytest.mark.parametrize(
    ("template", "more", "kinds"),
    [
        pytest.param(None, {}, ["message"], id="text"),
        pytest.param(HERMES, CALLED, ["function_call"], id="a tool"),
        pytest.param(QWEN, {"max_output_tokens": 40}, ["reasoning"], id="thinking"),
        pytest.param(QWEN, {"reasoning": {"effort": "none"}}, ["message"], id="no thinking"),
    ],
)
async def test_a_response_is_the_engines_own_and_streams_as_one(
    tmp_path: Path, template: str | None, more: dict[str, Any], kinds: list[str]
) -> None:
    asked = {**RESPONSES, **more}
    async with engine(tmp_path, template=template) as (fleet, at):
        whole = (await at.client.post("/v1/responses", json=asked)).json()
        stream = await at.client.post("/v1/responses", json={**asked, "stream": True})
        async with child_client(fleet) as child:
            own = (await child.post("/v1/responses", json=asked)).json()

    last = named_events(stream.text)[-1]["response"]
    assert [item["type"] for item in whole["output"]] == kinds
    assert bare_items(whole) == bare_items(own) == bare_items(last)
    assert whole["usage"]["total_tokens"] == own["usage"]["total_tokens"]
    thought = whole["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert (thought > 0) == (kinds == ["reasoning"])


def bare_items(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a response, as far as they say something."""
    keys = ("type", "role", "name", "arguments", "content")
    return [{key: item.get(key) for key in keys} for item in response["output"]]


async def test_a_response_keeps_to_its_schema(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"word": {"enum": ["yes", "no"]}},
        "required": ["word"],
        "additionalProperties": False,
    }
    told = {"format": {"type": "json_schema", "name": "word", "schema": schema, "strict": True}}
    asked = {**RESPONSES, "text": told, "max_output_tokens": 60}
    async with engine(tmp_path) as (_, at):
        reply = (await at.client.post("/v1/responses", json=asked)).json()
        counted = (await at.client.post("/v1/responses/input_tokens", json=asked)).json()

    assert json.loads(reply["output"][0]["content"][0]["text"])["word"] in ("yes", "no")
    assert counted["input_tokens"] == reply["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("route", "told"),
    [("/v1/messages/count_tokens", MESSAGES), ("/v1/responses/input_tokens", RESPONSES)],
    ids=["anthropic", "responses"],
)
async def test_tokens_are_counted_while_the_only_slot_is_busy(
    tmp_path: Path, route: str, told: dict[str, Any]
) -> None:
    story = {"prompt": "Once", "n_predict": 8000, "ignore_eos": True, "stream": True}
    async with (
        engine(tmp_path, n_ctx=8192) as (fleet, at),
        at.client.stream("POST", "/completion", json=story) as reply,
    ):
        pieces = reply.aiter_bytes()  # which closes the reply when it is forgotten
        await anext(pieces)
        counted = (await at.client.post(route, json=told)).json()

    del pieces
    assert fleet.most_leases == 2
    assert counted["input_tokens"] > 0
