import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.fleet_of_one import FAKE, FleetOfOne, fleet_of_one, model_info, served_model
from tests.fakes.serving import serving

MESSAGES = [{"role": "user", "content": "one two three"}]


async def test_models_are_listed_by_their_display_names(tmp_path: Path) -> None:
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        reply = (await at.client.get("/v1/models")).json()

    assert reply["object"] == "list"
    assert [(m["id"], m["object"]) for m in reply["data"]] == [("tiny:latest", "model")]
    assert reply["data"][0]["meta"]["n_ctx_train"] == 8192


@pytest.mark.parametrize("name", ["tiny", "tiny:latest", "TINY"])
async def test_a_model_is_found_by_any_of_its_names(tmp_path: Path, name: str) -> None:
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        reply = await at.client.get(f"/v1/models/{name}")

    assert (reply.status_code, reply.json()["id"]) == (200, name)


@pytest.mark.parametrize("path", ["hf.co/org/name", "hf.co%2Forg%2Fname"])
async def test_an_id_may_hold_slashes(tmp_path: Path, path: str) -> None:
    fleet = FleetOfOne(served_model(model_id="hf.co/org/name"), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.get(f"{at.url}/v1/models/{path}")

    assert (reply.status_code, reply.json()["id"]) == (200, "hf.co/org/name")


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        pytest.param({"model": "nope"}, 404, "model_not_found", "'nope' not found", id="unknown"),
        pytest.param({}, 400, None, "model is required", id="no model"),
        pytest.param({"model": "tiny", "stream": "yes"}, 400, "invalid_json", "stream", id="type"),
        pytest.param({"model": "tiny", "n": 9}, 400, None, "n must be 1 to 8", id="nine choices"),
        pytest.param({"model": "tiny", "n_cmpl": 0}, 400, None, "n must be 1 to 8", id="no choice"),
        pytest.param({"model": "tiny", "keep_alive": "1d"}, 400, None, "unit", id="keep_alive"),
        pytest.param({"model": "a b"}, 400, None, "invalid model name", id="no name"),
    ],
)
async def test_a_bad_request_is_refused_before_anything_is_loaded(
    tmp_path: Path, body: dict[str, Any], status: int, code: str | None, says: str
) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post("/v1/chat/completions", json={"messages": MESSAGES, **body})

    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, code)
    assert says in error["message"]
    assert fleet.launches == 0


@pytest.mark.parametrize("raw", [b"", b'{"model":', b"[]", b"model=tiny"])
async def test_broken_json_is_a_400(tmp_path: Path, raw: bytes) -> None:
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        reply = await at.client.post("/v1/chat/completions", content=raw)

    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_a_wrong_body_that_only_the_child_understands_is_a_400(tmp_path: Path) -> None:
    raw = b'{"model":"tiny","messages":[{"role":"user","content":"\xff"}]}'
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post("/v1/chat/completions", content=raw)

    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("logprobs", [False, True])
async def test_an_unstreamed_reply_is_assembled_as_the_child_would_have_sent_it(
    tmp_path: Path, path: str, logprobs: bool
) -> None:
    told = {"model": "tiny", "messages": MESSAGES, "prompt": "a b", "max_tokens": 5}
    told |= {"logprobs": True} if logprobs else {}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        whole = (await at.client.post(path, json=told)).json()
        direct = await straight(fleet, path, told)

    assert keyed(whole) == keyed(direct)


async def straight(fleet: FleetOfOne, path: str, told: dict[str, Any]) -> dict[str, Any]:
    """The child's own unstreamed reply."""
    assert fleet.child is not None
    transport = httpx.AsyncHTTPTransport(uds=fleet.child.socket_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://child") as client:
        reply: dict[str, Any] = (await client.post(path, json=told)).json()
    return reply


def keyed(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without what differs from run to run."""
    timings = {k: v for k, v in reply["timings"].items() if k.endswith("_n")}
    return {**reply, "created": 0, "id": "", "timings": timings}


async def test_a_stream_is_the_childs_own_to_the_byte(tmp_path: Path) -> None:
    told = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2, "stream": True}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post("/v1/chat/completions", json=told)

    *events, done, end = reply.text.split("\n\n")
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    assert deltas == [
        {"role": "assistant", "content": None},
        {"content": "one"},
        {"content": " two"},
        {},
    ]
    assert (done, end) == ("data: [DONE]", "")


async def test_embeddings_pass_through(tmp_path: Path) -> None:
    (tmp_path / "e.gguf").touch()
    info = model_info(pooling="mean")
    model = served_model(model_id="embedder", path=str(tmp_path / "e.gguf"), info=info)
    argv = (*FAKE, "--embedding")
    async with fleet_of_one(tmp_path, model=model, argv=argv) as fleet, serving(fleet) as at:
        told = {"model": "embedder", "input": ["a", "b"]}
        reply = await at.client.post("/v1/embeddings", json=told)
        chat = await at.client.post(
            "/v1/chat/completions", json={"model": "embedder", "messages": MESSAGES}
        )

    assert [row["embedding"] for row in reply.json()["data"]] == [[0.6, 0.8]] * 2
    assert chat.status_code == 400
    assert "does not support completions" in chat.json()["error"]["message"]


async def test_embeddings_of_a_model_that_has_none_are_refused_without_a_load(
    tmp_path: Path,
) -> None:
    fleet = FleetOfOne(served_model(info=model_info(pooling="rank")), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post("/v1/embeddings", json={"model": "tiny", "input": "a"})

    assert reply.status_code == 400
    assert "does not support embeddings" in reply.json()["error"]["message"]
    assert fleet.launches == 0


async def test_keep_alive_is_passed_on(tmp_path: Path) -> None:
    told = {"model": "tiny", "messages": MESSAGES, "keep_alive": "1m30s"}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        await at.client.post("/v1/chat/completions", json=told)

    assert fleet.keep_alive_s == 90.0


SEVERAL = {"model": "tiny", "prompt": ["a b", "c", "d e f"], "max_tokens": 4}


async def test_several_prompts_are_so_many_choices_in_order(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        whole = (await at.client.post("/v1/completions", json=SEVERAL)).json()
        direct = await straight(fleet, "/v1/completions", SEVERAL)

    assert whole["choices"] == direct["choices"]
    assert [choice["text"] for choice in whole["choices"]] == ["a b a b", "c c c c", "d e f d"]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (6, 12)
    assert whole["usage"]["total_tokens"] == 18
    assert (fleet.usages[0].prompt_tokens, fleet.usages[0].decode_tokens) == (6, 12)


async def test_several_prompts_stream_as_so_many_choices_without_progress_between(
    tmp_path: Path,
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post("/v1/completions", json={**SEVERAL, "stream": True})

    *events, done, end = reply.text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert (done, end) == ("data: [DONE]", "")
    assert texts == ["a b a b", "c c c c", "d e f d"]
    assert not any("prompt_progress" in chunk for chunk in chunks)
    assert (fleet.usages[0].prompt_tokens, fleet.usages[0].decode_tokens) == (6, 12)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        pytest.param(["a b"], "a b a", id="an array of one text"),
        pytest.param([7, 8], "7 8 7", id="token ids"),
        pytest.param([[7, 8]], "7 8 7", id="an array of one array of token ids"),
        pytest.param(["a", 8], "a 8 a", id="text and token ids"),
    ],
)
async def test_an_array_may_be_one_prompt(tmp_path: Path, prompt: object, text: str) -> None:
    told = {"model": "tiny", "prompt": prompt, "max_tokens": 3}
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = (await at.client.post("/v1/completions", json=told)).json()

    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [(0, text)]


async def test_more_prompts_than_one_request_may_have_are_refused(tmp_path: Path) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as at:
        told = {"model": "tiny", "prompt": ["a"] * 257}
        reply = await at.client.post("/v1/completions", json=told)

    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "prompt")
    assert "at most 256 prompts" in error["message"]
    assert fleet.launches == 0


LONG = "word " * 200


@pytest.mark.parametrize(
    ("route", "told"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/completions", {"prompt": ["word", LONG]}),
        ("/v1/completions", {"prompt": list(range(200))}),
        ("/v1/completions", {"prompt": [list(range(200))]}),
    ],
    ids=["chat", "completion", "one of several", "token ids", "token ids in an array"],
)
async def test_a_prompt_over_its_own_num_ctx_is_refused_with_the_numbers(
    tmp_path: Path, route: str, told: dict[str, Any]
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        refused = await at.client.post(route, json={"model": "tiny", "num_ctx": 100, **told})
        served = await at.client.post(route, json={"model": "tiny", "num_ctx": 1000, **told})

    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["n_prompt_tokens"] >= 200
    assert error["n_ctx"] == 100
    assert served.status_code == 200
    assert fleet.contexts == [100, 1000]
