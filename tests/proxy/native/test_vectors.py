"""Scores and transcripts: what is refused before any load."""

from pathlib import Path

import pytest

from tests.fakes.fleet_of_one import FleetOfOne, served_model
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
