"""Scores and transcripts: what is refused before any load."""

from pathlib import Path

import pytest

from tests.fakes.fleet_of_one import FAKE, FleetOfOne, fleet_of_one, model_info, served_model
from tests.fakes.serving import serving

RANK = {"query": "a", "documents": ["b"]}
FORM = {"file": ("a.wav", b"RIFF" + bytes(1000), "audio/wav")}


@pytest.mark.parametrize("route", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
async def test_a_text_model_ranks_nothing(tmp_path: Path, route: str) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post(route, json={"model": "tiny", **RANK})

    assert reply.status_code == 400
    assert '"tiny" does not support reranking' in reply.json()["error"]["message"]
    assert fleet.launches == 0


async def test_a_text_model_hears_nothing(tmp_path: Path) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post("/v1/audio/transcriptions", data={"model": "tiny"}, files=FORM)
        unknown = await at.client.post("/v1/audio/transcriptions", data={"model": "x"}, files=FORM)

    assert reply.status_code == 400
    assert '"tiny" does not support audio' in reply.json()["error"]["message"]
    assert unknown.status_code == 404
    assert fleet.launches == 0


@pytest.mark.parametrize(
    ("route", "pooling", "told", "says"),
    [
        ("/embedding", "mean", {"content": "one two three four"}, "the prompt of 4 tokens"),
        ("/embeddings", "mean", {"input": "one two three four"}, "the prompt of 4 tokens"),
        ("/embedding", "mean", {"content": [1, 2, 3, 4]}, "the prompt of 4 tokens"),
        ("/embedding", "mean", {"content": ["a", "one two three four"]}, "prompt 2 of 2"),
        ("/rerank", "rank", {"query": "one two", "documents": ["a", "b c"]}, "prompt 2 of 2"),
        ("/v1/rerank", "rank", {"query": "one two", "texts": ["b c"]}, "the prompt of 4 tokens"),
    ],
)
async def test_what_is_over_its_own_num_ctx_is_refused_with_the_numbers(
    tmp_path: Path, route: str, pooling: str, told: dict[str, object], says: str
) -> None:
    file = tmp_path / "tiny.gguf"
    file.touch()
    model = served_model(path=str(file), info=model_info(pooling=pooling))
    async with fleet_of_one(tmp_path, model=model) as fleet, serving(fleet) as at:
        reply = await at.client.post(route, json={"model": "tiny", "num_ctx": 3, **told})

    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
    assert says in error["message"]
    assert "context of 3 tokens" in error["message"]


@pytest.mark.parametrize(
    ("route", "pooling", "told"),
    [
        ("/embedding", "mean", {"content": ["a"] * 8193}),
        ("/v1/embeddings", "mean", {"input": ["a"] * 8193}),
        ("/v1/embeddings", "mean", {"input": [[1]] * 8193}),
        ("/api/embed", "mean", {"input": ["a"] * 8193}),
        ("/rerank", "rank", {"query": "a", "documents": ["b"] * 8193}),
        ("/rerank", "rank", {"query": "a" * 2000, "texts": ["b"] * 8192}),
    ],
    ids=["embedding", "openai", "token ids", "ollama", "documents", "a long query for each"],
)
async def test_more_than_a_child_does_in_reasonable_time_is_refused_before_any_load(
    tmp_path: Path, route: str, pooling: str, told: dict[str, object]
) -> None:
    fleet = FleetOfOne(served_model(info=model_info(pooling=pooling)), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post(route, json={"model": "tiny", **told})

    assert reply.status_code == 400
    assert "send fewer" in reply.text
    assert fleet.launches == 0


async def test_a_few_hundred_texts_with_a_num_ctx_are_embedded(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.touch()
    model = served_model(path=str(file), info=model_info(pooling="mean"))
    argv = (*FAKE, "--embedding")
    async with fleet_of_one(tmp_path, model=model, argv=argv) as fleet, serving(fleet) as at:
        told = {"model": "tiny", "num_ctx": 4, "input": ["a b"] * 300}
        reply = await at.client.post("/v1/embeddings", json=told)

    assert reply.status_code == 200, reply.text
    assert len(reply.json()["data"]) == 300
