from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fleet_of_one import FAKE, FleetOfOne, fleet_of_one, model_info, served_model
from tests.fakes.serving import serving


async def test_texts_become_vectors_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "e.gguf").touch()
    path = str(tmp_path / "e.gguf")
    model = served_model(model_id="embedder", path=path, info=model_info(pooling="mean"))
    argv = (*FAKE, "--embedding")
    async with fleet_of_one(tmp_path, model=model, argv=argv) as fleet, serving(fleet) as at:
        new = await at.client.post("/api/embed", json={"model": "embedder", "input": ["a b", "c"]})
        old = await at.client.post("/api/embeddings", json={"model": "embedder", "prompt": "a"})

    told = new.json()
    assert told["embeddings"] == [pytest.approx([0.6, 0.8])] * 2
    assert (told["model"], told["prompt_eval_count"]) == ("embedder", 3)
    assert told["load_duration"] > 0
    assert old.json() == {"embedding": [0.6, 0.8]}


@pytest.mark.parametrize(
    ("route", "told", "reply"),
    [
        ("/api/embed", {"input": []}, {"model": "tiny", "embeddings": []}),
        ("/api/embed", {"input": ""}, {"model": "tiny", "embeddings": []}),
        ("/api/embed", {}, {"model": "tiny", "embeddings": []}),
        ("/api/embeddings", {"prompt": ""}, {"embedding": []}),
    ],
)
async def test_nothing_to_embed_loads(
    tmp_path: Path, route: str, told: dict[str, Any], reply: dict[str, Any]
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        answer = await at.client.post(route, json={"model": "tiny", **told})

    assert answer.json() == reply
    assert fleet.launches == 1


@pytest.mark.parametrize(
    ("route", "told", "status", "says"),
    [
        ("/api/embed", {"model": "tiny", "input": 5}, 400, "invalid input type"),
        ("/api/embed", {"model": "tiny", "input": [5]}, 400, "invalid input type"),
        ("/api/embed", {"model": "tiny", "input": "x"}, 400, "does not support embeddings"),
        ("/api/embed", {"model": "x"}, 404, 'model "x" not found, try pulling it first'),
        ("/api/embed", {}, 404, "model '' not found"),
        ("/api/embeddings", {}, 400, "model is required"),
        ("/api/embeddings", {"model": "x"}, 404, 'model "x" not found, try pulling it first'),
    ],
)
async def test_what_cannot_be_embedded_is_refused(
    tmp_path: Path, route: str, told: dict[str, Any], status: int, says: str
) -> None:
    fleet = FleetOfOne(served_model(info=model_info(pooling="rank")), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post(route, json=told)

    assert reply.status_code == status
    assert says in reply.json()["error"]
