"""POST /api/create, on a real store: of other models, of uploaded files, with texts of its own."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from supervisor.store.manifest import digest_of
from supervisor.store.names import parse_name
from supervisor.store.recipes import Creation
from tests.fakes.gguf_writer import gguf, put, split_gguf
from tests.fakes.kept_store import ShelfFleet
from tests.fakes.ollama_store import OllamaStore, as_it_lies
from tests.fakes.serving import SETTINGS, serving

WEIGHTS = gguf(pairs={"general.name": "Uploaded"})
PROJECTOR = gguf("clip", pairs={"general.type": "mmproj", "clip.has_vision_encoder": True})
ADAPTER = gguf(pairs={"general.type": "adapter"})


@asynccontextmanager
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Of a store, and `models/tiny.gguf` beside it."""
    fleet = ShelfFleet(folder)
    put(fleet.dir, "tiny.gguf")
    await fleet.catalogue.scan()
    roomy = replace(SETTINGS, max_body_bytes=8 << 20)
    async with serving(fleet, store=fleet.store, settings=roomy) as at:
        yield at.client


async def upload(client: httpx.AsyncClient, data: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    reply = await client.post(f"/api/blobs/{digest}", content=data)
    assert reply.status_code in (200, 201)
    return digest


async def show(client: httpx.AsyncClient, name: str) -> Any:
    reply = await client.post("/api/show", json={"model": name})
    assert reply.status_code == 200, reply.text
    return reply.json()


def statuses(reply: httpx.Response) -> list[str]:
    return [json.loads(line)["status"] for line in reply.text.splitlines()]


async def test_a_model_is_made_of_another_with_texts_of_its_own(tmp_path: Path) -> None:
    asked = {
        "model": "new",
        "from": "tiny",
        "system": "Be brief.",
        "template": "{{ .Prompt }}",
        "license": ["one", "two"],
        "parameters": {"temperature": 0.25, "stop": ["<a>", "<b>"], "num_ctx": 64},
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    }
    async with client(tmp_path) as http:
        reply = await http.post("/api/create", json=asked)
        shown = await show(http, "new")

    assert reply.headers["content-type"] == "application/x-ndjson"
    assert statuses(reply)[-2:] == ["writing manifest", "success"]
    assert shown["system"] == "Be brief."
    assert shown["messages"] == asked["messages"]
    assert shown["license"] == "one\ntwo"
    assert [line.split(None, 1) for line in shown["parameters"].splitlines()] == [
        ["num_ctx", "64"], ["temperature", "0.25"], ["stop", '"<a>"'], ["stop", '"<b>"'],
    ]  # fmt: skip
    assert shown["template"] == "{{ .Prompt }}"


async def test_without_a_stream_the_last_line_is_the_whole_reply(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        asked = {"model": "new", "from": "tiny", "stream": False}
        reply = await http.post("/api/create", json=asked)

    assert reply.json() == {"status": "success"}
    assert reply.headers["content-type"].startswith("application/json")


async def test_what_a_request_does_not_say_is_the_bases(tmp_path: Path) -> None:
    base = {
        "model": "base", "from": "tiny", "system": "Be brief.", "license": "one",
        "parameters": {"temperature": 0.25, "top_k": 3},
        "messages": [{"role": "user", "content": "a"}],
    }  # fmt: skip
    new = {
        "model": "new", "from": "base", "license": "two",
        "parameters": {"temperature": 0.5}, "messages": [],
    }  # fmt: skip
    async with client(tmp_path) as http:
        for asked in (base, new):
            await http.post("/api/create", json=asked)
        shown = await show(http, "new")

    assert shown["system"] == "Be brief."
    assert shown["license"] == "one\ntwo"
    assert "messages" not in shown
    assert [line.split() for line in shown["parameters"].splitlines()] == [
        ["temperature", "0.5"], ["top_k", "3"],
    ]  # fmt: skip


async def test_a_model_is_made_of_uploaded_files(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        files = {"a.gguf": await upload(http, WEIGHTS), "p.gguf": await upload(http, PROJECTOR)}
        adapters = {"l.gguf": await upload(http, ADAPTER)}
        asked = {"model": "me/new:1", "files": files, "adapters": adapters}
        reply = await http.post("/api/create", json=asked)
        shown = await show(http, "me/new:1")

    assert statuses(reply)[0] == "parsing GGUF"
    assert statuses(reply)[-1] == "success"
    assert "vision" in shown["capabilities"]
    assert "ADAPTER " in shown["modelfile"]
    (manifest,) = (tmp_path / "store/manifests/registry.ollama.ai/me/new").iterdir()
    told = json.loads(manifest.read_text())
    kinds = [layer["mediaType"].rpartition(".")[2] for layer in told["layers"]]
    assert sorted(kinds) == ["adapter", "model", "projector"]
    config = json.loads(
        (tmp_path / "store/blobs" / told["config"]["digest"].replace(":", "-")).read_text()
    )
    assert (config["model_format"], config["model_family"]) == ("gguf", "llama")
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in told["layers"]]


async def test_a_model_of_an_ollama_store_is_a_base_too(tmp_path: Path) -> None:
    other = OllamaStore(tmp_path / "models")
    other.add("registry.ollama.ai/library/theirs/8b", layers=[("system", b"Theirs.")])
    async with client(tmp_path) as http:
        asked = {"model": "new", "from": "theirs:8b", "parameters": {"seed": 1}, "stream": False}
        reply = await http.post("/api/create", json=asked)
        shown = await show(http, "new")

    assert reply.json() == {"status": "success"}
    assert shown["system"] == "Theirs."


@pytest.mark.parametrize(
    ("told", "status", "says"),
    [
        ({"model": "new"}, 400, "neither 'from' or 'files' was specified"),
        ({"from": "tiny"}, 400, "model is required"),
        ({"model": "a b", "from": "tiny"}, 400, "invalid model name"),
        ({"model": "new", "from": "::"}, 400, "invalid model name"),
        ({"model": "new", "files": {"/etc/passwd": "sha256:" + "0" * 64}}, 400,
         "file path must be relative"),
        ({"model": "new", "files": {"../x": "sha256:" + "0" * 64}}, 400,
         "file path must be relative"),
        ({"model": "new", "files": {"x": "sha256:0"}}, 400, "invalid digest format"),
        ({"model": "new", "files": {"x": 7}}, 400, "invalid digest format"),
        ({"model": "new", "files": {"x": "sha256:" + "0" * 64}}, 400,
         f"blob sha256:{'0' * 64} is not in the store; upload it, or pull the model again"),
        ({"model": "new", "from": "tiny", "adapters": {
            "a": "sha256:" + "0" * 64, "b": "sha256:" + "1" * 64}}, 400,
         "only one adapter is currently supported"),
        ({"model": "new", "from": "tiny", "parameters": {"hotness": 1}}, 400,
         "unknown parameter 'hotness'"),
        ({"model": "new", "from": "tiny", "parameters": {"top_k": "many"}}, 400,
         'option "top_k" must be of type integer'),
        ({"model": "new", "from": "tiny", "parameters": {"stop": [7]}}, 400,
         'option "stop" must be of an array of strings'),
        ({"model": "new", "from": "tiny", "messages": [{"role": "god", "content": ""}]}, 400,
         "role must be one of system, user, assistant"),
        ({"model": "new", "from": "tiny", "system": 7}, 400,
         "json: cannot unmarshal number into Go struct field CreateRequest.system of type string"),
        ({"model": "new", "from": "tiny", "system": "x" * 1_000_000, "license": "x" * 100_000}, 400,
         "the model's texts are longer than 1048576 bytes together"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
async def test_a_creation_is_refused_in_ollamas_words(
    tmp_path: Path, told: dict[str, object], status: int, says: str, stream: bool
) -> None:
    async with client(tmp_path) as http:
        reply = await http.post("/api/create", json={**told, "stream": stream})

    assert (reply.status_code, reply.json()) == (status, {"error": says})
    assert not (tmp_path / "store/manifests/registry.ollama.ai").exists()


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("quantize", "q4_K_M", "llama-quantize"),
        ("quantization", "q4_K_M", "llama-quantize"),
        ("draft_files", {"d": "sha256:00"}, "draft of the [[model]]"),
        ("remote_host", "https://example.com", "models of other machines"),
        ("files", {"model.safetensors": "sha256:" + "0" * 64}, "convert_hf_to_gguf.py"),
    ],
)
async def test_what_is_not_offered_is_refused_with_what_to_do_instead(
    tmp_path: Path, field: str, value: object, instead: str
) -> None:
    async with client(tmp_path) as http:
        asked = {"model": "new", "from": "tiny", field: value}
        reply = await http.post("/api/create", json=asked)

    assert reply.status_code == 400
    assert instead in reply.json()["error"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([b"no GGUF"], "supplied file was not in GGUF format"),
        ([WEIGHTS, gguf(block=1)], "2 models are among the files, and one is needed"),
        ([PROJECTOR], "no models are among the files, and one is needed"),
        ([ADAPTER], "is an adapter: name it among the adapters"),
        ([split_gguf(2)[0]], "llama-gguf-split --merge"),
    ],
)
async def test_files_that_make_no_model_are_told_why(
    tmp_path: Path, files: list[bytes], says: str
) -> None:
    async with client(tmp_path) as http:
        told = {f"{n}.gguf": await upload(http, data) for n, data in enumerate(files)}
        asked = {"model": "new", "files": told, "stream": False}
        reply = await http.post("/api/create", json=asked)

    assert reply.status_code == 400
    assert says in reply.json()["error"]
    assert not (tmp_path / "store/manifests/registry.ollama.ai").exists()


async def test_a_model_made_anew_takes_the_place_of_the_old_and_leaves_no_blob(
    tmp_path: Path,
) -> None:
    async with client(tmp_path) as http:
        for text in ("one", "two"):
            asked = {"model": "new", "from": "tiny", "system": text}
            await http.post("/api/create", json=asked)
        shown = await show(http, "new")

    assert shown["system"] == "two"
    assert b"one" not in as_it_lies(tmp_path / "store").values()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"license": [str(n) for n in range(1100)]}, "more than 1024 layers"),
        ({"messages": [{"role": "user", "content": "\u0001" * 800_000}]}, "messages would be"),
        ({"requires": "a" * 1_100_000}, "configuration is longer"),
    ],
    ids=["layers", "messages", "configuration"],
)
async def test_a_model_that_nobody_could_read_is_not_made(
    tmp_path: Path, more: dict[str, Any], says: str
) -> None:
    async with client(tmp_path) as http:
        asked = {"model": "new", "from": "tiny", "stream": False, **more}
        reply = await http.post("/api/create", json=asked)
        shown = await http.post("/api/show", json={"model": "new"})

    assert (reply.status_code, shown.status_code) == (400, 404), reply.text
    assert says in reply.json()["error"]


async def test_a_text_stays_for_a_model_in_the_making_when_the_last_that_had_it_goes(
    tmp_path: Path,
) -> None:
    fleet = ShelfFleet(tmp_path)
    put(fleet.dir, "tiny.gguf")
    await fleet.catalogue.scan()
    asked = Creation(parse_name("new"), base="tiny", system="Be brief.")
    async with fleet.store.opened():
        async for _ in fleet.store.create(replace(asked, name=parse_name("old"))):
            pass
        async for line in fleet.store.create(asked):
            if line.status.startswith(f"creating new layer {digest_of(b'Be brief.')}"):
                await fleet.store.delete("old")

    assert line.status == "success"
