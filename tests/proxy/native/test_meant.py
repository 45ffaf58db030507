"""Which model is meant where none is named."""

from collections.abc import Sequence
from pathlib import Path

from planners.model import ServedModel
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import serving


class OneOfTwo(FleetOfOne):
    """Offers a second model, which is never loaded."""

    def models(self) -> Sequence[ServedModel]:
        return (self.model, served_model(model_id="other"))


async def test_the_only_model_need_not_be_named(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post("/tokenize", json={"content": "a b"})

    assert reply.status_code == 200
    assert len(reply.json()["tokens"]) > 0


async def test_of_several_models_the_only_one_loaded_is_meant(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").touch()
    fleet = OneOfTwo(served_model(path=str(tmp_path / "tiny.gguf")), tmp_path)
    async with serving(fleet) as at:
        before = await at.client.post("/tokenize", json={"content": "a"})
        named = await at.client.post("/tokenize?model=tiny", json={"content": "a"})
        after = await at.client.post("/tokenize", json={"content": "a"})
        await fleet.stop()

    assert before.status_code == 400
    assert "2 models are offered" in before.json()["error"]["message"]
    assert (named.status_code, after.status_code) == (200, 200)


async def test_a_query_of_many_fields_is_refused(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.get("/props?" + "&".join(f"a{i}=1" for i in range(100)))

    assert reply.status_code == 400
    assert fleet.launches == 0
