"""The official Anthropic client, and OpenAI's for responses, when things go wrong."""

from pathlib import Path

import anthropic
import openai
import pytest
from anthropic.types import MessageParam

from planners.model import ModelId
from supervisor.leases.lease import LineFull
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import serving

HELLO: list[MessageParam] = [{"role": "user", "content": "one two three"}]
SLOW = {"token_s": 0.05, "tokens": 1000}


def crowded_fleet(folder: Path, *, path: str = "") -> FleetOfOne:
    """Has no room in its line for the first who comes."""
    fleet = FleetOfOne(served_model(path=path), folder)
    fleet.refusals = iter((LineFull(model_id=ModelId("tiny"), waiting=8, retry_after_s=0.1),))
    return fleet


def anthropic_client(url: str, *, max_retries: int = 0) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=max_retries)


async def test_anthropic_is_told_of_a_full_line_in_its_own_class(tmp_path: Path) -> None:
    fleet = crowded_fleet(tmp_path)
    async with serving(fleet) as at, anthropic_client(at.url) as client:
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error") as error:
            await client.messages.create(model="tiny", max_tokens=4, messages=HELLO)

    assert error.value.status_code == 529
    assert error.value.request_id


async def test_anthropic_tries_again_where_the_line_was_full(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").touch()
    fleet = crowded_fleet(tmp_path, path=str(tmp_path / "tiny.gguf"))
    async with serving(fleet) as at, anthropic_client(at.url, max_retries=1) as client:
        message = await client.messages.create(model="tiny", max_tokens=4, messages=HELLO)
        await fleet.stop()

    assert message.content
    assert next(fleet.refusals, None) is None


@pytest.mark.parametrize("fault", [{"die_at_byte": 1500}, {"end_at_token": 3}], ids=str)
async def test_anthropic_hears_of_a_stream_that_is_lost(
    tmp_path: Path, fault: dict[str, object]
) -> None:
    heard: list[str] = []
    async with (
        fleet_of_one(tmp_path, faults={**SLOW, **fault}) as fleet,
        serving(fleet) as at,
        anthropic_client(at.url) as client,
    ):
        with pytest.raises(anthropic.APIStatusError, match="model runner"):
            await listen(client, heard)

    assert heard


async def listen(client: anthropic.AsyncAnthropic, heard: list[str]) -> None:
    """Adds what is streamed to `heard`."""
    async with client.messages.stream(model="tiny", max_tokens=100, messages=HELLO) as stream:
        async for text in stream.text_stream:
            heard.append(text)


@pytest.mark.parametrize("fault", [{"die_at_byte": 1500}, {"end_at_token": 3}], ids=str)
async def test_openai_hears_of_a_response_that_is_lost(
    tmp_path: Path, fault: dict[str, object]
) -> None:
    async with (
        fleet_of_one(tmp_path, faults={**SLOW, **fault}) as fleet,
        serving(fleet) as at,
        openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.responses.create(model="tiny", input="one two", stream=True)
        events = [event async for event in stream]

    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "model runner" in last.response.error.message
    assert last.response.output_text.startswith("one")
    assert [event.sequence_number for event in events] == list(range(len(events)))
