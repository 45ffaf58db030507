"""What `server.ollama_strict` turns back to Ollama's own ways, and how it is without."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.fakes.chat_templates import QWEN
from tests.fakes.fleet_of_one import fleet_of_one
from tests.fakes.real_engine import engine
from tests.fakes.serving import SETTINGS, serving

STRICT = replace(SETTINGS, ollama_strict=True)
LONG = "word " * 600
CHAT = [{"role": "user", "content": LONG}, {"role": "user", "content": "a"}]
TOO_LONG: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": CHAT},
    "/api/generate": {"prompt": LONG, "raw": True},
}


@pytest.mark.llama
@pytest.mark.parametrize("is_strict", [True, False])
async def test_only_there_a_prompt_is_cut_where_nothing_is_said_of_it(
    tmp_path: Path, is_strict: bool
) -> None:
    settings = replace(SETTINGS, ollama_strict=is_strict)
    told = {"model": "smollm2", "stream": False, "options": {"num_ctx": 100, "num_predict": 2}}
    async with engine(tmp_path, settings=settings) as (_, at):
        for route, prompt in TOO_LONG.items():
            unsaid = await at.client.post(route, json={**told, **prompt})
            refused = await at.client.post(route, json={**told, **prompt, "truncate": False})

            assert (unsaid.status_code, refused.status_code) == (200 if is_strict else 400, 400)
            assert ("x-prompt-tokens-dropped" in unsaid.headers) is is_strict


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("is_strict", [True, False])
async def test_only_there_the_fingerprint_is_ollamas(
    tmp_path: Path, stream: bool, is_strict: bool
) -> None:
    words = 'one "system_fingerprint":"x"'
    told = {"model": "tiny", "messages": [{"role": "user", "content": words}], "stream": stream}
    settings = replace(SETTINGS, ollama_strict=is_strict)
    async with fleet_of_one(tmp_path) as fleet, serving(fleet, settings=settings) as at:
        reply = await at.client.post("/v1/chat/completions", json=told)

    assert ('"system_fingerprint":"fp_ollama"' in reply.text) is is_strict
    assert reply.text.count("fp_ollama") == reply.text.count('"system_fingerprint":"') * is_strict


@pytest.mark.llama
@pytest.mark.parametrize("is_strict", [True, False])
async def test_only_there_a_thought_has_ollamas_name(tmp_path: Path, is_strict: bool) -> None:
    told = {"model": "smollm2", "messages": [{"role": "user", "content": "a"}], "stream": True}
    thought = {"grammar": 'root ::= "a thought</think>b"'}
    settings = replace(SETTINGS, ollama_strict=is_strict)
    async with engine(tmp_path, template=QWEN, settings=settings) as (_, at):
        reply = await at.client.post("/v1/chat/completions", json=told | thought)

    names = ('"reasoning":"' in reply.text, '"reasoning_content":"' in reply.text)
    assert names == (is_strict, not is_strict)


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}], ids=["page", "name"]
)
async def test_who_is_kept_out_gets_no_reason(tmp_path: Path, headers: dict[str, str]) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet, settings=STRICT) as at:
        reply = await at.client.get("/api/tags", headers=headers)
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        by_default = await at.client.get("/api/tags", headers=headers)

    assert (reply.status_code, reply.content) == (403, b"")
    assert (by_default.status_code, bool(by_default.json()["error"])) == (403, True)
