"""llama-server's own routes through the proxy, beside the engine itself."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.fakes.real_engine import engine
from tests.proxy.test_real_engine import SOON_S, shape, straight

pytestmark = pytest.mark.llama

GREEDY = {"prompt": "Once upon", "n_predict": 8, "temperature": 0, "seed": 1, "cache_prompt": False}
TOOK = ("timings", "model")
"""What may differ between two runs."""
FILLS = ",".join(
    f"tokenizer.ggml.fim_{key}_token_id=int:{n}"
    for n, key in enumerate(("pre", "suf", "mid"), start=3)
)
"""What makes a model one that fills in."""


def without_times(reply: Any) -> Any:
    if isinstance(reply, list):
        return [without_times(one) for one in reply]
    return {key: value for key, value in reply.items() if key not in TOOK}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="plain"),
        pytest.param({"n_probs": 2}, id="probabilities"),
        pytest.param({"n_probs": 1, "stop": [" who"]}, id="stop word"),
        pytest.param({"prompt": "Write: 🙂🙂🙂", "return_tokens": True}, id="tokens"),
        pytest.param({"prompt": ["Once upon", "The sky is"]}, id="several prompts"),
        pytest.param({"prompt": [1, 2, "and"]}, id="mixed prompt"),
        pytest.param({"prompt": ""}, id="no prompt"),
        pytest.param({"timings_per_token": True, "stop": ["}"]}, id="timings"),
    ],
)
async def test_an_assembled_completion_is_the_childs_own(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    told = {**GREEDY, **more}
    async with engine(tmp_path) as (fleet, at):
        whole = (await at.client.post("/completion", json=told)).json()
        direct = await straight(fleet, "/completion", told)

    assert shape(whole) == shape(direct)
    assert without_times(whole) == without_times(direct)


async def test_a_streamed_completion_is_the_childs_own(tmp_path: Path) -> None:
    told = {**GREEDY, "stream": True, "model": "smollm2"}
    async with engine(tmp_path) as (fleet, at):
        reply = await at.client.post("/completions", json=told)
        direct = await straight(fleet, "/completion", told)

    events = [json.loads(event.removeprefix("data: ")) for event in reply.text.split("\n\n")[:-1]]
    assert [event["content"] for event in events] == [event["content"] for event in direct]
    assert events[-1]["stop"]
    assert "prompt_progress" not in reply.text
    assert fleet.usages[0].decode_tokens == 8


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_who_leaves_a_completion_frees_its_slot(tmp_path: Path, stream: bool) -> None:
    told = {"prompt": "Once upon", "n_predict": 8000, "stream": stream, "ignore_eos": True}
    async with engine(tmp_path, n_ctx=8192) as (fleet, at):
        await fleet.load(fleet.model.model_id)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), at.client.stream("POST", "/completion", json=told) as r:
                await r.aread()
        async with asyncio.timeout(SOON_S):
            while any(await fleet.slots()):
                await asyncio.sleep(0.2)  # cadence

    assert fleet.leases == 0


async def test_questions_are_answered_while_the_only_slot_is_busy(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    told = {"prompt": "Once", "n_predict": 8000, "ignore_eos": True, "stream": True}
    async with (
        engine(tmp_path, n_ctx=8192) as (fleet, at),
        at.client.stream("POST", "/completion", json=told) as story,
    ):
        pieces = story.aiter_bytes()  # which closes the reply when it is forgotten
        await anext(pieces)
        tokens = (await at.client.post("/tokenize", json={"content": "Once upon"})).json()
        text = (await at.client.post("/detokenize", json=tokens)).json()
        prompt = (await at.client.post("/apply-template", json=chat)).json()
        props = (await at.client.get("/props", params={"model": "smollm2"})).json()
        slots = (await at.client.get("/slots")).json()
        adapters = (await at.client.get("/lora-adapters")).json()

    del pieces
    assert fleet.most_leases > 1
    assert text == {"content": "Once upon"}
    assert "Hi" in prompt["prompt"]
    assert (props["total_slots"], props["model_path"]) == (1, "smollm2")
    assert [(slot["id"], slot["is_processing"], "params" in slot) for slot in slots] == [
        (0, True, False)
    ]
    assert adapters == []


async def test_what_is_filled_in_is_the_childs_own(tmp_path: Path) -> None:
    told = {**GREEDY, "input_prefix": "def add(", "input_suffix": "return a + b",
            "input_extra": [{"filename": "a.py", "text": "import b"}]}  # fmt: skip
    async with engine(tmp_path, more=("--override-kv", FILLS)) as (fleet, at):
        whole = (await at.client.post("/infill", json=told)).json()
        direct = await straight(fleet, "/infill", told)
        bounded = await at.client.post("/infill", json={**told, "num_ctx": 8})

    assert without_times(whole) == without_times(direct)
    assert whole["tokens_predicted"] > 0
    assert bounded.status_code == 400


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"input_prefix": "a " * 400}, "the prefix of 401 tokens exceeds the 384 tokens"),
        ({"input_suffix": "a " * 130}, "the suffix of 131 tokens exceeds the 126 tokens"),
        ({"input_suffix": "a " * 120, "prompt": "b " * 9}, "suffix of 121 tokens exceeds the 116"),
    ],
    ids=["prefix", "suffix", "suffix beside a prompt"],
)
async def test_what_stands_around_a_gap_is_cut_only_where_that_is_asked_for(
    tmp_path: Path, told: dict[str, Any], says: str
) -> None:
    asked = {**GREEDY, "prompt": "", "input_prefix": "a", "input_suffix": "b", **told}
    flags = ("--override-kv", FILLS, "-b", "512", "--repack")
    async with engine(tmp_path, more=flags) as (fleet, at):
        refused = await at.client.post("/infill", json=asked)
        cut = await at.client.post("/infill", json={**asked, "truncate": True})
        direct = await straight(fleet, "/infill", asked)

    n_prompt, most = map(int, re.findall(r"(\d+) tokens.* the (\d+)", says)[0])
    assert refused.status_code == 400
    assert says in refused.json()["error"]["message"]
    assert cut.headers["x-prompt-tokens-dropped"] == str(n_prompt - most)
    assert without_times(cut.json()) == without_times(direct)


async def test_a_model_without_the_vocabulary_does_not_fill_in(tmp_path: Path) -> None:
    async with engine(tmp_path) as (_, at):
        reply = await at.client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})

    assert reply.status_code == 501  # as llama-server itself says
    assert "Infill is not supported by this model" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/v1/embeddings", {"model": "smollm2", "input": {"a": 1}}),
        ("/embedding", {"input": [None]}),
    ],
)
async def test_what_no_model_could_read_is_the_callers_fault(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    async with engine(tmp_path, more=("--embeddings",)) as (_, at):
        reply = await at.client.post(path, json=told)

    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("prompt", ["word " * 60, ["Hi", "word " * 60], [[5] * 60]])
async def test_a_prompt_over_its_own_num_ctx_is_refused(tmp_path: Path, prompt: Any) -> None:
    async with engine(tmp_path) as (_, at):
        told = {"prompt": prompt, "num_ctx": 32, "n_predict": 1}
        reply = await at.client.post("/completion", json=told)

    assert reply.status_code == 400
    assert "exceeds the context of 32 tokens" in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("prompt", "subject"),
    [("word " * 300, "the prompt of 301"), (["Hi", "word " * 300], "prompt 2 of 2, of 301")],
    ids=["one", "one of several"],
)
async def test_a_prompt_over_what_is_loaded_is_refused_with_the_numbers(
    tmp_path: Path, stream: bool, prompt: object, subject: str
) -> None:
    async with engine(tmp_path, n_ctx=256) as (_, at):
        told = {"prompt": prompt, "n_predict": 1, "stream": stream}
        reply = await at.client.post("/upstream/smollm2/completion", json=told)

    assert reply.status_code == 400
    assert f"{subject} tokens" in reply.json()["error"]["message"]
    assert reply.json()["error"]["n_ctx"] == 256


async def test_audio_gets_as_far_as_the_engines_own_refusal(tmp_path: Path) -> None:
    async with engine(tmp_path) as (fleet, at):
        settings = replace(fleet.model.settings, mmproj_path="/of/unknown/abilities.gguf")
        fleet.model = replace(fleet.model, settings=settings)
        sound = {"file": ("a.wav", b"RIFF" + bytes(1000), "audio/wav")}
        reply = await at.client.post(
            "/v1/audio/transcriptions", data={"model": "smollm2"}, files=sound
        )

    assert reply.status_code == 501
    assert "does not support audio input" in reply.json()["error"]["message"]


async def test_the_web_chat_and_the_calls_that_it_makes_work_below_its_model(
    tmp_path: Path,
) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 2,
            "return_progress": True, "timings_per_token": True}  # fmt: skip
    async with engine(tmp_path, ui=True) as (_, at):
        page = await at.client.get("/upstream/smollm2/")
        links = re.findall(r'(?:href|import)[=(]"(\./[^"]+\.(?:js|css|webmanifest))"', page.text)
        files = [await at.client.get(f"/upstream/smollm2/{link}") for link in links]
        plain = await at.client.get("/upstream/smollm2/", headers={"accept-encoding": "identity"})
        again = await at.client.get(
            "/upstream/smollm2/", headers={"if-none-match": page.headers["etag"]}
        )
        props = await at.client.get("/upstream/smollm2/props?autoload=false")
        models = await at.client.get("/upstream/smollm2/v1/models")
        reply = await at.client.post("/upstream/smollm2/v1/chat/completions", json=chat)

    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("frame-ancestors 'self'")
    assert {one.headers["content-type"] for one in files} >= {"application/javascript", "text/css"}
    assert {one.status_code for one in files} == {200}
    assert "content-encoding" not in plain.headers
    assert (plain.status_code, plain.content) == (200, page.content)
    assert again.status_code in (200, 304)
    assert props.json()["ui"] is True
    assert models.json()["data"][0]["id"] == "smollm2"
    assert "prompt_progress" in reply.text
    assert reply.text.endswith("data: [DONE]\n\n")
