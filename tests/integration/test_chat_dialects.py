"""The official Anthropic client, and OpenAI's for responses, against the daemon and real model."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import anthropic
import openai
import pytest
from anthropic.types import MessageParam, ToolParam
from openai.resources.responses import Responses
from openai.types.responses import FunctionToolParam, ResponseInputParam
from pydantic import BaseModel

from scripts.started_daemon import StartedDaemon, started_daemon
from tests.fakes.chat_templates import HERMES, QWEN, with_template
from tests.fakes.weather_chats import (
    ANTHROPIC_WEATHER,
    RESPONSES_WEATHER,
    anthropic_chat,
    responses_chat,
)

MODEL = "SmolLM2-135M-Instruct.Q4_1"
QUESTION = "What is the capital of Germany?"
CAPITAL: list[MessageParam] = [{"role": "user", "content": QUESTION}]
TOOL = cast("ToolParam", ANTHROPIC_WEATHER)
FUNCTION = cast("FunctionToolParam", RESPONSES_WEATHER)
GREEDY = {"temperature": 0}  # which the client knows no more
LONG = "word " * 9000


class Verdict(BaseModel):
    """What is asked for as structured output."""

    verdict: Literal["yes", "no"]


@pytest.fixture(scope="module")
def daemon(model_dir: Path) -> Iterator[StartedDaemon]:
    """With the model as it is, and under templates that know tools and thinking."""
    (model,) = model_dir.glob("*.gguf")
    with tempfile.TemporaryDirectory(prefix="ios-") as folder:
        models = Path(folder) / "models"
        models.mkdir()
        with_template(model, HERMES, models / "hermes.gguf")
        with_template(model, QWEN, models / "qwen.gguf")
        with started_daemon(Path(folder), model_dirs=[model_dir, models]) as daemon:
            daemon.wait_for_engines()
            yield daemon


@pytest.fixture
def claude(daemon: StartedDaemon) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client."""
    with anthropic.Anthropic(base_url=daemon.base, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def responses(daemon: StartedDaemon) -> Iterator[Responses]:
    """OpenAI's client, as far as it speaks of responses."""
    with openai.OpenAI(base_url=f"{daemon.base}/v1", api_key="none", max_retries=0) as client:
        yield client.responses


def test_anthropic_gets_a_message(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model=MODEL, messages=CAPITAL, max_tokens=24, extra_body=GREEDY
    )

    (block,) = message.content
    assert block.type == "text"
    assert "Berlin" in block.text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 0


def test_anthropic_streams_the_same_message(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model=MODEL, messages=CAPITAL, max_tokens=24, extra_body=GREEDY)

    with claude.messages.stream(
        model=MODEL, messages=CAPITAL, max_tokens=24, extra_body=GREEDY
    ) as stream:
        parts = list(stream.text_stream)
        final = stream.get_final_message()

    assert len(parts) > 3
    assert [block.to_dict() for block in final.content] == [
        {**block.to_dict(), "text": "".join(parts)} for block in whole.content
    ]
    assert (final.stop_reason, final.usage.output_tokens) == (
        whole.stop_reason,
        whole.usage.output_tokens,
    )


def test_anthropic_calls_a_tool_and_gives_its_result(claude: anthropic.Anthropic) -> None:
    asked: list[Any] = anthropic_chat()
    call = claude.messages.create(
        model="hermes", messages=asked, tools=[TOOL], max_tokens=64, extra_body=GREEDY,
        tool_choice={"type": "any"},
    )  # fmt: skip
    with claude.messages.stream(
        model="hermes", messages=asked, tools=[TOOL], max_tokens=64, extra_body=GREEDY
    ) as stream:
        streamed = stream.get_final_message()
    (block,) = call.content
    assert block.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "Rain."}
    asked += [
        {"role": "assistant", "content": call.content},
        {"role": "user", "content": [result]},
    ]
    after = claude.messages.create(
        model="hermes", tools=[TOOL], max_tokens=8, extra_body=GREEDY, messages=asked
    )

    assert (block.name, block.input, call.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")
    assert streamed.content[0].type == "tool_use"
    assert streamed.content[0].input == block.input
    assert after.content


def test_anthropic_hears_thoughts_apart(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(
        model="qwen", messages=CAPITAL, max_tokens=1060, extra_body=GREEDY,
        stop_sequences=["\n\n\n"], thinking={"type": "enabled", "budget_tokens": 1024},
    ) as stream:  # fmt: skip
        kinds = []
        for event in stream:
            kinds.append(event.type)
            if kinds.count("thinking") > 4:
                break
        thought = stream.current_message_snapshot.content[0]

    assert thought.type == "thinking"
    assert thought.thinking


def test_anthropic_parses_structured_output(claude: anthropic.Anthropic) -> None:
    message = claude.messages.parse(
        model=MODEL, messages=CAPITAL, max_tokens=64, extra_body=GREEDY, output_format=Verdict
    )

    assert message.parsed_output is not None
    assert message.parsed_output.verdict in ("yes", "no")


def test_anthropic_counts_what_a_message_then_reads(claude: anthropic.Anthropic) -> None:
    counted = claude.messages.count_tokens(model=MODEL, messages=CAPITAL, system="Be brief.")
    usage = claude.messages.create(
        model=MODEL, messages=CAPITAL, system="Be brief.", max_tokens=1
    ).usage

    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_anthropic_gets_its_own_error_classes(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="'nope' not found"):
        claude.messages.create(model="nope", messages=CAPITAL, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match=r"too long: 90\d\d tokens > 8192"):
        claude.messages.create(
            model=MODEL, max_tokens=1, messages=[{"role": "user", "content": LONG}]
        )
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(model=MODEL, messages=CAPITAL, max_tokens=0)


def test_openai_gets_a_response(responses: Responses) -> None:
    response = responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=24)

    assert "Berlin" in response.output_text
    assert response.usage is not None
    assert response.usage.total_tokens == (
        response.usage.input_tokens + response.usage.output_tokens
    )


def test_openai_streams_the_same_response(responses: Responses) -> None:
    whole = responses.create(model=MODEL, input=QUESTION, temperature=0)

    with responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        text = "".join(
            event.delta for event in stream if event.type == "response.output_text.delta"
        )
        final = stream.get_final_response()

    assert text == whole.output_text == final.output_text
    assert final.status == "completed"


def test_openai_hears_of_an_incomplete_response(responses: Responses) -> None:
    events = list(
        responses.create(
            model=MODEL, input=QUESTION, temperature=0, max_output_tokens=3, stream=True
        )
    )

    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_openai_calls_a_function_and_gives_its_result(
    responses: Responses,
) -> None:
    asked = cast("ResponseInputParam", responses_chat())
    with responses.stream(
        model="hermes", input=asked, tools=[FUNCTION], temperature=0, max_output_tokens=64
    ) as stream:
        final = stream.get_final_response()
    (call,) = final.output
    assert call.type == "function_call"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    after = responses.create(
        model="hermes", tools=[FUNCTION], temperature=0, max_output_tokens=8,
        input=cast("ResponseInputParam", [*asked, call.to_dict(), result]),
    )  # fmt: skip

    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    assert after.output


def test_openai_parses_structured_output(responses: Responses) -> None:
    response = responses.parse(model=MODEL, input=QUESTION, temperature=0, text_format=Verdict)

    assert response.output_parsed is not None
    assert response.output_parsed.verdict in ("yes", "no")


def test_openai_hears_thoughts_apart(responses: Responses) -> None:
    response = responses.create(model="qwen", input=QUESTION, temperature=0, max_output_tokens=16)

    (item,) = response.output
    assert item.type == "reasoning"
    assert item.content
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_openai_counts_what_a_response_then_reads(responses: Responses) -> None:
    counted = responses.input_tokens.count(model=MODEL, input=QUESTION)
    response = responses.create(model=MODEL, input=QUESTION, max_output_tokens=1)

    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens


def test_openai_is_told_that_nothing_is_stored(responses: Responses) -> None:
    with pytest.raises(openai.BadRequestError, match="not stored"):
        responses.create(model=MODEL, input=QUESTION, previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="background"):
        responses.create(model=MODEL, input=QUESTION, background=True)
    with pytest.raises(openai.NotFoundError, match="not stored"):
        responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError, match="not stored"):
        responses.delete("resp_1")


def test_openai_gets_its_own_error_classes_for_responses(
    responses: Responses,
) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        responses.create(model="nope", input=QUESTION)
    with pytest.raises(openai.BadRequestError) as too_long:
        responses.create(model=MODEL, input=LONG)

    assert unknown.value.code == "model_not_found"
    assert too_long.value.code == "context_length_exceeded"
