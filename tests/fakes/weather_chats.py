"""WEATHER_CHAT, which a small model goes on with by a tool call, as the other dialects word it."""

import json
from typing import Any

from tests.fakes.chat_templates import WEATHER, WEATHER_CHAT

ANTHROPIC_WEATHER: dict[str, Any] = {
    "name": WEATHER["name"],
    "description": WEATHER["description"],
    "input_schema": WEATHER["parameters"],
}
RESPONSES_WEATHER: dict[str, Any] = {"type": "function", **WEATHER, "strict": True}


def anthropic_chat() -> list[dict[str, Any]]:
    """The conversation as /v1/messages takes it."""
    return [_anthropic(message) for message in WEATHER_CHAT]


def _anthropic(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "content": blocks or message["content"]}


def responses_chat() -> list[dict[str, Any]]:
    """The conversation as /v1/responses takes it."""
    return [item for message in WEATHER_CHAT for item in _items(message)]


def _items(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = [
        {"type": "function_call", "call_id": call["id"], **call["function"]}
        for call in message.get("tool_calls", ())
    ]
    return calls or [{"role": message["role"], "content": message["content"]}]
