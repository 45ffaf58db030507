"""LiteLLM's ollama providers: python -m tests.clients.python.litellm_checks BASE_URL."""

import asyncio
import json
import sys
from typing import Any

import litellm

from tests.clients.python.checking import (
    HERMES,
    MODEL,
    N_EMBD,
    N_TOKENS,
    QUESTION,
    VERDICT,
    check,
    streamed,
    told,
)
from tests.fakes.chat_templates import WEATHER, WEATHER_CHAT

BASE = sys.argv[1]
HELLO = [{"role": "user", "content": QUESTION}]


def asked(provider: str, **more: Any) -> dict[str, Any]:
    """What a completion is asked with."""
    common = {"model": f"{provider}/{MODEL}", "messages": HELLO, "api_base": BASE}
    return {**common, "temperature": 0, "max_tokens": N_TOKENS, **more}


def answers(provider: str) -> None:
    """An answer, and what it took."""
    reply = litellm.completion(**asked(provider))
    told(reply.choices[0].message.content)
    assert reply.usage.completion_tokens > 0, reply


def streams(provider: str) -> None:
    """The same as a stream."""
    whole = litellm.completion(**asked(provider)).choices[0].message.content
    chunks = litellm.completion(**asked(provider, stream=True))
    streamed([text for chunk in chunks if (text := chunk.choices[0].delta.content)], whole)


def waits_for_none() -> None:
    """The asynchronous calls likewise."""

    async def both() -> None:
        whole = (await litellm.acompletion(**asked("ollama_chat"))).choices[0].message.content
        chunks = await litellm.acompletion(**asked("ollama_chat", stream=True))
        parts = [chunk.choices[0].delta.content async for chunk in chunks]
        streamed([part for part in parts if part], whole)

    asyncio.run(both())


def calls_tools() -> None:
    """A tool is called, whole and streamed."""
    tools = [{"type": "function", "function": WEATHER}]
    more = {"model": f"ollama_chat/{HERMES}", "messages": WEATHER_CHAT, "max_tokens": 60}
    whole = litellm.completion(**asked("ollama_chat", tools=tools, **more))
    chunks = list(litellm.completion(**asked("ollama_chat", tools=tools, stream=True, **more)))
    built = litellm.stream_chunk_builder(chunks)
    for reply in (whole, built):
        (call,) = reply.choices[0].message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        assert reply.choices[0].finish_reason == "tool_calls"


def keeps_to_schemas() -> None:
    """Structured output is what its schema says."""
    wished = {"type": "json_schema", "json_schema": {"name": "Verdict", "schema": VERDICT}}
    reply = litellm.completion(**asked("ollama_chat", response_format=wished))
    assert json.loads(reply.choices[0].message.content)["verdict"] in ("yes", "no")


def embeds() -> None:
    """Texts are embedded."""
    told = {"model": f"ollama/{MODEL}", "input": ["a sky", "a sea"], "api_base": BASE}
    vectors = [row["embedding"] for row in litellm.embedding(**told).data]
    assert [len(vector) for vector in vectors] == [N_EMBD] * 2
    assert vectors[0] != vectors[1]


if __name__ == "__main__":
    check(
        "litellm",
        {
            "ollama, chat": lambda: answers("ollama"),
            "ollama, streamed": lambda: streams("ollama"),
            "ollama_chat, chat": lambda: answers("ollama_chat"),
            "ollama_chat, streamed": lambda: streams("ollama_chat"),
            "ollama_chat, asynchronous": waits_for_none,
            "ollama_chat, tools": calls_tools,
            "ollama_chat, structured output": keeps_to_schemas,
            "ollama, embeddings": embeds,
        },
    )
