"""langchain-ollama: python -m tests.clients.python.langchain_checks BASE_URL."""

import asyncio
import sys
from typing import Any

from langchain_core.messages import convert_to_messages
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM

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


def chat(model: str = MODEL, n_tokens: int = N_TOKENS) -> Any:
    """A chat that looks first whether its model is there."""
    return ChatOllama(
        model=model,
        base_url=BASE,
        temperature=0,
        num_predict=n_tokens,
        validate_model_on_init=True,
    )


def answers() -> None:
    """A chat is answered, and says what it took."""
    reply = chat().invoke(QUESTION)
    told(reply.content)
    assert reply.usage_metadata["output_tokens"] > 0, reply
    assert reply.response_metadata["done_reason"] in ("stop", "length"), reply


def streams() -> None:
    """The same as a stream."""
    parts = [part.content for part in chat().stream(QUESTION)]
    streamed([part for part in parts if part], chat().invoke(QUESTION).content)


def waits_for_none() -> None:
    """The asynchronous calls likewise."""

    async def both() -> None:
        whole = (await chat().ainvoke(QUESTION)).content
        parts = [part.content async for part in chat().astream(QUESTION)]
        streamed([part for part in parts if part], whole)

    asyncio.run(both())


def calls_tools() -> None:
    """A tool is called, whole and streamed."""
    bound = chat(HERMES, 60).bind_tools([{"type": "function", "function": WEATHER}])
    messages = convert_to_messages(WEATHER_CHAT)
    whole = bound.invoke(messages).tool_calls
    parts = [call for part in bound.stream(messages) for call in part.tool_calls]
    for calls in (whole, parts):
        assert [(call["name"], call["args"]) for call in calls] == [("weather", {"city": "Oslo"})]


def keeps_to_schemas() -> None:
    """Structured output is what its schema says."""
    said = chat().with_structured_output(VERDICT).invoke("Is the sky blue?")
    assert said["verdict"] in ("yes", "no"), said


def generates() -> None:
    """A text is gone on with, whole and streamed."""
    model = OllamaLLM(model=MODEL, base_url=BASE, temperature=0, num_predict=N_TOKENS)
    whole = model.invoke(QUESTION)
    told(whole)
    streamed([part for part in model.stream(QUESTION) if part], whole)


def embeds() -> None:
    """Texts are embedded, a query too."""
    model = OllamaEmbeddings(model=MODEL, base_url=BASE)
    vectors = [*model.embed_documents(["a sky", "a sea"]), model.embed_query("a sky")]
    assert [len(vector) for vector in vectors] == [N_EMBD] * 3
    assert vectors[0] != vectors[1]


if __name__ == "__main__":
    check(
        "langchain-ollama",
        {
            "chat": answers,
            "chat, streamed": streams,
            "chat, asynchronous": waits_for_none,
            "tools": calls_tools,
            "structured output": keeps_to_schemas,
            "text, whole and streamed": generates,
            "embeddings": embeds,
        },
    )
