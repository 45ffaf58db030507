"""Vectors from a model made for embeddings: a tiny encoder, loaded by the real engine."""

import math
from pathlib import Path

import ollama
import openai

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
