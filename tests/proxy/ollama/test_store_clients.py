"""The official Python client, unchanged, on a real store: create, copy, pull, delete."""

from pathlib import Path

import ollama
import pytest

from tests.fakes.gguf_writer import gguf, put
from tests.fakes.kept_store import ShelfFleet
from tests.fakes.registry import registry
from tests.fakes.serving import serving


async def test_ollamas_client_makes_copies_and_deletes_models(tmp_path: Path) -> None:
    fleet = ShelfFleet(tmp_path)
    file = put(tmp_path, "upload.gguf", gguf(pairs={"general.name": "Uploaded"}))
    async with serving(fleet, store=fleet.store) as at:
        client = ollama.AsyncClient(host=at.url, trust_env=False)
        digest = await client.create_blob(file)
        made = await client.create(
            "mine", files={"upload.gguf": digest}, system="Be brief.", parameters={"seed": 1}
        )
        parts = [part async for part in await client.create("two", from_="mine", stream=True)]
        copied = await client.copy("two", "three")
        shown = await client.show("three")
        names = [model.model for model in (await client.list()).models]
        deleted = await client.delete("two")
        with pytest.raises(ollama.ResponseError, match="not found") as unknown:
            await client.delete("two")
        await client.close()  # type: ignore[no-untyped-call]  # the package leaves it untyped

    assert made.status == "success"
    assert parts[-1].status == "success"
    assert (copied.status, deleted.status) == ("success", "success")
    assert "Be brief." in (shown.modelfile or "")
    assert set(names) == {"mine:latest", "two:latest", "three:latest"}
    assert unknown.value.status_code == 404


async def test_ollamas_client_pulls_with_progress_and_hears_of_failures(tmp_path: Path) -> None:
    fleet = ShelfFleet(tmp_path)
    async with registry() as source, serving(fleet, store=fleet.store) as at:
        source.add()
        client = ollama.AsyncClient(host=at.url, trust_env=False)
        lines = [
            line async for line in await client.pull(source.name(), insecure=True, stream=True)
        ]
        whole = await client.pull(source.name(), insecure=True)
        with pytest.raises(ollama.ResponseError, match="file does not exist"):
            await client.pull(source.name("none:1"), insecure=True)
        failing = await client.pull(source.name("none:1"), insecure=True, stream=True)
        with pytest.raises(ollama.ResponseError, match="file does not exist"):
            [line async for line in failing]
        await client.close()  # type: ignore[no-untyped-call]  # the package leaves it untyped

    assert [line.status for line in lines][-1] == "success"
    assert any(line.completed and line.completed == line.total for line in lines)
    assert whole.status == "success"
