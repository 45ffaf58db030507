"""POST /api/push to a registry of the loopback, with and without its faults."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.gguf_writer import gguf
from tests.fakes.kept_store import ShelfFleet
from tests.fakes.ollama_store import as_it_lies
from tests.fakes.registry import FakeRegistry, Faults, registry
from tests.fakes.serving import serving
from tests.proxy.ollama.test_pulling import IMPATIENT

LARGE = gguf() + random.Random(5).randbytes(17 << 20)  # in two pieces
DIGEST = f"sha256:{hashlib.sha256(LARGE).hexdigest()}"


async def push(client: httpx.AsyncClient, name: str) -> list[dict[str, Any]]:
    reply = await client.post("/api/push", json={"model": name, "insecure": True})
    return [json.loads(line) for line in reply.text.splitlines()]


async def pulled(client: httpx.AsyncClient, at: FakeRegistry) -> str:
    """A model that is in the store, by the name of a registry that has none of it any more."""
    at.add(weights=LARGE)
    told = {"model": at.name(), "insecure": True, "stream": False}
    assert (await client.post("/api/pull", json=told)).json() == {"status": "success"}
    return at.name()


@pytest.mark.parametrize("faults", [Faults(), Faults(needs_token=True)], ids=["open", "token"])
async def test_a_registry_has_the_pushed_model_to_the_byte(tmp_path: Path, faults: Faults) -> None:
    fleet = ShelfFleet(tmp_path)
    async with registry(faults) as at, serving(fleet, store=fleet.store) as door:
        name = await pulled(door.client, at)
        manifests, blobs = dict(at.manifests), dict(at.blobs)
        at.manifests.clear()
        del at.blobs[DIGEST]
        before = as_it_lies(fleet.own)
        lines = await push(door.client, name)

    drawn = [line for line in lines if line.get("digest") == DIGEST]
    assert lines[0] == {"status": "retrieving manifest"}
    assert lines[-2:] == [{"status": "pushing manifest"}, {"status": "success"}]
    assert {line["status"] for line in drawn} == {f"pushing {DIGEST[7:19]}"}
    assert [line.get("completed", 0) for line in drawn] == [0, 16 << 20, len(LARGE)]
    assert (at.manifests, at.blobs) == (manifests, blobs)
    assert len(at.uploads) == 1
    assert as_it_lies(fleet.own) == before


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"status": 403}, "HTTP 403: no; it wants an account of its own"),
        ({"moves": True}, "us with a blob to another host"),
    ],
    ids=["refused", "led elsewhere"],
)
async def test_a_push_that_fails_says_why_and_leaves_no_model_there(
    tmp_path: Path, faults: dict[str, Any], says: str
) -> None:
    fleet = ShelfFleet(tmp_path, pace=IMPATIENT)
    async with registry() as at, serving(fleet, store=fleet.store) as door:
        name = await pulled(door.client, at)
        at.manifests.clear()
        at.blobs.clear()
        vars(at.faults).update(faults)
        lines = await push(door.client, name)

    assert says in lines[-1]["error"]
    assert (at.manifests, at.blobs) == ({}, {})


async def test_a_push_whose_blob_was_lost_says_which_and_what_to_do(tmp_path: Path) -> None:
    fleet = ShelfFleet(tmp_path)
    async with registry() as at, serving(fleet, store=fleet.store) as door:
        name = await pulled(door.client, at)
        at.manifests.clear()
        at.blobs.clear()
        lost = fleet.own / "blobs" / DIGEST.replace(":", "-")
        lost.unlink()
        lines = await push(door.client, name)

    assert f"{lost} cannot be read: No such file" in lines[-1]["error"]
    assert "pull its model again" in lines[-1]["error"]
    assert at.manifests == {}


async def test_without_an_account_nothing_is_pushed_where_one_is_needed(tmp_path: Path) -> None:
    fleet = ShelfFleet(tmp_path)
    async with registry() as at, serving(fleet, store=fleet.store) as door:
        name = await pulled(door.client, at)
        told = {"source": name, "destination": "mine"}
        await door.client.post("/api/copy", json=told)
        lines = await push(door.client, "mine")

    assert lines[0] == {"status": "retrieving manifest"}
    assert "no account of ollama.com" in lines[-1]["error"]
    assert "copy it to the name of a registry of your own" in lines[-1]["error"]
