"""OpenAI's own Python client: its usual calls, on the real engine under templates for tools."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
)
from pydantic import BaseModel

from tests.fakes.chat_templates import HERMES, QWEN, WEATHER, WEATHER_CHAT
from tests.fakes.fleet_of_one import FleetOfOne
from tests.fakes.real_engine import engine
from tests.fakes.tiny_models import tiny_models, write

pytestmark = pytest.mark.llama

MODEL = "smollm2"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
ASKS_WEATHER = cast(list[ChatCompletionMessageParam], WEATHER_CHAT)
TOOLS = [cast(ChatCompletionFunctionToolParam, {"type": "function", "function": WEATHER})]
SOON_S = 20.0


class Answer(BaseModel):
    """What a reply is to be parsed into."""

    number: int


@asynccontextmanager
async def client_of(
    folder: Path, *, max_retries: int = 0, **more: Any
) -> AsyncIterator[tuple[FleetOfOne, openai.AsyncOpenAI]]:
    """The client of a proxy before the real engine."""
    async with (
        engine(folder, **more) as (fleet, at),
        openai.AsyncOpenAI(
            base_url=f"{at.url}/v1", api_key="none", max_retries=max_retries
        ) as client,
    ):
        yield fleet, client


async def test_tools_are_called_whole_and_streamed(tmp_path: Path) -> None:
    async with client_of(tmp_path, template=HERMES) as (_, client):
        whole = await client.chat.completions.create(
            model=MODEL, messages=ASKS_WEATHER, tools=TOOLS, temperature=0, max_tokens=60
        )
        async with client.chat.completions.stream(
            model=MODEL, messages=ASKS_WEATHER, tools=TOOLS, temperature=0, max_tokens=60
        ) as stream:
            streamed = await stream.get_final_completion()
        after = await client.chat.completions.create(
            model=MODEL, messages=[*ASKS_WEATHER, *_called(whole)], tools=TOOLS, max_tokens=4
        )

    assert after.usage is not None
    assert whole.usage is not None
    assert after.usage.prompt_tokens > whole.usage.prompt_tokens
    for choice in (whole.choices[0], streamed.choices[0]):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        call = choice.message.tool_calls[0]
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "weather",
            {"city": "Oslo"},
        )
        assert call.id


def _called(reply: ChatCompletion) -> list[ChatCompletionMessageParam]:
    """The assistant's turn as the client gives it back, and what its tool said."""
    message = reply.choices[0].message
    assert message.tool_calls is not None
    return [
        cast(ChatCompletionMessageParam, message.model_dump(exclude_none=True)),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain."},
    ]


async def test_a_reply_is_parsed_into_a_model_whole_and_streamed(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 40}
    async with client_of(tmp_path) as (_, client):
        whole = await client.chat.completions.parse(**asked, response_format=Answer)
        async with client.chat.completions.stream(**asked, response_format=Answer) as stream:
            streamed = await stream.get_final_completion()

    assert isinstance(whole.choices[0].message.parsed, Answer)
    assert streamed.choices[0].message.parsed == whole.choices[0].message.parsed


async def test_a_reply_cut_short_of_its_schema_is_told_as_such(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (_, client):
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(
                model=MODEL, messages=HELLO, response_format=Answer, temperature=0, max_tokens=2
            )


async def test_thinking_has_its_own_member(tmp_path: Path) -> None:
    grammar = 'root ::= "so it is</think>" "\\n\\nyes"'
    async with client_of(tmp_path, template=QWEN) as (_, client):
        reply = await client.chat.completions.create(
            model=MODEL, messages=HELLO, extra_body={"grammar": grammar}
        )

    message = reply.choices[0].message
    assert (message.content, message.model_dump()["reasoning_content"]) == ("yes", "so it is")


async def test_texts_are_embedded_as_floats_and_as_base64(tmp_path: Path) -> None:
    path = write(next(model for model in tiny_models() if model.architecture == "bert"), tmp_path)
    flags = ("--embedding", "-ub", "256")
    async with client_of(tmp_path, n_ctx=256, path=path, more=flags) as (_, client):
        packed = await client.embeddings.create(model=MODEL, input=["a b", "c"])
        plain = await client.embeddings.create(
            model=MODEL, input=["a b", "c"], encoding_format="float"
        )
        with pytest.raises(openai.BadRequestError, match="prompt 2 of 2") as refused:
            await client.embeddings.create(model=MODEL, input=["a", "b " * 400])

    assert packed.usage.prompt_tokens == 7
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    assert refused.value.code == "context_length_exceeded"


async def test_completions_stream_several_prompts(tmp_path: Path) -> None:
    prompts = ["Once upon a", "One, two,"]
    async with client_of(tmp_path) as (_, client):
        whole = await client.completions.create(
            model=MODEL, prompt=prompts, temperature=0, max_tokens=4
        )
        texts = ["", ""]
        async for chunk in await client.completions.create(
            model=MODEL, prompt=prompts, temperature=0, max_tokens=4, stream=True
        ):
            texts[chunk.choices[0].index] += chunk.choices[0].text

    assert texts == [choice.text for choice in whole.choices]


async def test_raw_responses_have_the_headers(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (_, client):
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=HELLO, max_tokens=1, extra_headers={"x-request-id": "mine"}
        )

    assert (raw.headers["x-request-id"], raw.status_code) == ("mine", 200)
    assert raw.parse().usage is not None


Call = Callable[[openai.AsyncOpenAI], Awaitable[object]]


@pytest.mark.parametrize(
    ("call", "kind", "code"),
    [
        (lambda c: c.models.retrieve("nope"), openai.NotFoundError, "model_not_found"),
        (
            lambda c: c.chat.completions.create(model="nope", messages=HELLO, stream=True),
            openai.NotFoundError,
            "model_not_found",
        ),
        (
            lambda c: c.completions.create(model=MODEL, prompt="word " * 2000),
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        (
            lambda c: c.chat.completions.create(
                model=MODEL, messages=HELLO, extra_body={"grammar": "root ::= nothing"}
            ),
            openai.BadRequestError,
            "invalid_request_error",
        ),
        (
            lambda c: c.chat.completions.create(
                model=MODEL, messages=HELLO, stream=True, extra_body={"grammar": "root ::= nothing"}
            ),
            openai.BadRequestError,
            "invalid_request_error",
        ),
        (
            lambda c: c.embeddings.create(model=MODEL, input="a"),
            openai.InternalServerError,
            "not_supported_error",
        ),
    ],
    ids=["retrieve", "unknown", "too long", "grammar", "grammar streamed", "embeddings"],
)
async def test_each_error_is_of_the_class_its_client_knows(
    tmp_path: Path, call: Call, kind: type[openai.APIStatusError], code: str
) -> None:
    async with client_of(tmp_path) as (_, client):
        with pytest.raises(kind) as refused:
            await call(client)

    assert refused.value.code == code
    assert refused.value.response.headers["x-request-id"]


async def test_a_client_that_gives_up_frees_the_slot(tmp_path: Path) -> None:
    async with client_of(tmp_path) as (fleet, client):
        await fleet.load(fleet.model.model_id)
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.5).chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=900, extra_body={"ignore_eos": True}
            )
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()
        async with asyncio.timeout(SOON_S):
            while any(await fleet.slots()):
                await asyncio.sleep(0.2)  # cadence

    assert fleet.leases == 0
