"""Assembled replies against the engine's own unstreamed ones, byte for byte."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.chat_templates import HERMES, QWEN, WEATHER, WEATHER_CHAT
from tests.fakes.real_engine import child_client, engine

pytestmark = pytest.mark.llama

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": WEATHER}]
OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": OBJECT}}
GRAMMAR = 'root ::= "no \\U0001F600\\n"'
THOUGHT = 'root ::= "so it is</think>" "\\n\\nyes"'
CALLS: dict[str, Any] = {"messages": WEATHER_CHAT, "tools": TOOLS, "max_tokens": 40}

PLAIN: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (CHAT, {}),
    "a stop string": (CHAT, {"stop": ["!"]}),
    "several stop strings": (CHAT, {"stop": ["o w", "?"], "max_tokens": 20}),
    "no token": (CHAT, {"max_tokens": 0}),
    "one token": (CHAT, {"max_tokens": 1}),
    "max_completion_tokens": (CHAT, {"max_tokens": None, "max_completion_tokens": 3}),
    "until its end": (CHAT, {"max_tokens": 64}),
    "logprobs": (CHAT, {"logprobs": True}),
    "top_logprobs": (CHAT, {"logprobs": True, "top_logprobs": 3}),
    "logprobs of parts": (CHAT, {"logprobs": True, "grammar": GRAMMAR, "stop": ["no zero"]}),
    "logprobs of no token": (CHAT, {"logprobs": True, "max_tokens": 0}),
    "post-sampling": (CHAT, {"logprobs": True, "post_sampling_probs": True}),
    "a schema": (CHAT, {"response_format": SCHEMA, "max_tokens": 40}),
    "a grammar": (CHAT, {"grammar": GRAMMAR}),
    "stream_options": (CHAT, {"stream_options": {"include_usage": False}}),
    "timings_per_token": (CHAT, {"timings_per_token": True}),
    "return_progress": (CHAT, {"return_progress": True}),
    "return_tokens": (CHAT, {"return_tokens": True}),
    "verbose": (CHAT, {"verbose": True}),
    "unknown members": (CHAT, {"user": "me", "store": False, "x": {"y": [1]}, "seed": 4}),
    "a partial answer": (
        CHAT,
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]},
    ),
    "escapes": (CHAT, {"grammar": 'root ::= "\\"\\\\ \\t\\x01\\u00e9 \\U0001F600"'}),
    "completion": (COMPLETIONS, {}),
    "its stop": (COMPLETIONS, {"stop": [","]}),
    "its no token": (COMPLETIONS, {"max_tokens": 0}),
    "its logprobs": (COMPLETIONS, {"logprobs": 2}),
    "its echo": (COMPLETIONS, {"echo": True}),
    "its n_probs": (COMPLETIONS, {"n_probs": 2}),
    "its timings_per_token": (COMPLETIONS, {"timings_per_token": True}),
    "its return_tokens": (COMPLETIONS, {"return_tokens": True}),
    "its empty prompt": (COMPLETIONS, {"prompt": ""}),
    "its response_fields": (COMPLETIONS, {"response_fields": ["choices"]}),
    "its schema": (COMPLETIONS, {"json_schema": OBJECT, "max_tokens": 30}),
}
WITH_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "a tool": (CHAT, CALLS),
    "a forced tool": (CHAT, {**CALLS, "tool_choice": "required"}),
    "no tool": (CHAT, {**CALLS, "tool_choice": "none"}),
    "several tools": (CHAT, {**CALLS, "parallel_tool_calls": True}),
    "a cut call": (CHAT, {**CALLS, "max_tokens": 12}),
    "tools and logprobs": (CHAT, {**CALLS, "logprobs": True}),
}
WITH_THOUGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "a thought": (CHAT, {"grammar": THOUGHT}),
    "a cut thought": (CHAT, {"max_tokens": 5}),
    "no thought": (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}),
    "an unparsed thought": (CHAT, {"grammar": THOUGHT, "reasoning_format": "none"}),
    "a thought and logprobs": (CHAT, {"grammar": THOUGHT, "logprobs": True}),
    "a thought with tools": (CHAT, {"tools": TOOLS}),
}


def request(more: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Say hello."}],
        "prompt": "Once upon a time",
        "temperature": 0,
        "max_tokens": 12,
        **more,
    }


def normal(reply: str) -> str:
    """The reply without what is new each time: ids, the time, what was measured."""
    reply = re.sub(r'"id":"(?:chatcmpl-)?\w{32}"|"created":\d+', "_", reply)
    return re.sub(r'("\w+(?:_ms|_per_second)":)[-+.e\d]+', r"\1_", reply)


@pytest.mark.parametrize(
    ("template", "cases"),
    [(None, PLAIN), (HERMES, WITH_TOOLS), (QWEN, WITH_THOUGHT)],
    ids=["plain", "tools", "thinking"],
)
async def test_an_assembled_reply_is_the_childs_own_to_the_byte(
    tmp_path: Path, template: str | None, cases: dict[str, tuple[str, dict[str, Any]]]
) -> None:
    unlike = {}
    async with engine(tmp_path, template=template, more=("--repack",)) as (fleet, at):
        await fleet.load(fleet.model.model_id)
        async with child_client(fleet) as child:
            for name, (path, more) in cases.items():
                told = request(more)
                # so that both find the same prompt cached
                await child.post(path, json={**told, "max_tokens": 1, "max_completion_tokens": 1})
                ours = normal((await at.client.post(path, json=told)).text)
                theirs = normal((await child.post(path, json=told)).text)
                if ours != theirs:
                    unlike[name] = (ours, theirs)

    assert unlike == {}
