"""Prompts that are too long, on every route: refused with the numbers and what to do."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fleet_of_one import FleetOfOne
from tests.fakes.real_engine import engine
from tests.fakes.serving import Served
from tests.fakes.tiny_models import tiny_models, write

pytestmark = pytest.mark.llama

LONG = "word " * 400
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": LONG}]}


@asynccontextmanager
async def encoder(folder: Path) -> AsyncIterator[tuple[FleetOfOne, Served]]:
    """A tiny model for embeddings, with a context of 256 tokens."""
    path = write(next(model for model in tiny_models() if model.architecture == "bert"), folder)
    flags = ("--embedding", "-ub", "256")
    async with engine(folder, n_ctx=256, path=path, more=flags) as both:
        yield both


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("route", "told", "subject"),
    [
        ("/v1/chat/completions", CHAT, "the prompt of 4"),
        ("/v1/chat/completions", {**CHAT, "logprobs": True}, "the prompt of 4"),
        ("/v1/completions", {"prompt": LONG}, "the prompt of 401 tokens"),
        ("/v1/completions", {"prompt": ["a", LONG, LONG]}, "prompt 2 of 3, of 401 tokens,"),
        ("/v1/completions", {"prompt": [[5], [7] * 300]}, "prompt 2 of 2, of 300 tokens,"),
        ("/api/chat", CHAT, "the prompt of 4"),
        ("/api/generate", {"prompt": LONG}, "the prompt of 4"),
        ("/api/generate", {"prompt": LONG, "raw": True}, "the prompt of 401 tokens"),
        ("/api/generate", {"prompt": "a", "context": [5] * 300}, "the prompt of 3"),
    ],
    ids=[
        "chat", "chat with logprobs", "completion", "one of several", "token ids", "Ollama's chat",
        "generate", "raw", "context",
    ],
)  # fmt: skip
async def test_a_prompt_over_the_context_is_a_400_that_says_what_to_do(
    tmp_path: Path, route: str, told: dict[str, Any], subject: str, stream: bool
) -> None:
    async with engine(tmp_path, n_ctx=256) as (_, at):
        reply = await at.client.post(route, json={"model": "smollm2", "stream": stream, **told})

    error = reply.json()["error"]
    text = error if isinstance(error, str) else error["message"]
    assert reply.status_code == 400
    assert subject in text
    assert "exceeds the context of 256 tokens that smollm2 has" in text
    assert "a num_ctx of 512" in text or "a num_ctx of 1024" in text
    assert "context = " in text
    if route.startswith("/v1/"):
        assert (error["code"], error["n_ctx"]) == ("context_length_exceeded", 256)
        assert error["n_prompt_tokens"] >= 300


async def test_a_prompt_that_fills_the_context_leaves_no_room_for_a_reply(tmp_path: Path) -> None:
    async with engine(tmp_path, n_ctx=256) as (_, at):
        full, short = [
            await at.client.post("/v1/completions", json={"model": "smollm2", "prompt": [5] * n})
            for n in (256, 255)
        ]

    assert full.status_code == 400
    assert "the prompt of 256 tokens and a reply exceed the context of 256 tokens" in full.text
    assert (short.status_code, short.json()["choices"][0]["finish_reason"]) == (200, "length")


@pytest.mark.parametrize(
    ("route", "told", "subject"),
    [
        ("/v1/embeddings", {"input": LONG}, "the prompt of 2002 tokens"),
        ("/v1/embeddings", {"input": ["a", LONG]}, "prompt 2 of 2, of 2002 tokens,"),
        ("/v1/embeddings", {"input": ["a", [7] * 257]}, "prompt 2 of 2, of 257 tokens,"),
        ("/api/embed", {"input": LONG}, "the prompt of 2002 tokens"),
        ("/api/embed", {"input": [LONG, "a"]}, "prompt 1 of 2, of 2002 tokens,"),
        ("/api/embeddings", {"prompt": LONG}, "the prompt of 2002 tokens"),
    ],
)
async def test_a_text_too_long_to_embed_is_a_400_that_says_which(
    tmp_path: Path, route: str, told: dict[str, Any], subject: str
) -> None:
    told = json.loads(json.dumps(told).replace("word", "w w w w w"))
    async with encoder(tmp_path) as (_, at):
        reply = await at.client.post(route, json={"model": "smollm2", **told})

    assert reply.status_code == 400
    assert f"{subject} exceeds the context of 256 tokens that smollm2 has" in reply.text


@pytest.mark.parametrize(
    ("route", "texts", "subject"),
    [
        ("/api/embed", ["a", "a " * 40], "prompt 2 of 2, of 42 tokens,"),
        ("/v1/embeddings", ["a", "a " * 40], "prompt 2 of 2, of 42 tokens,"),
        ("/v1/embeddings", "a " * 40, "the prompt of 42 tokens"),
        ("/v1/embeddings", [[7] * 42], "the prompt of 42 tokens"),
    ],
)
async def test_a_text_over_its_own_num_ctx_is_not_embedded(
    tmp_path: Path, route: str, texts: object, subject: str
) -> None:
    told = {"model": "smollm2", "input": texts, "options": {"num_ctx": 32}, "num_ctx": 32}
    async with encoder(tmp_path) as (_, at):
        reply = await at.client.post(route, json=told)
        served = await at.client.post(route, json={**told, "input": "a"})

    assert reply.status_code == 400
    assert f"{subject} exceeds the context of 32 tokens" in reply.text
    assert served.status_code == 200


async def test_a_reply_ends_where_the_context_does_and_says_so(tmp_path: Path) -> None:
    nearly_full = "word " * 200
    told = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": nearly_full}],
        "prompt": nearly_full,
        "ignore_eos": True,
        "logit_bias": [[2, False]],
        "temperature": 0,
        "options": {"temperature": 0, "repeat_penalty": 1.3},
    }
    async with engine(tmp_path, n_ctx=256) as (fleet, at):
        replies = {
            (route, stream): await at.client.post(route, json={**told, "stream": stream})
            for route in ("/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate")
            for stream in (True, False)
        }
        shifts = fleet.log("context shift")

    for cell, reply in replies.items():
        assert reply.status_code == 200, cell
        assert '"length"' in reply.text, cell
    assert not [line for line in shifts if "slot" in line and "discard" in line]
