"""Prompts that are cut because their caller asked for it; the engine's own count is right."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.chat_templates import with_numbers
from tests.fakes.events import named_events
from tests.fakes.real_engine import child_client, engine, quickstart_model
from tests.fakes.tiny_models import tiny_models, write

pytestmark = pytest.mark.llama

SYSTEM = {"role": "system", "content": "Be brief."}
LAST = {"role": "user", "content": "And now?"}
GREEDY = {"temperature": 0, "num_predict": 2}


def turns(count: int) -> list[dict[str, str]]:
    """A conversation of so many turns of some forty tokens."""
    return [
        {"role": role, "content": f"{n} " + "word " * 20}
        for n in range(count)
        for role in ("user", "assistant")
    ]


def chat(messages: list[dict[str, str]], **more: object) -> dict[str, Any]:
    return {
        "model": "smollm2",
        "messages": messages,
        "options": GREEDY,
        "stream": False,
        **more,
    }


async def tokens(child: httpx.AsyncClient, messages: list[dict[str, str]]) -> int:
    """How many the child itself counts in a chat."""
    told = {"messages": messages, "max_tokens": 1}
    reply = await child.post("/v1/chat/completions/input_tokens", json=told)
    count: int = reply.json()["input_tokens"]
    return count


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_chat_loses_its_oldest_turns_and_says_how_many_tokens(
    tmp_path: Path, stream: bool
) -> None:
    messages = [*turns(3), SYSTEM, *turns(5), LAST]
    left = [SYSTEM, *turns(5)[2:], LAST]
    async with engine(tmp_path, n_ctx=1024) as (fleet, at):
        await fleet.load(fleet.model.model_id)
        async with child_client(fleet) as child:
            whole, kept = await tokens(child, messages), await tokens(child, left)
        told = chat(messages, truncate=True, stream=stream)
        told["options"] = {**GREEDY, "num_ctx": kept + 8}
        reply = await at.client.post("/api/chat", json=told)

    final = json.loads(reply.text.strip().split("\n")[-1])
    assert final["prompt_eval_count"] == kept
    assert final["prompt_tokens_dropped"] == whole - kept
    assert reply.headers["x-prompt-tokens-dropped"] == str(whole - kept)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_response_is_cut_where_its_truncation_is_auto(tmp_path: Path, stream: bool) -> None:
    messages, left = [*turns(8), LAST], [*turns(8)[8:], LAST]
    told = {"model": "smollm2", "input": messages, "max_output_tokens": 2, "stream": stream}
    async with engine(tmp_path, n_ctx=1024) as (fleet, at):
        await fleet.load(fleet.model.model_id)
        async with child_client(fleet) as child:
            whole, kept = await tokens(child, messages), await tokens(child, left)
        bound = {**told, "num_ctx": kept + 8}
        cut = await at.client.post("/v1/responses", json={**bound, "truncation": "auto"})
        refused = await at.client.post("/v1/responses", json={**bound, "truncation": "disabled"})
        odd = await at.client.post("/v1/responses", json={**told, "truncation": "some"})

    response = named_events(cut.text)[-1]["response"] if stream else cut.json()
    assert cut.headers["x-prompt-tokens-dropped"] == str(whole - kept)
    assert response["prompt_tokens_dropped"] == whole - kept
    assert response["truncation"] == "auto"
    assert response["usage"]["input_tokens"] == kept
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert (odd.status_code, "truncation" in odd.text) == (400, True)


@pytest.mark.parametrize("more", [{}, {"truncate": False}, {"truncate": None}])
@pytest.mark.parametrize(
    ("route", "told"),
    [
        ("/api/chat", {"messages": [*turns(9), LAST]}),
        ("/api/generate", {"prompt": "word " * 400}),
        ("/api/generate", {"prompt": "word " * 400, "raw": True}),
        ("/api/generate", {"prompt": "word", "context": [7] * 300}),
    ],
    ids=["chat", "generate", "raw", "context"],
)
async def test_nothing_is_cut_unless_it_is_asked_for(
    tmp_path: Path, route: str, told: dict[str, Any], more: dict[str, Any]
) -> None:
    async with engine(tmp_path, n_ctx=256) as (_, at):
        reply = await at.client.post(route, json={"model": "smollm2", **told, **more})

    assert reply.status_code == 400
    assert "exceeds the context of 256 tokens" in reply.json()["error"]
    assert "x-prompt-tokens-dropped" not in reply.headers


async def test_a_chat_that_fits_is_not_cut_and_its_reply_says_so(tmp_path: Path) -> None:
    async with engine(tmp_path, n_ctx=256) as (_, at):
        cut = (await at.client.post("/api/chat", json=chat([LAST], truncate=True))).json()
        plain = (await at.client.post("/api/chat", json=chat([LAST]))).json()

    assert cut["prompt_tokens_dropped"] == 0
    assert cut["message"] == plain["message"]
    assert "prompt_tokens_dropped" not in plain


@pytest.mark.parametrize(
    ("route", "told"),
    [
        ("/api/chat", {"messages": [*turns(2), {"role": "user", "content": "word " * 400}]}),
        ("/api/generate", {"prompt": "word " * 400}),
        ("/api/generate", {"prompt": "word " * 400, "context": [7] * 20}),
    ],
    ids=["chat", "generate", "context"],
)
async def test_a_last_message_that_is_too_long_is_refused_not_cut(
    tmp_path: Path, route: str, told: dict[str, Any]
) -> None:
    async with engine(tmp_path, n_ctx=256) as (_, at):
        reply = await at.client.post(route, json={"model": "smollm2", "truncate": True, **told})

    assert reply.status_code == 400
    assert "exceeds the context of 256 tokens" in reply.json()["error"]


async def test_a_raw_prompt_keeps_its_first_tokens_and_its_end(tmp_path: Path) -> None:
    words = " ".join(f"w{n}" for n in range(200))
    told = {"model": "smollm2", "prompt": words, "raw": True, "truncate": True, "stream": False}
    options = {**GREEDY, "num_ctx": 64, "num_keep": 8}
    async with engine(tmp_path) as (fleet, at):
        reply = (await at.client.post("/api/generate", json={**told, "options": options})).json()
        async with child_client(fleet) as child:
            ids = (await child.post("/tokenize", json={"content": words})).json()["tokens"]
            kept = {"prompt": [*ids[:8], *ids[-56:]], "n_predict": 2, "temperature": 0}
            direct = (await child.post("/completion", json=kept)).json()

    assert reply["prompt_tokens_dropped"] == len(ids) - 64
    assert (reply["prompt_eval_count"], reply["response"]) == (64, direct["content"])


async def test_what_goes_on_from_token_ids_loses_the_oldest_of_them(tmp_path: Path) -> None:
    told = {"model": "smollm2", "prompt": "And?", "context": [7] * 500, "truncate": True}
    options = {**GREEDY, "num_ctx": 128}
    async with engine(tmp_path) as (_, at):
        reply = await at.client.post(
            "/api/generate", json={**told, "stream": False, "options": options}
        )

    final = reply.json()
    n_new = final["prompt_tokens_dropped"] + 128 - 500
    assert final["prompt_eval_count"] == 128
    assert 0 < n_new < 40
    assert reply.headers["x-prompt-tokens-dropped"] == str(final["prompt_tokens_dropped"])


@pytest.mark.parametrize("options", [{}, {"num_ctx": 64}], ids=["what is loaded", "num_ctx"])
async def test_texts_to_embed_lose_their_ends(tmp_path: Path, options: dict[str, int]) -> None:
    path = write(next(model for model in tiny_models() if model.architecture == "bert"), tmp_path)
    most = options.get("num_ctx", 256)
    fitting = "a b " * ((most - 2) // 2)
    flags = ("--embedding", "-ub", "256")
    long = fitting + "c d " * 100
    told = {"model": "smollm2", "input": ["c", long], "truncate": True}
    async with engine(tmp_path, n_ctx=256, path=path, more=flags) as (_, at):
        cut = await at.client.post("/api/embed", json={**told, "options": options})
        short = await at.client.post(
            "/api/embed", json={"model": "smollm2", "input": ["c", fitting]}
        )
        old = await at.client.post("/api/embeddings", json={"model": "smollm2", "prompt": long})

    assert cut.json()["prompt_tokens_dropped"] == 200
    assert cut.headers["x-prompt-tokens-dropped"] == "200"
    assert cut.json()["prompt_eval_count"] == most + 3
    for ours, theirs in zip(cut.json()["embeddings"], short.json()["embeddings"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert old.status_code == 400


FIM = {f"tokenizer.ggml.fim_{name}_token_id": 5 + n for n, name in enumerate(("pre", "suf", "mid"))}


@pytest.mark.parametrize(
    ("n_prefix", "n_suffix", "says"),
    [
        (384, 126, ""),
        (385, 9, "the prefix of 385 tokens exceeds the 384 tokens that smollm2 reads"),
        (9, 127, "the suffix of 127 tokens exceeds the 126 tokens that smollm2 reads"),
    ],
    ids=["both fit", "prefix", "suffix"],
)
async def test_what_stands_around_a_gap_is_cut_only_where_that_is_asked_for(
    tmp_path: Path, n_prefix: int, n_suffix: int, says: str
) -> None:
    path = with_numbers(quickstart_model(), FIM, tmp_path / "fim.gguf")
    told: dict[str, Any] = {"model": "smollm2", "options": GREEDY, "stream": False}
    told |= {"prompt": " a" * n_prefix, "suffix": " b" * n_suffix}
    async with engine(tmp_path, path=path, more=("-b", "512")) as (_, at):
        plain = await at.client.post("/api/generate", json=told)
        cut = await at.client.post("/api/generate", json={**told, "truncate": True})

    n_over = max(0, n_prefix - 384) + max(0, n_suffix - 126)
    n_read = n_prefix + n_suffix - n_over + 3
    assert plain.status_code == (400 if says else 200)
    assert says in plain.text
    assert cut.json()["prompt_tokens_dropped"] == n_over
    assert abs(cut.json()["prompt_eval_count"] - n_read) <= 4
