"""The two inference routes against the fake child: shapes, loads, refusals."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, model_info, served_model
from tests.fakes.serving import serving

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}]}
GENERATE = {"model": "tiny", "prompt": "one two three"}
BOTH = pytest.mark.parametrize(
    ("route", "told"),
    [("/api/chat", CHAT), ("/api/generate", GENERATE)],
    ids=["chat", "generate"],
)
FINAL_KEYS = {
    "model", "created_at", "done", "done_reason", "total_duration", "load_duration",
    "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration",
}  # fmt: skip


def text_of(reply: dict[str, Any]) -> str:
    """The text of a chat's or a generate's object."""
    text: str = reply["message"]["content"] if "message" in reply else reply["response"]
    return text


@BOTH
async def test_a_stream_is_lines_the_last_of_which_has_the_metrics(
    tmp_path: Path, route: str, told: dict[str, Any]
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(route, json={**told, "options": {"num_predict": 2}})

    lines = [json.loads(line) for line in reply.text.split("\n")[:-1]]
    *pieces, final = lines
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert [text_of(piece) for piece in pieces] == ["one", " two"]
    assert [line["done"] for line in lines] == [False, False, True]
    assert set(final) - {"message", "response", "context"} == FINAL_KEYS
    assert (final["done_reason"], final["eval_count"], final["prompt_eval_count"]) == (
        "length",
        2,
        3,
    )
    assert all(line["model"] == "tiny" for line in lines)


@BOTH
async def test_without_a_stream_it_is_one_object(
    tmp_path: Path, route: str, told: dict[str, Any]
) -> None:
    asked = {**told, "stream": False, "logprobs": True, "options": {"num_predict": 2}}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(route, json=asked)

    whole = reply.json()
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert text_of(whole) == "one two"
    assert [entry["token"] for entry in whole["logprobs"]] == ["one", " two"]
    assert set(whole) >= FINAL_KEYS


async def test_generate_tells_the_tokens_of_the_conversation_and_goes_on_from_them(
    tmp_path: Path,
) -> None:
    asked = {**GENERATE, "stream": False, "options": {"num_predict": 2}}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        first = (await at.client.post("/api/generate", json=asked)).json()
        second = await at.client.post("/api/generate", json={**asked, "context": first["context"]})

    context = second.json()["context"]
    assert len(first["context"]) > 2
    assert context[: len(first["context"])] == first["context"]
    assert len(context) > len(first["context"])


async def test_a_template_of_the_callers_own_replaces_the_models(tmp_path: Path) -> None:
    own = {"template": "one {{ .Prompt }} {{ .System }}", "prompt": "two", "system": "three"}
    asked = {**GENERATE, **own, "stream": False, "options": {"num_predict": 3}}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        first = (await at.client.post("/api/generate", json=asked)).json()
        second = await at.client.post("/api/generate", json={**asked, "context": first["context"]})

    assert first["response"] == "one two three"
    assert first["prompt_eval_count"] == 3
    assert second.json()["context"][: len(first["context"])] == first["context"]


async def test_a_raw_prompt_has_no_context(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(
            "/api/generate", json={**GENERATE, "raw": True, "stream": False}
        )

    assert "context" not in reply.json()
    assert reply.json()["response"].startswith("one two three")


@BOTH
@pytest.mark.parametrize("stream", [True, False])
async def test_an_empty_request_loads_and_is_answered_with_one_object(
    tmp_path: Path, route: str, told: dict[str, Any], stream: bool
) -> None:
    asked = {"model": "tiny", "stream": stream, "keep_alive": 30}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(route, json=asked)
        loaded = (await at.client.get("/api/ps")).json()["models"]

    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert (reply.json()["done"], reply.json()["done_reason"]) == (True, "load")
    assert text_of(reply.json()) == ""
    assert "total_duration" not in reply.json()
    assert [model["name"] for model in loaded] == ["tiny:latest"]
    assert (fleet.launches, fleet.keep_alive_s) == (1, 30.0)


@BOTH
async def test_an_empty_request_with_no_keep_alive_unloads_whatever_its_options(
    tmp_path: Path, route: str, told: dict[str, Any]
) -> None:
    asked = {"model": "tiny", "keep_alive": 0, "options": {"temperature": "x"}}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        await at.client.post(route, json=told)
        reply = await at.client.post(route, json=asked)
        again = await at.client.post(route, json=asked)
        loaded = (await at.client.get("/api/ps")).json()["models"]

    assert [r.json()["done_reason"] for r in (reply, again)] == ["unload", "unload"]
    assert loaded == []


@pytest.mark.parametrize(
    ("route", "told", "status", "says"),
    [
        ("/api/chat", {**CHAT, "model": ""}, 400, "model is required"),
        ("/api/generate", {**GENERATE, "model": ""}, 404, "model '' not found"),
        ("/api/chat", {**CHAT, "model": "nope"}, 404, "model 'nope' not found"),
        ("/api/chat", {**CHAT, "model": "a b"}, 400, "invalid model name"),
        ("/api/chat", {**CHAT, "model": "a" * 601}, 400, "invalid model name"),
        ("/api/chat", {**CHAT, "model": "m:20b-cloud"}, 403, "ollama cloud is disabled"),
        ("/api/chat", {**CHAT, "think": True}, 400, '"tiny" does not support thinking'),
        ("/api/chat", {**CHAT, "tools": [{"type": "function"}]}, 400,
         "registry.ollama.ai/library/tiny:latest does not support tools"),
        ("/api/generate", {**GENERATE, "suffix": "x"}, 400, "does not support insert"),
        ("/api/chat", {**CHAT, "options": {"top_k": "x"}}, 400, 'option "top_k" must be'),
        ("/api/chat", {**CHAT, "keep_alive": "abc"}, 400,
         'keep_alive: time: invalid duration "abc"'),
        ("/api/generate", {**GENERATE, "format": "yaml"}, 400, "invalid format"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_before_anything_is_loaded(
    tmp_path: Path, route: str, told: dict[str, Any], status: int, says: str
) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post(route, json=told)

    assert reply.status_code == status
    assert says in reply.json()["error"]
    assert fleet.launches == 0


@pytest.mark.parametrize("think", [False, None])
async def test_not_thinking_is_fine_for_a_model_that_cannot(tmp_path: Path, think: object) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post("/api/chat", json={**CHAT, "think": think})

    assert reply.status_code == 200


async def test_an_embedding_model_does_not_chat(tmp_path: Path) -> None:
    fleet = FleetOfOne(served_model(info=model_info(pooling="mean")), tmp_path)
    async with serving(fleet) as at:
        chat = await at.client.post("/api/chat", json=CHAT)
        generate = await at.client.post("/api/generate", json=GENERATE)

    assert chat.json() == {"error": '"tiny" does not support chat'}
    assert generate.json() == {"error": '"tiny" does not support generate'}


LONG = "word " * 200


@pytest.mark.parametrize(
    ("route", "told"),
    [
        ("/api/chat", {**CHAT, "messages": [{"role": "user", "content": LONG}]}),
        ("/api/generate", {**GENERATE, "prompt": LONG}),
        ("/api/generate", {**GENERATE, "prompt": LONG, "raw": True}),
        ("/api/generate", {**GENERATE, "prompt": "word", "context": list(range(200))}),
    ],
    ids=["chat", "generate", "raw", "token ids"],
)
async def test_a_prompt_over_the_asked_context_is_refused_with_the_numbers(
    tmp_path: Path, route: str, told: dict[str, Any]
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        refused = await at.client.post(route, json={**told, "options": {"num_ctx": 100}})
        served = await at.client.post(route, json={**told, "options": {"num_ctx": 1000}})

    assert refused.status_code == 400
    assert re.search(
        r"prompt of 2\d\d tokens exceeds the context of 100 .* loaded with 4096",
        refused.json()["error"],
    )
    assert served.status_code == 200
    assert fleet.contexts[-1] == 1000


async def test_a_smaller_context_bounds_no_reply(tmp_path: Path) -> None:
    told = {**CHAT, "stream": False, "options": {"num_ctx": 64}}
    async with fleet_of_one(tmp_path, faults={"tokens": 100}) as fleet, serving(fleet) as at:
        reply = (await at.client.post("/api/chat", json=told)).json()

    assert reply["eval_count"] == 100


async def test_a_load_asks_for_its_context(tmp_path: Path) -> None:
    told = {"model": "tiny", "options": {"num_ctx": 8192}}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        await at.client.post("/api/generate", json=told)
        await at.client.post("/api/generate", json={**told, "options": {"num_ctx": 0}})

    assert fleet.contexts == [8192, None]


async def test_the_prompt_can_be_shown_instead_of_answered(tmp_path: Path) -> None:
    told = {**GENERATE, "_debug_render_only": True}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = (await at.client.post("/api/generate", json=told)).json()

    assert "one two three" in reply["_debug_info"]["rendered_template"]
    assert (reply["response"], reply["done"]) == ("", False)
