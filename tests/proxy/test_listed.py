from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.model import ServedModel
from proxy.listed import Listed
from tests.fakes.fleet_of_one import served_model
from tests.fakes.gguf_writer import put
from tests.fakes.kept_store import ShelfFleet
from tests.fakes.serving import serving

ONE, TWO = served_model(model_id="one"), served_model(model_id="two")


class Names:
    """Renders models as their names, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, models: Sequence[ServedModel]) -> bytes:
        self.times += 1
        return " ".join(model.model_id for model in models).encode()


def test_models_that_are_the_same_are_rendered_once() -> None:
    listed, names = Listed(), Names()

    told = [listed.told(names, (ONE, TWO)) for _ in range(3)]

    assert (told, names.times) == ([b"one two"] * 3, 1)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ((ONE,), b"one"),
        ((ONE, TWO, ONE), b"one two one"),
        ((TWO, ONE), b"two one"),
        ((ONE, replace(TWO)), b"one two"),
    ],
    ids=["fewer", "more", "in another order", "read anew"],
)
def test_models_that_changed_are_rendered_anew(now: Sequence[ServedModel], told: bytes) -> None:
    listed, names = Listed(), Names()
    listed.told(names, (ONE, TWO))

    assert listed.told(names, now) == told
    assert names.times == 2


def test_each_kind_of_list_is_kept_for_itself() -> None:
    listed, names, others = Listed(), Names(), Names()

    for _ in range(2):
        listed.told(names, (ONE,))
        listed.told(others, (TWO,))

    assert (names.times, others.times) == (1, 1)


async def test_no_file_is_looked_at_to_list_or_show_models(tmp_path: Path) -> None:
    fleet = ShelfFleet(tmp_path)
    files = [put(fleet.dir, f"{name}.gguf") for name in ("a", "b")]
    await fleet.catalogue.scan()
    asked: list[tuple[str, str, object]] = [
        ("GET", "/api/tags", None),
        ("GET", "/v1/models", None),
        ("POST", "/api/show", {"model": "a", "verbose": True}),
    ]
    async with serving(fleet, store=fleet.store) as at:
        told = [await at.client.request(how, path, json=body) for how, path, body in asked]
        for file in files:
            file.unlink()
        fleet.dir.rmdir()
        again = [await at.client.request(how, path, json=body) for how, path, body in asked]

    assert [reply.status_code for reply in told] == [200] * 3
    assert [reply.content for reply in again] == [reply.content for reply in told]
    assert len(told[0].json()["models"]) == len(told[1].json()["data"]) == 2


async def test_where_there_is_no_model_the_lists_are_empty_and_not_null(tmp_path: Path) -> None:
    fleet = ShelfFleet(tmp_path)
    async with serving(fleet, store=fleet.store) as at:
        tags = (await at.client.get("/api/tags")).json()
        models = (await at.client.get("/v1/models")).json()

    assert (tags, models) == ({"models": []}, {"object": "list", "data": []})
