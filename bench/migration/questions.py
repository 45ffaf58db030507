"""Greedy streams in every dialect and form: what is asked, and what of an event is the reply."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.fakes.chat_templates import WEATHER, WEATHER_CHAT
from tests.fakes.weather_chats import (
    ANTHROPIC_WEATHER,
    RESPONSES_WEATHER,
    anthropic_chat,
    responses_chat,
)

PROMPTS = (
    "Tell me a long story about a fox.",
    "Explain how rain forms.",
    "List ten animals with a sentence each.",
    "What is a computer? Answer at length.",
    "Write a letter to a friend about the sea.",
    "Why do leaves fall?",
)
MANY_BYTES = (
    "Write ten emoji of animals 🦊🐻🐼 in a row, with their names.",
    "Translate to Chinese, then to Japanese, then to Korean: 'The sea is blue.' 海は青い",
    "Repeat this again and again: ünïcödé — 日本語 — 👩‍👩‍👧 — ",
)
"""What is answered to them breaks characters: a token is a part of one."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "animals": {
            "type": "array", "minItems": 4, "maxItems": 4,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 12},
                    "legs": {"type": "integer", "minimum": 0, "maximum": 8},
                },
                "required": ["name", "legs"],
            },
        }
    },
    "required": ["animals"],
}  # fmt: skip
TALLY = "Name four animals and how many legs they have."

Event = dict[str, Any]
Body = dict[str, Any]


class Form(Enum):
    """What a reply is made of."""

    TEXT = "text"
    MANY_BYTES = "characters of many tokens"
    SCHEMA = "a schema"
    CALL = "a tool call"
    LOGPROBS = "log probabilities"


@dataclass(frozen=True, slots=True)
class Question:
    """One of them."""

    path: str
    form: Form
    prompt: str
    body: Callable[[str, int], Body]
    """Of a model's name and the most tokens to write."""
    told: Callable[[Event], str]
    """What an event adds to the reply, all that is to be equal."""

    @property
    def key(self) -> str:
        """By what its undisturbed reply is known."""
        return f"{self.path} {self.form.value}: {self.prompt}"


def _chat_told(event: Event) -> str:
    return "".join(
        (choice["delta"].get("reasoning_content") or "")
        + (choice["delta"].get("content") or "")
        + "".join(
            (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
            for call in choice["delta"].get("tool_calls") or ()
        )
        + "".join(f"|{each['token']}" for each in (choice.get("logprobs") or {}).get("content", ()))
        for choice in event["choices"]
    )


def _text_told(event: Event) -> str:
    return "".join(
        choice["text"]
        + "".join(f"|{t['token']}" for t in (choice.get("logprobs") or {}).get("content") or ())
        for choice in event["choices"]
    )


def _message_told(event: Event) -> str:
    named = event.get("content_block", {}).get("name") or ""
    delta = event.get("delta", {})
    return str(named + delta.get("text", "") + delta.get("partial_json", ""))


def _response_told(event: Event) -> str:
    kinds = ("response.output_text.delta", "response.function_call_arguments.delta")
    return str(event["delta"]) if event["type"] in kinds else ""


def _native_told(event: Event) -> str:
    if "response" in event:
        return str(event["response"])
    message = event.get("message", {})
    calls = message.get("tool_calls") or ()
    return str(message.get("content", "")) + "".join(str(call["function"]) for call in calls)


def _chat(prompt: str, **more: Any) -> Callable[[str, int], Body]:
    return lambda model, n: {
        "model": model, "messages": [{"role": "user", "content": prompt}], "stream": True,
        "temperature": 0, "max_tokens": n, **more,
    }  # fmt: skip


def _prompted(prompt: str, **more: Any) -> Callable[[str, int], Body]:
    return lambda model, n: {
        "model": model, "prompt": prompt, "stream": True, "temperature": 0, "max_tokens": n, **more,
    }  # fmt: skip


def _response(given: Any, **more: Any) -> Callable[[str, int], Body]:
    return lambda model, n: {
        "model": model, "input": given, "stream": True, "temperature": 0, "max_output_tokens": n,
        **more,
    }  # fmt: skip


def _native(**more: Any) -> Callable[[str, int], Body]:
    return lambda model, n: {
        "model": model, "stream": True, "options": {"temperature": 0, "num_predict": n}, **more,
    }  # fmt: skip


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


_TOLD: Mapping[str, Callable[[Event], str]] = {
    "/v1/chat/completions": _chat_told,
    "/v1/completions": _text_told,
    "/completion": lambda event: str(event.get("content", "")),
    "/v1/messages": _message_told,
    "/v1/responses": _response_told,
    "/api/chat": _native_told,
    "/api/generate": _native_told,
}


def _texts(prompt: str, form: Form) -> tuple[Question, ...]:
    """One prompt in each dialect."""
    usage = {"stream_options": {"include_usage": True}}
    endless = {"ignore_eos": True}  # where a dialect knows it: who has ended cannot be hit
    bodies = {
        "/v1/chat/completions": _chat(prompt, **usage, **endless),
        "/v1/completions": _prompted(prompt, **endless),
        "/completion": _prompted(prompt, **endless),
        "/v1/messages": _chat(prompt),
        "/v1/responses": _response(prompt),
        "/api/chat": _native(messages=_said(prompt)),
        "/api/generate": _native(prompt=prompt),
    }
    return tuple(Question(path, form, prompt, body, _TOLD[path]) for path, body in bodies.items())


def _of(path: str, form: Form, prompt: str, body: Callable[[str, int], Body]) -> Question:
    return Question(path, form, prompt, body, _TOLD[path])


def _schemas() -> tuple[Question, ...]:
    format_ = {"type": "json_schema", "json_schema": {"name": "tally", "schema": SCHEMA}}
    chat, native = "/v1/chat/completions", "/api/chat"
    return (
        _of(chat, Form.SCHEMA, TALLY, _chat(TALLY, response_format=format_)),
        _of("/completion", Form.SCHEMA, TALLY, _prompted(TALLY, json_schema=SCHEMA)),
        _of(native, Form.SCHEMA, TALLY, _native(messages=_said(TALLY), format=SCHEMA)),
    )


def _calls() -> tuple[Question, ...]:
    tool = {"type": "function", "function": WEATHER}
    chat = _chat("", messages=WEATHER_CHAT, tools=[tool])
    message = _chat("", messages=anthropic_chat(), tools=[ANTHROPIC_WEATHER])
    response = _response(responses_chat(), tools=[RESPONSES_WEATHER])
    return (
        _of("/v1/chat/completions", Form.CALL, "weather", chat),
        _of("/v1/messages", Form.CALL, "weather", message),
        _of("/v1/responses", Form.CALL, "weather", response),
    )


def _weighed() -> tuple[Question, ...]:
    prompt = PROMPTS[0]
    chat = _chat(prompt, logprobs=True, top_logprobs=2)
    return (
        _of("/v1/chat/completions", Form.LOGPROBS, prompt, chat),
        _of("/v1/completions", Form.LOGPROBS, prompt, _prompted(prompt, logprobs=2)),
    )


TEXTS = tuple(question for prompt in PROMPTS for question in _texts(prompt, Form.TEXT))
OTHERS = (
    *(question for prompt in MANY_BYTES for question in _texts(prompt, Form.MANY_BYTES)[:4:3]),
    *_schemas(),
    *_calls(),
    *_weighed(),
)


LONG = tuple(
    question
    for question in TEXTS
    if question.path in ("/v1/chat/completions", "/v1/completions", "/completion")
)
"""Those that write as many tokens as they may."""


def drawn(chance: random.Random, *, with_others: bool) -> Question:
    """A text in any dialect; with others, one time in three something else."""
    if with_others and chance.random() < 1 / 3:
        return chance.choice(OTHERS)
    return chance.choice(TEXTS)


ENDLESS = _of("/v1/chat/completions", Form.TEXT, PROMPTS[0], _chat(PROMPTS[0], ignore_eos=True))
"""Writes as many tokens as it may."""
