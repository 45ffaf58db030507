"""What the fake stands for, on the real engine and model; and what only those can show."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one
from tests.fakes.real_engine import child_client, engine

pytestmark = pytest.mark.llama

MESSAGES = [{"role": "user", "content": "Say hello."}]
GREEDY = {"model": "smollm2", "messages": MESSAGES, "temperature": 0, "seed": 1, "max_tokens": 12}
SOON_S = 20.0


async def straight(fleet: FleetOfOne, path: str, told: dict[str, Any]) -> Any:
    """The child's own reply: an object, or the list of a stream's events."""
    async with child_client(fleet) as client:
        reply = await client.post(path, json=told)
    if not told.get("stream"):
        return reply.json()
    events = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


def shape(value: Any) -> Any:
    """The keys and types of a reply, in order."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) else type(value).__name__


async def test_both_dialects_answer_with_the_same_words(tmp_path: Path) -> None:
    options = {"temperature": 0, "seed": 1, "num_predict": 12, "min_p": 0.05, "top_p": 0.95}
    told = {"model": "smollm2", "messages": MESSAGES, "options": options, "stream": False}
    async with engine(tmp_path) as (_, at):
        in_ollama = (await at.client.post("/api/chat", json=told)).json()
        in_openai = (await at.client.post("/v1/chat/completions", json=GREEDY)).json()

    assert in_ollama["message"]["content"] == in_openai["choices"][0]["message"]["content"]
    assert in_ollama["prompt_eval_count"] == in_openai["usage"]["prompt_tokens"]
    assert in_ollama["eval_count"] == in_openai["usage"]["completion_tokens"]


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/api/chat"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_caller_who_leaves_frees_the_slot(tmp_path: Path, route: str, stream: bool) -> None:
    told = {**GREEDY, "max_tokens": 900, "stream": stream, "options": {"num_predict": 900}}
    told["messages"] = [{"role": "user", "content": "Write a very long story."}]
    async with engine(tmp_path) as (fleet, at):
        await fleet.load(fleet.model.model_id)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), at.client.stream("POST", route, json=told) as reply:
                await reply.aread()
        async with asyncio.timeout(SOON_S):
            while any(await fleet.slots()):
                await asyncio.sleep(0.2)  # cadence

    assert fleet.leases == 0


async def test_a_child_killed_between_two_requests_is_invisible(tmp_path: Path) -> None:
    async with engine(tmp_path) as (fleet, at):
        before = await at.client.post("/v1/chat/completions", json=GREEDY)
        fleet.kill()
        after = await at.client.post("/v1/chat/completions", json=GREEDY)

    assert before.json()["choices"] == after.json()["choices"]
    assert fleet.launches == 2


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/api/chat"])
async def test_a_prompt_over_the_context_is_a_400_with_its_numbers(
    tmp_path: Path, route: str
) -> None:
    told = {"model": "smollm2", "messages": [{"role": "user", "content": "word " * 400}]}
    async with engine(tmp_path, n_ctx=256) as (_, at):
        reply = await at.client.post(route, json=told)

    assert reply.status_code == 400
    assert "exceeds the context of 256 tokens" in reply.text


def drift(fake: Any, real: Any, at: str = "") -> list[str]:
    """Where the fake has what the real one has not, or of another type."""
    if isinstance(fake, dict) and isinstance(real, dict):
        missing = [f"{at}.{key}" for key in fake if key not in real]
        shared = [key for key in fake if key in real]
        return missing + [d for key in shared for d in drift(fake[key], real[key], f"{at}.{key}")]
    if isinstance(fake, list) and isinstance(real, list):
        return drift(fake[0], real[0], f"{at}[0]") if fake and real else []
    return [] if shape(fake) == shape(real) else [f"{at}: {fake!r} is not like {real!r}"]


PROMPT = {"prompt": "Once upon a time", "n_predict": 3, "max_tokens": 3, "temperature": 0}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completions", GREEDY),
        ("/v1/chat/completions", {**GREEDY, "logprobs": True}),
        ("/v1/chat/completions", {**GREEDY, "stream": True}),
        ("/v1/chat/completions", {**GREEDY, "stream": True, "return_progress": True}),
        ("/v1/chat/completions", {**GREEDY, "stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", {"max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 2000}]}),
        ("/v1/completions", PROMPT),
        ("/v1/completions", {**PROMPT, "stream": True}),
        ("/completion", PROMPT),
        ("/completion", {**PROMPT, "stream": True, "n_probs": 1}),
        ("/completion", {**PROMPT, "stream": True, "return_progress": True}),
        ("/tokenize", {"content": "a b"}),
        ("/detokenize", {"tokens": [260]}),
        ("/apply-template", {"messages": MESSAGES}),
        ("/v1/embeddings", {"input": "a"}),
        ("/nope", {}),
    ],
)
async def test_the_fake_says_nothing_that_the_real_one_does_not(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    async with engine(tmp_path) as (real, _):
        await real.load(real.model.model_id)
        said = await straight(real, path, told)
    (tmp_path / "fake").mkdir()
    async with fleet_of_one(tmp_path / "fake", n_ctx=1024) as fake:
        await fake.load(fake.model.model_id)
        faked = await straight(fake, path, told)

    assert type(faked) is type(said)
    events = zip(faked, said, strict=False) if isinstance(said, list) else [(faked, said)]
    assert [d for fake_event, event in events for d in drift(fake_event, event)] == []


@pytest.mark.parametrize("prompt", [["one two", "The sky"], ["one two"], [[1, 2], [3]], [1, 2]])
async def test_several_prompts_are_answered_as_the_engine_itself_does(
    tmp_path: Path, prompt: list[Any]
) -> None:
    told = {"model": "smollm2", "prompt": prompt, "temperature": 0, "max_tokens": 4}
    async with engine(tmp_path) as (fleet, at):
        whole = (await at.client.post("/v1/completions", json=told)).json()
        stream = await at.client.post("/v1/completions", json={**told, "stream": True})
        direct = await straight(fleet, "/v1/completions", told)

    texts = [""] * len(direct["choices"])
    for event in stream.text.split("\n\n")[:-2]:
        (choice,) = json.loads(event.removeprefix("data: "))["choices"]
        texts[choice["index"]] += choice["text"]
    assert whole["choices"] == direct["choices"]
    assert texts == [choice["text"] for choice in direct["choices"]]
    assert whole["usage"]["completion_tokens"] == 4 * len(texts)
    assert "prompt_progress" not in stream.text
