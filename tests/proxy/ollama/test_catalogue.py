import re
from datetime import datetime
from pathlib import Path

import pytest

from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import serving


async def test_tags_tell_what_clients_read(tmp_path: Path) -> None:
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        (model,) = (await at.client.get("/api/tags")).json()["models"]

    assert (model["name"], model["model"]) == ("tiny:latest", "tiny:latest")
    assert re.fullmatch("[0-9a-f]{64}", model["digest"])
    assert model["size"] == 98_362_432
    assert model["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "134.52M",
        "quantization_level": "Q4_1",
        "context_length": 8192,
        "embedding_length": 576,
    }
    assert model["capabilities"] == ["completion"]
    assert datetime.fromisoformat(model["modified_at"]).timestamp() == 1_700_000_000


@pytest.mark.parametrize(
    ("keep_alive", "years"), [(-1, range(2300, 2400)), (60, range(2020, 2300))]
)
async def test_ps_tells_until_when_a_model_stays(
    tmp_path: Path, keep_alive: int, years: range
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        await at.client.post("/api/generate", json={"model": "tiny", "keep_alive": keep_alive})
        (model,) = (await at.client.get("/api/ps")).json()["models"]

    assert datetime.fromisoformat(model["expires_at"]).year in years
    assert model["context_length"] == 4096
    assert model["size_vram"] == 0


@pytest.mark.parametrize("key", ["model", "name"])
async def test_show_tells_all_of_a_model(tmp_path: Path, key: str) -> None:
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        shown = (await at.client.post("/api/show", json={key: "tiny"})).json()

    info = shown["model_info"]
    assert info["general.architecture"] == "llama"
    assert info["llama.context_length"] == 8192
    assert info["general.parameter_count"] == 134_515_008
    assert "general.name" not in info
    assert shown["capabilities"] == ["completion"]
    assert shown["template"] == "{{ messages }}"
    assert "FROM " in shown["modelfile"]


@pytest.mark.parametrize(
    ("told", "status", "says"),
    [
        ({}, 400, "model is required"),
        ({"model": "nope"}, 404, "model 'nope:latest' not found"),
        ({"model": "tin"}, 404, "model 'tin:latest' not found; did you mean 'tiny'?"),
        ({"model": "::"}, 400, "invalid model name"),
    ],
)
async def test_show_refuses_in_ollamas_words(
    tmp_path: Path, told: dict[str, str], status: int, says: str
) -> None:
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        reply = await at.client.post("/api/show", json=told)

    assert (reply.status_code, reply.json()) == (status, {"error": says})
