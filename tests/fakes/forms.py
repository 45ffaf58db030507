"""Requests for streams in every dialect, and what a caller has of each reply to them."""

import json
from typing import Any

from proxy.continuity.delivered import Delivered, Kind, read_chunk, told_by
from tests.fakes.chat_templates import HERMES, QWEN, WEATHER, WEATHER_CHAT

SAID = "List the colours of the rainbow and say something about each of them."
ASKED = [{"role": "user", "content": SAID}]
BEGINNING = "The lighthouse stood on a hill, and"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 60}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
CHAT: dict[str, Any] = {
    "messages": ASKED,
    "max_tokens": 72,
    "temperature": 0,
    "stream_options": {"include_usage": True},
}
TEXT: dict[str, Any] = {"prompt": BEGINNING, "max_tokens": 72, "temperature": 0}
RAW: dict[str, Any] = {"prompt": BEGINNING, "n_predict": 72, "temperature": 0}
OLLAMA: dict[str, Any] = {"options": {"num_predict": 72, "temperature": 0}}
TOOLS: dict[str, Any] = {
    **CHAT,
    "messages": WEATHER_CHAT,
    "tools": [{"type": "function", "function": WEATHER}],
    "max_tokens": 72,
}
JSON: dict[str, Any] = {
    **CHAT,
    "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat, sampled by a seed": ("/v1/chat/completions", {**CHAT, "temperature": 0.8, "seed": 7}),
    "chat, JSON by a schema": ("/v1/chat/completions", JSON),
    "chat, log probabilities": ("/v1/chat/completions", {**CHAT, "logprobs": True}),
    "chat, a stop string": ("/v1/chat/completions", {**CHAT, "stop": ["green", "Green"]}),
    "two choices": ("/v1/chat/completions", {**CHAT, "n": 2, "temperature": 0.8, "seed": 7}),
    "text": ("/v1/completions", TEXT),
    "three choices of a text": ("/v1/completions", {**TEXT, "n": 3, "max_tokens": 32}),
    "several texts": ("/v1/completions", {**TEXT, "prompt": [BEGINNING, SAID]}),
    "completion": ("/completion", RAW),
    "several completions": ("/completion", {**RAW, "prompt": [BEGINNING, SAID]}),
    "completion, a grammar": ("/completion", {**RAW, "grammar": 'root ::= [a-z ]{60,120} "."'}),
    "Ollama's chat": ("/api/chat", {"messages": ASKED, **OLLAMA}),
    "Ollama's generate": ("/api/generate", {"prompt": SAID, **OLLAMA}),
    "Ollama's generate, raw": ("/api/generate", {"prompt": BEGINNING, "raw": True, **OLLAMA}),
    "Anthropic's messages": (
        "/v1/messages",
        {"messages": ASKED, "max_tokens": 72, "temperature": 0},
    ),
    "OpenAI's responses": (
        "/v1/responses",
        {"input": SAID, "max_output_tokens": 72, "temperature": 0},
    ),
}
OF_A_TEMPLATE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a tool call": (HERMES, "/v1/chat/completions", TOOLS),
    "a thought": (QWEN, "/v1/chat/completions", CHAT),
}
KINDS = {kind.value.decode(): kind for kind in Kind}


def heard(route: str, reply: str) -> dict[str, Any]:
    """What a caller has of a stream, without ids, times and cuts, which chance decides."""
    if route in KINDS:
        return _as_told(reply, KINDS[route])
    if route.startswith("/api/"):
        return _as_lines(reply)
    events = [json.loads(line[6:]) for line in reply.splitlines() if line.startswith("data: {")]
    kinds = [event["type"] for event in events]
    last = events[-1]["response"] if route == "/v1/responses" else events[-2]
    deltas = [event["delta"] for event in events if event["type"].endswith("delta")]
    texts = [delta if isinstance(delta, str) else delta.get("text", "") for delta in deltas]
    return {
        "text": "".join(texts),
        "kinds": [kind for kind in kinds if not kind.endswith("delta")],
        "usage": last["usage"],
        "why": last.get("status") or last["delta"]["stop_reason"],
    }


def _as_told(reply: str, kind: Kind) -> dict[str, Any]:
    delivered = Delivered()
    delivered.add(reply.encode() + b"\n\n")
    told = told_by(delivered, kind)
    chunks = [read_chunk(event) for event in delivered.events() if event != b"[DONE]"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert reply.count('"stop":true') == len(told.finishes) or not kind.is_raw
    roles = [c.index for chunk in chunks for c in chunk.choices if c.delta.role is not None]
    assert len(roles) == len(set(roles))
    assert reply.count('"finish_reason":"') == len(told.finishes) or kind.is_raw
    return {"texts": told.texts, "why": told.finishes, "usage": told.usage, "done": told.is_done}


def _as_lines(reply: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in reply.splitlines()]
    said = [line.get("message", line) for line in lines]
    last = lines[-1]
    return {
        "text": "".join(told.get("content", told.get("response", "")) for told in said),
        "thought": "".join(told.get("thinking", "") for told in said),
        "why": (last["done"], last["done_reason"]),
        "usage": (last["prompt_eval_count"], last["eval_count"]),
        "n_ends": sum(line["done"] for line in lines),
        "n_context": len(last.get("context", ())),
    }
