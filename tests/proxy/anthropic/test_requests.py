import json
from typing import Any

import msgspec
import pytest

from proxy.anthropic.requests import chat_body, read_request
from proxy.errors import BadRequest

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "weather", "input_schema": {"type": "object"}}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def body(**told: Any) -> dict[str, Any]:
    """The chat that the child is asked."""
    request = json.dumps({"model": "tiny", "max_tokens": 8, "messages": HELLO, **told})
    asked: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(chat_body(read_request(request.encode())))
    )
    return asked


@pytest.mark.parametrize(
    ("system", "content"),
    [
        pytest.param("Be brief.", "Be brief.", id="a text"),
        pytest.param(
            [
                {"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "brief."},
            ],
            "Be brief.",
            id="blocks",
        ),
        pytest.param(
            "x-anthropic-billing-header: cc_version=2.1; cch=a5145;You are",
            "x-anthropic-billing-header: cc_version=2.1; cch=fffff;You are",
            id="a stamp that differs each time",
        ),
    ],
)
def test_the_system_prompt_is_the_first_message(system: object, content: str) -> None:
    assert body(system=system)["messages"] == [{"role": "system", "content": content}, *HELLO]


def test_sampling_and_limits_are_passed() -> None:
    told = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 3}

    assert told.items() <= body(**told, metadata={"user_id": "u"}).items()


def test_a_conversation_with_tools_keeps_results_right_after_their_calls() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "A tool.", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Go on."},
                {"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "wind"}],
                    "is_error": True,
                },
            ],
        },
    ]

    call = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert body(messages=messages)["messages"] == [
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": "t1", "type": "function", "function": call}],
            "reasoning_content": "A tool.",
        },
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "tool", "tool_call_id": "t2", "content": "wind"},
        {"role": "user", "content": "Go on."},
    ]


def test_an_image_is_a_data_url() -> None:
    content = [{"type": "image", "source": PNG}, {"type": "text", "text": "What is it?"}]

    (message,) = body(messages=[{"role": "user", "content": content}])["messages"]

    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "text", "text": "What is it?"},
    ]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
    ],
)
def test_tool_choice_is_the_childs(choice: object, told: dict[str, object]) -> None:
    assert told.items() <= body(tools=[TOOL], tool_choice=choice).items()


def test_a_tool_chosen_by_name_is_the_only_one_that_the_child_is_told_of() -> None:
    other = {**TOOL, "name": "clock"}
    asked = body(tools=[TOOL, other], tool_choice={"type": "tool", "name": "clock"})

    assert [tool["function"]["name"] for tool in asked["tools"]] == ["clock"]
    assert asked["tool_choice"] == "required"


@pytest.mark.parametrize(
    ("thinking", "thinks", "budget"),
    [
        (None, False, None),
        ({"type": "disabled"}, False, None),
        ({"type": "enabled", "budget_tokens": 1024}, True, 1024),
        ({"type": "adaptive"}, True, None),
        ({"type": "between_tools"}, True, None),
    ],
)
def test_a_model_thinks_only_where_it_is_asked_to(
    thinking: object, thinks: bool, budget: int | None
) -> None:
    asked = body(thinking=thinking)

    assert asked["chat_template_kwargs"] == {"enable_thinking": thinks}
    assert asked.get("thinking_budget_tokens") == budget


def test_a_schema_for_the_output_is_the_childs_response_format() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    config = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}

    asked = body(output_config=config)

    assert asked["response_format"]["json_schema"]["schema"] == schema
    assert asked["reasoning_effort"] == "low"


def test_a_partial_answer_is_continued() -> None:
    asked = body(messages=[*HELLO, {"role": "assistant", "content": "I am"}])

    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)


def user(*blocks: object) -> dict[str, object]:
    """Messages of one user."""
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        pytest.param({"messages": []}, "at least one message", id="no message"),
        pytest.param({"max_tokens": None}, "max_tokens: Field required", id="no max_tokens"),
        pytest.param({"max_tokens": 0}, "greater than or equal to 1", id="max_tokens of 0"),
        pytest.param({"messages": [{"role": "tool", "content": ""}]}, "'tool'", id="role"),
        pytest.param({"stop_sequences": ["x"] * 65}, "at most 64", id="many sequences"),
        pytest.param({"stop_sequences": ["x" * 1025]}, "1024 characters", id="a long sequence"),
        pytest.param({"temperature": "hot"}, "temperature", id="type"),
        pytest.param(
            user({"type": "text", "text": ""}, {"type": "document"}),
            "messages.0.content.1: content of type 'document'",
            id="document",
        ),
        pytest.param(
            user({"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/a.png"}}),
            "nothing is fetched from a http: address",
            id="image elsewhere",
        ),
        pytest.param(
            user({"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}),
            "nothing is fetched from a file: address",
            id="image in a file",
        ),
        pytest.param(
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools.0: 'web_search_20250305'",
            id="a tool of Anthropic's",
        ),
        pytest.param(
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "clock"}},
            "tool 'clock' not found",
            id="a tool that is not there",
        ),
    ],
)
def test_what_makes_no_sense_or_is_not_offered_is_refused(
    told: dict[str, object], says: str
) -> None:
    with pytest.raises(BadRequest, match=says):
        body(**told)


def test_a_count_needs_no_max_tokens() -> None:
    asked = read_request(json.dumps({"model": "tiny", "messages": HELLO}).encode(), counts=True)

    assert "max_tokens" not in chat_body(asked)
