"""llm-ollama: OLLAMA_HOST=BASE_URL python -m tests.clients.python.llm_checks BASE_URL."""

import asyncio
import json
from typing import Any

import llm
from llm.parts import ToolCallPart

from tests.clients.python.checking import (
    HERMES,
    MODEL,
    N_TOKENS,
    QUESTION,
    VERDICT,
    check,
    streamed,
    told,
)
from tests.fakes.chat_templates import WEATHER, WEATHER_CHAT

GREEDY = {"temperature": 0, "num_predict": N_TOKENS}


def lists() -> None:
    """The models are found, with what they can."""
    model: Any = llm.get_model(f"ollama/{MODEL}")
    hermes: Any = llm.get_model(f"ollama/{HERMES.removesuffix(':latest')}")
    assert (model.supports_tools, hermes.supports_tools) == (False, True)


def answers() -> None:
    """A prompt is answered, and says what it took."""
    reply = llm.get_model(f"ollama/{MODEL}").prompt(QUESTION, stream=False, **GREEDY)
    told(reply.text())
    assert (reply.usage().output or 0) > 0


def streams() -> None:
    """The same as a stream."""
    model = llm.get_model(f"ollama/{MODEL}")
    whole = model.prompt(QUESTION, stream=False, **GREEDY).text()
    streamed([part for part in model.prompt(QUESTION, **GREEDY) if part], whole)


def waits_for_none() -> None:
    """The asynchronous model likewise."""

    async def whole() -> str:
        text: str = await llm.get_async_model(f"ollama/{MODEL}").prompt(QUESTION, **GREEDY).text()
        return text

    told(asyncio.run(whole()))


def converses() -> None:
    """A second prompt knows of the first."""
    talk = llm.get_model(f"ollama/{MODEL}").conversation()
    first = talk.prompt(QUESTION, **GREEDY)
    told(first.text())
    second = talk.prompt("And of France?", **GREEDY)
    second.text()
    assert (second.usage().input or 0) > (first.usage().input or 0) + N_TOKENS // 3


def calls_tools() -> None:
    """A tool that is offered is called, and its result is taken."""
    cities: list[str] = []

    def weather(city: str) -> str:
        cities.append(city)
        return "Rain."

    tool = llm.Tool(
        name=WEATHER["name"],
        description=WEATHER["description"],
        input_schema=WEATHER["parameters"],
        implementation=weather,
    )
    more: dict[str, Any] = {**GREEDY, "num_predict": 60}
    talk = llm.get_model(f"ollama/{HERMES}").conversation(tools=[tool])
    first = talk.prompt(messages=_before(), tools=[tool], **more)
    assert [call.name for call in first.tool_calls()] == ["weather"]
    results = first.execute_tool_calls()
    assert cities == ["Oslo"]
    second = talk.prompt(tools=[tool], tool_results=results, **more)
    assert second.text() or second.tool_calls()


def _before() -> list[Any]:
    """WEATHER_CHAT as llm has it."""
    messages = []
    for said in WEATHER_CHAT:
        parts = [said["content"]] if said["content"] else []
        for call in said.get("tool_calls", ()):
            function = call["function"]
            arguments = json.loads(function["arguments"])
            parts.append(ToolCallPart(name=function["name"], arguments=arguments))
        messages.append(llm.user(*parts) if said["role"] == "user" else llm.assistant(*parts))
    return messages


def keeps_to_schemas() -> None:
    """Structured output is what its schema says."""
    reply = llm.get_model(f"ollama/{MODEL}").prompt("Is the sky blue?", schema=VERDICT, **GREEDY)
    assert json.loads(reply.text())["verdict"] in ("yes", "no")


if __name__ == "__main__":
    check(
        "llm-ollama",
        {
            "models": lists,
            "chat": answers,
            "chat, streamed": streams,
            "chat, asynchronous": waits_for_none,
            "conversation": converses,
            "tools": calls_tools,
            "structured output": keeps_to_schemas,
        },
    )
