import json
from typing import Any

import msgspec
import pytest

from proxy.errors import BadRequest
from proxy.responses.requests import chat_body, read_request

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


def body(**told: Any) -> dict[str, Any]:
    """The chat that the child is asked."""
    request = json.dumps({"model": "tiny", "input": "Hello", **told}).encode()
    asked: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(chat_body(read_request(request)))
    )
    return asked


def test_a_text_is_one_message_and_instructions_are_the_first() -> None:
    assert body(instructions="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


def test_limits_and_sampling_are_passed() -> None:
    asked = body(max_output_tokens=5, temperature=0.5, top_p=0.9)

    assert (asked["max_tokens"], asked["temperature"], asked["top_p"]) == (5, 0.5, 0.9)


def test_what_a_developer_says_joins_the_instructions() -> None:
    items = [{"role": "developer", "content": "In French."}, {"role": "user", "content": "Hello"}]

    assert body(instructions="Be brief.", input=items)["messages"][0] == {
        "role": "system",
        "content": "Be brief.\n\nIn French.",
    }


def test_the_items_of_a_turn_make_one_message_of_the_assistant() -> None:
    output = [{"type": "output_text", "text": "Let me see.", "annotations": []}]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "A tool."}],
        },
        {"type": "message", "id": "msg_1", "role": "assistant", "content": output},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "wind"}],
        },
        {"role": "assistant", "content": "Rain and wind."},
        {"role": "user", "content": "Thanks."},
    ]

    def call(call_id: str, arguments: str) -> dict[str, object]:
        function = {"name": "weather", "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    assert body(input=items)["messages"] == [
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "A tool.",
            "tool_calls": [call("c1", '{"a":1}'), call("c2", "{}")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "wind"},
        {"role": "assistant", "content": "Rain and wind."},
        {"role": "user", "content": "Thanks."},
    ]


def test_an_image_is_passed_as_the_data_that_it_is() -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    content = [
        {"type": "input_image", "image_url": url, "detail": "auto"},
        {"type": "input_text", "text": "What is it?"},
    ]

    (message,) = body(input=[{"role": "user", "content": content}])["messages"]

    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is it?"},
    ]


def test_functions_are_the_childs_and_other_tools_are_left_out() -> None:
    asked = body(tools=[TOOL, {"type": "web_search"}], parallel_tool_calls=False)

    assert [tool["function"]["name"] for tool in asked["tools"]] == ["weather"]
    assert (asked["tool_choice"], asked["parallel_tool_calls"]) == ("auto", False)
    assert "tools" not in body(tools=[{"type": "web_search"}])


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("required", "required", ["weather", "clock"]),
        ("none", "none", ["weather", "clock"]),
        ({"type": "function", "name": "clock"}, "required", ["clock"]),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "clock"}],
            },
            "auto",
            ["clock"],
        ),
    ],
)
def test_a_choice_of_tools_holds(choice: object, mode: str, names: list[str]) -> None:
    asked = body(tools=[TOOL, {**TOOL, "name": "clock"}], tool_choice=choice)

    assert asked["tool_choice"] == mode
    assert [tool["function"]["name"] for tool in asked["tools"]] == names


@pytest.mark.parametrize(
    ("told", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "name": "n", "schema": {"type": "array"}}, {"type": "array"}),
    ],
)
def test_a_format_is_the_childs_response_format(told: object, schema: object) -> None:
    found = body(text={"format": told}).get("response_format", {"json_schema": {}})

    assert found["json_schema"].get("schema") == schema


def test_effort_is_passed_and_none_of_it_is_no_thinking() -> None:
    assert body(reasoning={"effort": "low"})["reasoning_effort"] == "low"
    assert body(reasoning={"effort": "none"})["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        pytest.param({"previous_response_id": "resp_1"}, "not stored", id="a response before"),
        pytest.param({"conversation": "conv_1"}, "nothing is stored", id="conversation"),
        pytest.param({"background": True}, "background", id="background"),
        pytest.param({"input": None}, "input is required", id="no input"),
        pytest.param({"input": []}, "at least one item", id="empty input"),
        pytest.param({"max_output_tokens": 0}, "at least 1", id="no token"),
        pytest.param(
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            "input.0: an item of type 'item_reference'",
            id="a stored item",
        ),
        pytest.param({"input": [{"role": "tool", "content": ""}]}, "not 'tool'", id="role"),
        pytest.param(
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "'input_file'",
            id="file",
        ),
        pytest.param(
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_image", "image_url": "http://10.0.0.1/a"}],
                    }
                ]
            },
            "nothing is fetched from a http: address",
            id="image elsewhere",
        ),
        pytest.param(
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "clock"}},
            "names no function of tools: clock",
            id="a tool that is not there",
        ),
        pytest.param({"tool_choice": "maybe"}, "'maybe' is not known", id="choice"),
        pytest.param({"text": {"format": {"type": "xml"}}}, "'xml' is not known", id="format"),
        pytest.param({"tools": {}}, "wrong shape", id="type"),
    ],
)
def test_what_makes_no_sense_or_is_not_offered_is_refused(
    told: dict[str, object], says: str
) -> None:
    with pytest.raises(BadRequest, match=says):
        body(**told)
