import base64
import json
from typing import Any

import pytest

from planners.recipe import PLAIN, Message, Recipe
from proxy.errors import BadOption, BadRequest
from proxy.ollama.requests import chat_body, read_chat, read_generate

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 20).decode()
WAV = base64.b64encode(b"RIFF\x00\x00\x00\x00WAVEfmt 12345678").decode()
CALL = {"function": {"name": "f", "arguments": {"city": "Oslo"}}}


def chat_request(**more: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    ).encode()


def child_body(**more: Any) -> dict[str, Any]:
    """What the child is sent for a chat with these fields."""
    request = read_chat(chat_request(**more))
    return chat_body(request.messages, request.common, request.common.options(PLAIN), request.tools)


def test_a_stream_is_the_default() -> None:
    assert read_chat(chat_request()).common.stream
    assert not read_chat(chat_request(stream=False)).common.stream


def test_roles_are_lower_cased_and_tool_calls_are_openais() -> None:
    messages = [
        {"role": "USER", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_name": "f", "tool_call_id": "c1", "content": "rain"},
    ]

    sent = child_body(messages=messages)["messages"]

    assert sent[0] == {"role": "user", "content": "Weather?"}
    assert sent[1]["tool_calls"] == [
        {"id": "", "type": "function", "function": {"name": "f", "arguments": '{"city":"Oslo"}'}}
    ]
    assert sent[2] == {"role": "tool", "content": "rain", "tool_call_id": "c1", "name": "f"}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (PNG, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}),
        (WAV, {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}),
        ("AAAA", {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}}),
    ],
    ids=["png", "wav", "unknown"],
)
def test_media_become_parts_of_the_content(data: str, part: dict[str, object]) -> None:
    messages = [{"role": "user", "content": "what?", "images": [data]}]

    (sent,) = child_body(messages=messages)["messages"]

    assert sent["content"] == [{"type": "text", "text": "what?"}, part]


@pytest.mark.parametrize(
    ("think", "kwargs"),
    [
        (None, None),
        (False, {"enable_thinking": False}),
        (True, {"enable_thinking": True}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_think_is_the_templates_business(think: object, kwargs: object) -> None:
    assert child_body(think=think).get("chat_template_kwargs") == kwargs


@pytest.mark.parametrize(
    ("told", "schema"),
    [
        ("", None),
        (None, None),
        ("json", {"type": "object"}),
        ({"type": "array"}, {"type": "array"}),
    ],
)
def test_a_format_becomes_a_schema(told: object, schema: object) -> None:
    sent = child_body(format=told).get("response_format")

    assert (sent and sent["json_schema"]["schema"]) == schema


def test_a_partial_answer_is_gone_on_with() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hel"}]

    sent = child_body(messages=messages)

    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"think": "huge"}, 'invalid think value: "huge"'),
        ({"think": 5}, "invalid think value: 5"),
        ({"top_logprobs": 21}, "top_logprobs must be between 0 and 20"),
        ({"stream": "false"}, "ChatRequest.stream of type bool"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages.content of type string"),
        ({"messages": ["hi"]}, "ChatRequest.messages of type api.Message"),
        ({"tools": ["f"]}, "ChatRequest.tools of type api.Tool"),
        ({"messages": [{"role": "a", "tool_calls": [
            {"function": {"name": "f", "arguments": "{}"}}]}]}, ".tool_calls.function.arguments"),
        ({"messages": [{"role": "user", "images": ["!!"]}]}, "illegal base64"),
    ],
)  # fmt: skip
def test_a_wrong_chat_is_refused_in_ollamas_words(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_chat(chat_request(**fields))

    assert says in str(refused.value)


def test_a_wrong_format_is_refused_as_ollama_does() -> None:
    with pytest.raises(BadOption, match='invalid format: "yaml"'):
        child_body(format="yaml")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"raw": True, "system": "s"}, "raw mode does not support"),
        ({"raw": True, "context": [1]}, "raw mode does not support"),
        ({"template": "{{ slice .Prompt 1 }}"}, "template error: it uses slice, which is not"),
        ({"template": "{{ .Prompt", "system": "s"}, "template error: an action is not closed"),
        ({"template": "{{ .Prompt }}", "images": ["iVBORw=="]}, "leave out template"),
        ({"context": ["a"]}, "GenerateRequest.context of type int"),
    ],
)
def test_a_wrong_generate_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_generate(json.dumps({"model": "m", "prompt": "x", **fields}).encode())

    assert says in str(refused.value)


RECIPE = Recipe(
    parameters=(("temperature", 0.25), ("stop", ("<end>",)), ("num_ctx", 64)),
    system="Be brief.",
    messages=(Message("user", "a"), Message("assistant", "b")),
)
HI = {"role": "user", "content": "hi"}
BEFORE = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


def test_a_recipes_system_and_messages_go_before_a_chats_own() -> None:
    told = read_chat(chat_request()).told(RECIPE)

    assert told == ({"role": "system", "content": "Be brief."}, *BEFORE, HI)


def test_a_chats_own_system_prompt_stands_in_for_the_recipes() -> None:
    own = {"role": "system", "content": "Be long."}

    assert read_chat(chat_request(messages=[own, HI])).told(RECIPE) == (*BEFORE, own, HI)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, ({"role": "system", "content": "Be brief."}, *BEFORE, HI)),
        ({"system": "Be long."}, ({"role": "system", "content": "Be long."}, *BEFORE, HI)),
        ({"context": [1, 2]}, ({"role": "system", "content": "Be brief."}, HI)),
    ],
)
def test_a_prompt_is_asked_with_its_models_recipe(
    asked: dict[str, Any], told: tuple[dict[str, object], ...]
) -> None:
    request = read_generate(json.dumps({"model": "m", "prompt": "hi", **asked}).encode())

    assert request.messages(RECIPE) == told


def test_a_requests_options_go_before_its_models_parameters() -> None:
    asked = read_chat(chat_request(options={"temperature": 1, "stop": None})).common

    sampling = dict(asked.options(RECIPE).sampling)

    assert (sampling["temperature"], sampling["stop"]) == (1.0, ["<end>"])


def test_a_models_num_ctx_is_its_launchs_and_bounds_no_request() -> None:
    assert read_chat(chat_request()).common.options(RECIPE).n_ctx is None


@pytest.mark.parametrize(
    ("fields", "cuts"),
    [({}, True), ({"shift": False}, False), ({"shift": False, "truncate": True}, True)],
)
def test_who_is_strict_cuts_unless_shifts_are_off(fields: dict[str, Any], cuts: bool) -> None:
    told = json.dumps({"model": "m", "prompt": "x", **fields}).encode()

    assert read_generate(told, truncates=True).common.truncate is cuts


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "<x>"),
        ({"system": "s"}, "s<x>"),
        ({"suffix": "y", "template": "{{ .Prompt }}|{{ .Suffix }}"}, "x|y"),
    ],
)
def test_a_template_of_the_callers_own_makes_the_prompt(fields: dict[str, Any], text: str) -> None:
    told = {"model": "m", "prompt": "x", "template": "{{ .System }}<{{ .Prompt }}>", **fields}

    request = read_generate(json.dumps(told).encode())

    assert request.template is not None
    assert request.rendered(request.template, PLAIN) == text


def test_a_template_that_fails_for_this_prompt_says_so() -> None:
    told = {"prompt": "x", "template": "{{ (index .Messages 3).Role }}"}

    request = read_generate(json.dumps({"model": "m", **told}).encode())

    assert request.template is not None
    with pytest.raises(BadRequest, match="template error: it asks for number 3 of 1"):
        request.rendered(request.template, PLAIN)


def test_a_template_of_the_callers_own_is_filled_with_its_models_recipe_too() -> None:
    told = {
        "prompt": "hi",
        "template": "{{ .System }}{{ range .Messages }}[{{ .Content }}]{{ end }}",
    }

    request = read_generate(json.dumps({"model": "m", **told}).encode())

    assert request.template is not None
    assert request.rendered(request.template, RECIPE).endswith("[a][b][hi]")
