"""Vectors from a model made for embeddings: a tiny encoder, loaded by the real engine."""

import math
from functools import partial
from pathlib import Path

import httpx
import ollama
import openai
import pytest
from msgspec.structs import replace

from scripts.started_daemon import StartedDaemon
from tests.fakes.tiny_models import tiny_models, write
from tests.integration.conftest import Start


def test_a_model_with_a_pooling_type_gives_vectors_to_both_clients(
    start: Start, tmp_path: Path
) -> None:
    encoder = next(model for model in tiny_models() if model.architecture == "bert")
    write(encoder, tmp_path)
    daemon = start(model_dirs=[tmp_path])

    with openai.OpenAI(base_url=f"{daemon.base}/v1", api_key="none", max_retries=0) as client:
        name = client.models.list().data[0].id
        told = client.embeddings.create(model=name, input=["one", "two"])
    with ollama.Client(host=daemon.base) as other:
        vectors = other.embed(name, ["one", "two"]).embeddings

    assert [len(row.embedding) for row in told.data] == [encoder.n_embd] * 2
    assert [len(vector) for vector in vectors] == [encoder.n_embd] * 2
    assert math.isclose(sum(x * x for x in vectors[0]), 1, rel_tol=1e-3)
    (instance,) = daemon.status()["instances"]
    assert instance["state"] == "ready"


def test_a_text_model_gives_vectors_beside_its_chats(start: Start) -> None:
    daemon = start(config="[models]\ncontext = 512\nparallel = 2\n")
    ask = partial(httpx.post, timeout=120, trust_env=False)

    with openai.OpenAI(base_url=f"{daemon.base}/v1", api_key="none", max_retries=0) as client:
        name = client.models.list().data[0].id
        chat = client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=2,
            extra_body={"ignore_eos": True},
        )
        told = client.embeddings.create(model=name, input=["The cat", "The cat", "Not at all"])
    (vector,) = ask(f"{daemon.base}/embedding", json={"model": name, "content": "The cat"}).json()
    old = ask(f"{daemon.base}/api/embed", json={"model": name, "input": "The cat"}).json()
    launched = launched_names(daemon)

    assert chat.choices[0].finish_reason == "length"
    one, same, other = (row.embedding for row in told.data)
    assert one == same != other
    assert vector["embedding"][0] == pytest.approx(one, abs=1e-4)
    assert old["embeddings"][0] == pytest.approx(one, abs=1e-4)
    assert launched == [name.removesuffix(":latest"), f"{name.removesuffix(':latest')}+embeddings"]


def test_a_reranking_model_scores_documents(start: Start, tmp_path: Path) -> None:
    encoder = next(model for model in tiny_models() if model.architecture == "bert")
    numbers = {**encoder.numbers, "pooling_type": 4}
    write(replace(encoder, name="ranker", numbers=numbers), tmp_path)
    daemon = start(model_dirs=[tmp_path])

    with httpx.Client(base_url=daemon.base, timeout=120, trust_env=False) as client:
        told = {"model": "ranker", "query": "one", "documents": ["two", "three", "four"]}
        ranked = client.post("/v1/rerank", json={**told, "top_n": 2}).json()
        texts = client.post("/rerank", json={"query": "one", "texts": ["two"]}).json()
        vectors = client.post("/v1/embeddings", json={"model": "ranker", "input": "one"})
        listed = client.get("/v1/models").json()["data"]
        shown = client.post("/api/show", json={"model": "ranker"}).json()

    assert [set(row) for row in ranked["results"]] == [{"index", "relevance_score"}] * 2
    assert [set(row) for row in texts] == [{"index", "score"}]
    assert vectors.status_code == 400
    assert "it is a reranking model" in vectors.json()["error"]["message"]
    assert listed[0]["capabilities"] == shown["capabilities"] == ["rerank"]


def launched_names(daemon: StartedDaemon) -> list[str]:
    """The models of all instances."""
    return sorted(instance["model"] for instance in daemon.status()["instances"])
