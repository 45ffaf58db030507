"""Greedy streams in many dialects, each in a thread of its own, and what their callers get."""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any

import httpx

from scripts.started_daemon import StartedDaemon

WITHIN_S = 120.0
BEGUN = 4  # pieces of text that a caller has before its model moves
TOKENS = 40
PROMPTS = (
    "Tell me a long story about a fox.",
    "Explain how rain forms.",
    "List ten animals with a sentence each.",
    "What is a computer? Answer at length.",
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one of them asks for a greedy stream, and what of a line of it is text."""

    path: str
    asks: Callable[[str, str, int], dict[str, Any]]
    """By the model, the prompt and the most tokens."""
    text: Callable[[dict[str, Any]], str]


def _chat(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
    }


def _native(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    asked = _chat(model, prompt, tokens)
    return {key: asked[key] for key in ("model", "messages", "stream")} | {
        "options": {"temperature": 0, "num_predict": tokens}
    }


DIALECTS = (
    Dialect(
        "/v1/chat/completions",
        _chat,
        lambda told: "".join(c["delta"].get("content") or "" for c in told["choices"]),
    ),
    Dialect("/api/chat", _native, lambda told: str(told["message"]["content"])),
    Dialect("/v1/messages", _chat, lambda told: str(told.get("delta", {}).get("text", ""))),
    Dialect(
        "/v1/responses",
        lambda model, prompt, tokens: {
            "model": model, "input": prompt, "stream": True, "temperature": 0,
            "max_output_tokens": tokens,
        },
        lambda told: told["delta"] if told["type"] == "response.output_text.delta" else "",
    ),
)  # fmt: skip


@dataclass(slots=True)
class Stream:
    """One caller in a thread of its own."""

    text: Future[str]
    begun: Event


def read(base: str, dialect: Dialect, prompt: str, begun: Event, *, tokens: int = TOKENS) -> str:
    """The text of one stream; an error in it raises."""
    model = httpx.get(f"{base}/v1/models", trust_env=False).json()["data"][0]["id"]
    text, pieces = "", 0
    with (
        httpx.Client(base_url=base, timeout=WITHIN_S, trust_env=False) as client,
        client.stream("POST", dialect.path, json=dialect.asks(model, prompt, tokens)) as reply,
    ):
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            bare = line.removeprefix("data: ")
            if not bare.startswith("{"):
                continue
            told = json.loads(bare)
            assert not told.get("error"), told
            text += dialect.text(told)
            pieces += bool(dialect.text(told))
            if pieces >= BEGUN:
                begun.set()
    return text


def asked(
    daemon: StartedDaemon,
    threads: ThreadPoolExecutor,
    dialect: Dialect,
    prompt: str,
    *,
    tokens: int = TOKENS,
) -> Stream:
    begun = Event()
    text = threads.submit(read, daemon.base, dialect, prompt, begun, tokens=tokens)
    return Stream(text, begun)


def events(daemon: StartedDaemon, kind: str) -> list[dict[str, Any]]:
    told = json.loads(daemon.ctl("events", "--json").stdout)["events"]
    return [event for event in told if event["kind"] == kind]
