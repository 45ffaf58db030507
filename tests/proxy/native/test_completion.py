"""/completion before an engine with faults, and what is refused before any load."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fleet_of_one import fleet_of_one, model_info, served_model
from tests.fakes.serving import serving


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"model": "x"}, "model 'x' not found"),
        ({"prompt": "a", "n_cmpl": 2}, "n_cmpl must be 1"),
        ({"prompt": ["a"] * 257}, "at most 256 prompts"),
        ({"stream": "yes"}, "of the wrong shape"),
    ],
)
async def test_a_wrong_completion_is_refused_without_a_load(
    tmp_path: Path, told: dict[str, Any], message: str
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post("/completion", json=told)

    assert 400 <= reply.status_code < 500
    assert message in reply.json()["error"]["message"]
    assert fleet.launches == 0


async def test_an_embedding_model_completes_nothing(tmp_path: Path) -> None:
    model = served_model(info=model_info(pooling="mean"))
    async with fleet_of_one(tmp_path, model=model) as fleet, serving(fleet) as at:
        reply = await at.client.post("/completion", json={"prompt": "a"})

    assert reply.status_code == 400
    assert "does not support completions" in reply.json()["error"]["message"]


async def test_a_slot_that_the_caller_names_is_overridden(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        told = {"prompt": "a", "n_predict": 1, "id_slot": 7}
        reply = await at.client.post("/completion", json=told)

    assert reply.json()["id_slot"] == 0


@pytest.mark.parametrize(
    "fault", [{"die_at_byte": 600}, {"end_at_token": 3}, {"error_at_token": 3}]
)
async def test_a_stream_that_does_not_come_to_its_end_says_so(
    tmp_path: Path, fault: dict[str, Any]
) -> None:
    told = {"prompt": "a", "n_predict": 50, "stream": True}
    async with fleet_of_one(tmp_path, faults=fault) as fleet, serving(fleet) as at:
        reply = await at.client.post("/completion", json=told)

    *events, last, rest = reply.text.split("\n\n")
    assert events
    assert last.startswith('data: {"error":')
    assert rest == ""


@pytest.mark.parametrize("fault", [{"end_at_token": 3}, {"error_at_token": 3}])
async def test_half_a_completion_is_no_reply(tmp_path: Path, fault: dict[str, Any]) -> None:
    told = {"prompt": "a", "n_predict": 50}
    async with fleet_of_one(tmp_path, faults=fault) as fleet, serving(fleet) as at:
        reply = await at.client.post("/completion", json=told)

    assert reply.status_code in (500, 502)
    assert "message" in reply.json()["error"]
