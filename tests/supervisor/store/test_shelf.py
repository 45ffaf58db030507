"""Stores of Ollama's among the folders of models: what the catalogue offers of them."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.model import BrokenKind, ModelId
from planners.recipe import Message
from planners.settings import ModelRule
from supervisor.models.catalogue import Catalogue
from tests.fakes.gguf_writer import gguf, put
from tests.fakes.machines import PLAIN
from tests.fakes.ollama_store import IMAGE, LIBRARY, OllamaStore, as_it_lies

PROJECTOR = gguf("clip", pairs={"general.type": "mmproj", "clip.has_vision_encoder": True})


@pytest.fixture
def store(tmp_path: Path) -> OllamaStore:
    return OllamaStore(tmp_path / "ollama")


async def scanned(store: OllamaStore, *dirs: Path, rules: tuple[ModelRule, ...] = ()) -> Catalogue:
    folders = (str(store.folder), *map(str, dirs))
    catalogue = Catalogue(dirs=folders, rules=rules, defaults=PLAIN)
    async with asyncio.timeout(10):
        await catalogue.scan()
    return catalogue


def why_broken(catalogue: Catalogue, name: str) -> str:
    (reason,) = (file.reason for file in catalogue.broken if name in file.names)
    return reason


async def test_a_stores_models_are_offered_under_ollamas_names(store: OllamaStore) -> None:
    store.add(f"{LIBRARY}/tiny/latest")
    store.add(f"{LIBRARY}/tiny/8b")
    store.add("registry.ollama.ai/me/own/latest")
    store.add("hf.co/org/Repo-GGUF/Q4_0")

    catalogue = await scanned(store)

    assert set(catalogue.models) == {
        "tiny:latest", "tiny:8b", "me/own:latest", "hf.co/org/Repo-GGUF:Q4_0",
    }  # fmt: skip
    assert catalogue.broken == ()


@pytest.mark.parametrize(
    "name", ["tiny", "TINY", "tiny:latest", "library/tiny", "registry.ollama.ai/library/tiny"]
)
async def test_a_stored_model_is_found_by_every_way_of_writing_its_name(
    store: OllamaStore, name: str
) -> None:
    store.add()

    found = (await scanned(store)).resolve(name)

    assert found is not None
    assert found.model_id == "tiny:latest"


async def test_what_goes_with_a_model_is_read_of_its_layers(store: OllamaStore) -> None:
    messages = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    manifest = store.add(
        layers=[
            ("template", b"{{ .Prompt }}"), ("system", "Sei knäpp.".encode()),
            ("messages", messages.encode()), ("license", b"one"), ("license", b"two"),
        ],
        params={"stop": ["<end>"], "temperature": 0.5, "num_ctx": 64, "use_mmap": None},
    )  # fmt: skip

    found = (await scanned(store)).models[ModelId("tiny:latest")]

    assert found.recipe.template == "{{ .Prompt }}"
    assert found.recipe.system == "Sei knäpp."
    assert found.recipe.messages == (Message("user", "a"), Message("assistant", "b"))
    assert found.recipe.licenses == ("one", "two")
    assert dict(found.recipe.parameters) == {
        "stop": ("<end>",), "temperature": 0.5, "num_ctx": 64,
    }  # fmt: skip
    assert found.settings.context == 64
    sizes = [layer["size"] for layer in json.loads(manifest.read_text())["layers"]]
    assert found.size_bytes > sum(sizes)


async def test_a_models_projector_and_adapters_are_launched_with_it(store: OllamaStore) -> None:
    store.add(layers=[("projector", PROJECTOR), ("adapter", b"an adapter")])

    found = (await scanned(store)).models[ModelId("tiny:latest")]

    assert found.settings.mmproj_path is not None
    assert Path(found.settings.mmproj_path).read_bytes() == PROJECTOR
    assert found.projector is not None
    assert [Path(path).read_bytes() for path in found.settings.lora_paths] == [b"an adapter"]


async def test_a_rule_of_a_stored_models_name_goes_before_what_its_store_says(
    store: OllamaStore,
) -> None:
    store.add(params={"num_ctx": 64})
    rule = ModelRule(ModelId("tiny"), None, ("small",), replace(PLAIN, context=32, pin=True))

    catalogue = await scanned(store, rules=(rule,))

    found = catalogue.resolve("small")
    assert found is not None
    assert (found.settings.context, found.settings.pin) == (32, True)
    assert catalogue.broken == ()


async def test_a_changed_manifest_and_a_removed_one_are_noticed(store: OllamaStore) -> None:
    manifest = store.add(layers=[("system", b"one")])
    catalogue = await scanned(store)
    store.add(layers=[("system", b"two, which is longer")])
    assert await catalogue.scan()
    found = catalogue.resolve("tiny")
    manifest.unlink()

    assert await catalogue.scan()

    assert found is not None
    assert found.recipe.system == "two, which is longer"
    assert catalogue.resolve("tiny") is None


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([("tensor", b"x"), ("model", gguf())], "safetensors"),
        ([("system", b"x")], "no weights here"),
        ([("model", gguf()), ("model", gguf(block=1))], "2 model files"),
        ([("model", gguf()), ("projector", gguf())], "Ollama's own patches"),
        ([("model", gguf()), ("params", b"[1]")], "its params"),
        ([("model", b"no GGUF at all")], "plain text, not a model"),
        ([("model", PROJECTOR)], "a projector"),
    ],
)
async def test_what_llama_server_cannot_serve_of_a_store_is_told_with_the_reason(
    store: OllamaStore, layers: list[tuple[str, bytes]], says: str
) -> None:
    store.add_manifest(f"{LIBRARY}/odd/1", [store.layer(kind, data) for kind, data in layers])

    catalogue = await scanned(store)

    assert not catalogue.models
    assert says in why_broken(catalogue, "odd:1")


@pytest.mark.parametrize("lost", ["missing", "cut"])
async def test_a_model_without_all_of_its_blobs_is_incomplete(
    store: OllamaStore, lost: str
) -> None:
    store.add()
    (blob,) = (p for p in (store.folder / "blobs").iterdir() if p.read_bytes() == gguf())
    if lost == "missing":
        blob.unlink()
    else:
        blob.write_bytes(gguf()[:-1])

    catalogue = await scanned(store)

    (broken,) = catalogue.broken
    assert broken.kind is BrokenKind.INCOMPLETE
    assert blob.name.replace("-", ":") in broken.reason


async def test_a_digest_that_leads_out_of_the_store_is_refused(store: OllamaStore) -> None:
    put(store.folder.parent, "secret", gguf())
    layer = {"mediaType": f"{IMAGE}model", "digest": "sha256:/../../secret", "size": len(gguf())}
    store.add_manifest(f"{LIBRARY}/tiny/latest", [layer])

    catalogue = await scanned(store)

    assert "is no digest" in why_broken(catalogue, "tiny:latest")


async def test_what_else_lies_among_the_manifests_is_left_alone(store: OllamaStore) -> None:
    store.add()
    for path in (".DS_Store", f"{LIBRARY}/tiny/.hidden", f"{LIBRARY}/loose", f"{LIBRARY}/a b/1"):
        put(store.folder / "manifests", path, b"{}")

    catalogue = await scanned(store)

    assert (list(catalogue.models), catalogue.broken) == (["tiny:latest"], ())


async def test_folders_and_stores_are_offered_beside_each_other(
    store: OllamaStore, tmp_path: Path
) -> None:
    store.add()
    put(tmp_path / "plain", "other.gguf")

    catalogue = await scanned(store, tmp_path / "plain")

    assert set(catalogue.models) == {"tiny:latest", "other"}


async def test_a_blob_that_comes_or_goes_is_noticed_without_a_change_of_the_manifest(
    store: OllamaStore,
) -> None:
    store.add()
    (blob,) = (p for p in (store.folder / "blobs").iterdir() if p.read_bytes() == gguf())
    catalogue = await scanned(store)
    aside = blob.rename(store.folder / "aside")
    await catalogue.scan()
    gone = catalogue.resolve("tiny")
    aside.rename(blob)

    await catalogue.scan()

    assert gone is None
    assert catalogue.resolve("tiny") is not None


async def test_a_scan_that_finds_nothing_new_makes_nothing_anew(store: OllamaStore) -> None:
    store.add()
    catalogue = await scanned(store)
    before = catalogue.models

    assert not await catalogue.scan()

    assert catalogue.models is before


async def test_to_be_offered_changes_nothing_in_a_store(store: OllamaStore) -> None:
    store.add(layers=[("system", b"x")], params={"temperature": 1})
    before = as_it_lies(store.folder)

    await (await scanned(store)).scan()

    assert as_it_lies(store.folder) == before
