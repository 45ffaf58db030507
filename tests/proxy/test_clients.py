"""The official Ollama and OpenAI clients, unchanged, against a real port."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import ollama
import openai
import pytest

from tests.fakes.fleet_of_one import (
    FAKE,
    FleetOfOne,
    fleet_of_one,
    model_info,
    served_model,
)
from tests.fakes.serving import serving

CLOUD = {"web_search", "web_fetch"}
"""Which ask ollama.com itself, whatever the host."""
HELLO: list[ollama.Message] = [ollama.Message(role="user", content="one two three")]


@asynccontextmanager
async def ollama_client(url: str) -> AsyncIterator[ollama.AsyncClient]:
    client = ollama.AsyncClient(host=url, trust_env=False)
    try:
        yield client
    finally:
        await client.close()  # type: ignore[no-untyped-call]  # the package leaves it untyped


def openai_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def test_ollama_lists_shows_and_tells_what_runs(tmp_path: Path) -> None:
    async with (
        fleet_of_one(tmp_path) as fleet,
        serving(fleet) as at,
        ollama_client(at.url) as client,
    ):
        listed = await client.list()
        shown = await client.show("tiny")
        await client.generate("tiny", keep_alive=-1)
        running = await client.ps()

    assert [model.model for model in listed.models] == ["tiny:latest"]
    assert shown.modelinfo is not None
    assert shown.capabilities == ["completion"]
    assert [model.model for model in running.models] == ["tiny:latest"]
    assert running.models[0].expires_at is not None
    assert running.models[0].expires_at.year > 2300
    assert fleet.keep_alive_s == math.inf


async def test_ollama_chats_whole_and_streamed(tmp_path: Path) -> None:
    async with (
        fleet_of_one(tmp_path) as fleet,
        serving(fleet) as at,
        ollama_client(at.url) as client,
    ):
        whole = await client.chat("tiny", messages=HELLO, options={"num_predict": 3})
        parts = [
            part
            async for part in await client.chat(
                "tiny", messages=HELLO, stream=True, options={"num_predict": 3}
            )
        ]

    assert whole.message.content == "one two three"
    assert "".join(part.message.content or "" for part in parts) == "one two three"
    assert (parts[-1].done, parts[-1].eval_count) == (True, 3)


async def test_ollama_generates_and_goes_on(tmp_path: Path) -> None:
    async with (
        fleet_of_one(tmp_path) as fleet,
        serving(fleet) as at,
        ollama_client(at.url) as client,
    ):
        first = await client.generate("tiny", "one two", options={"num_predict": 2})
        second = await client.generate("tiny", "three", context=first.context)

    assert first.response == "one two"
    assert second.done
    assert second.context is not None


@pytest.mark.parametrize("stream", [True, False])
async def test_ollama_gets_a_clear_error_for_an_unknown_model(tmp_path: Path, stream: bool) -> None:
    async with (
        serving(FleetOfOne(served_model(), tmp_path)) as at,
        ollama_client(at.url) as client,
    ):
        with pytest.raises(ollama.ResponseError) as refused:
            await _chatted(client, stream=stream)

    assert (refused.value.status_code, refused.value.error) == (404, "model 'nope' not found")


async def _chatted(client: ollama.AsyncClient, *, stream: bool) -> None:
    if not stream:
        await client.chat("nope", messages=HELLO)
        return
    async for _ in await client.chat("nope", messages=HELLO, stream=True):
        pass


async def test_ollama_hears_of_a_stream_that_is_lost(tmp_path: Path) -> None:
    faults = {"die_at_byte": 1500}
    async with (
        fleet_of_one(tmp_path, faults=faults) as fleet,
        serving(fleet) as at,
        ollama_client(at.url) as client,
    ):
        heard = await client.chat("tiny", messages=HELLO, stream=True)
        with pytest.raises(ollama.ResponseError, match="unexpectedly stopped"):
            [part async for part in heard]


async def test_openai_lists_and_chats_whole_and_streamed(tmp_path: Path) -> None:
    async with (
        fleet_of_one(tmp_path) as fleet,
        serving(fleet) as at,
        openai_client(at.url) as client,
    ):
        models = [model.id async for model in client.models.list()]
        whole = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "one two three"}], max_tokens=3
        )
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "one two three"}],
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]

    assert models == ["tiny:latest"]
    assert whole.choices[0].message.content == "one two three"
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 3
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "one two three"
    assert chunks[-1].usage is not None


async def test_openai_gets_its_own_error_classes(tmp_path: Path) -> None:
    async with (
        serving(FleetOfOne(served_model(), tmp_path)) as at,
        openai_client(at.url) as client,
    ):
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.completions.create(model="nope", prompt="x")
        with pytest.raises(openai.BadRequestError) as nine:
            await client.completions.create(model="tiny", prompt="x", n=9)

    assert unknown.value.code == "model_not_found"
    assert "n must be 1 to 8" in nine.value.message


async def test_openai_hears_of_a_stream_that_is_lost(tmp_path: Path) -> None:
    faults = {"die_at_byte": 1500}
    async with (
        fleet_of_one(tmp_path, faults=faults) as fleet,
        serving(fleet) as at,
        openai_client(at.url) as client,
    ):
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a b"}], stream=True
        )
        with pytest.raises(openai.APIError, match="unexpectedly stopped"):
            [chunk async for chunk in stream]


async def test_ollama_embeds(tmp_path: Path) -> None:
    model = served_model(model_id="embedder", info=model_info(pooling="mean"))
    argv = (*FAKE, "--embedding")
    async with (
        fleet_of_one(tmp_path, model=model, argv=argv) as fleet,
        serving(fleet) as at,
        ollama_client(at.url) as client,
    ):
        new = await client.embed("embedder", ["a", "b c"])
        old = await client.embeddings("embedder", "a")

    assert [list(vector) for vector in new.embeddings] == [pytest.approx([0.6, 0.8])] * 2
    assert list(old.embedding) == [0.6, 0.8]


async def test_ollama_is_told_what_is_not_done_here(tmp_path: Path) -> None:
    async with (
        serving(FleetOfOne(served_model(), tmp_path)) as at,
        ollama_client(at.url) as client,
    ):
        with pytest.raises(ollama.ResponseError, match="is not pushed"):
            await client.push("tiny")
        with pytest.raises(ollama.ResponseError, match="is not pushed"):
            [line async for line in await client.push("tiny", stream=True)]
        with pytest.raises(ollama.ResponseError, match="there is no route") as unknown:
            await client.systemone("tiny", "a", {})

    assert unknown.value.status_code == 404


def test_every_call_of_ollamas_client_is_made_here() -> None:
    here = Path(__file__).parent
    files = (here / "test_clients.py", here / "ollama" / "test_store_clients.py")
    tests = "".join(file.read_text() for file in files)

    calls = {name for name in vars(ollama.AsyncClient) if not name.startswith("_")}

    assert calls >= {"chat", "generate", "pull"}
    assert {name for name in calls if f"client.{name}(" not in tests} == CLOUD
