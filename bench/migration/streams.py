"""One greedy stream in each dialect: what is asked, what of a reply is text, how it ended."""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import httpx

WITHIN_S = 300.0
PROMPTS = (
    "Tell me a long story about a fox.",
    "Explain how rain forms.",
    "List ten animals with a sentence each.",
    "What is a computer? Answer at length.",
    "Write a letter to a friend about the sea.",
    "Why do leaves fall?",
    "Describe a market in the morning.",
    "How is bread made?",
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one of them asks for a stream, and what of an event of it is text."""

    path: str
    asks: Callable[[str, str, int], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]


def _chat(model: str, prompt: str, n: int) -> dict[str, Any]:
    return {
        "model": model, "messages": [{"role": "user", "content": prompt}], "stream": True,
        "temperature": 0, "max_tokens": n,
    }  # fmt: skip


def _prompted(model: str, prompt: str, n: int) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "stream": True, "temperature": 0, "max_tokens": n}


def _native(model: str, prompt: str, n: int) -> dict[str, Any]:
    return {
        "model": model, "prompt": prompt, "messages": [{"role": "user", "content": prompt}],
        "stream": True, "options": {"temperature": 0, "num_predict": n},
    }  # fmt: skip


DIALECTS = (
    Dialect(
        "/v1/chat/completions",
        _chat,
        lambda told: "".join(c["delta"].get("content") or "" for c in told["choices"]),
    ),
    Dialect(
        "/v1/completions", _prompted, lambda told: "".join(c["text"] for c in told["choices"])
    ),
    Dialect("/completion", _prompted, lambda told: str(told.get("content", ""))),
    Dialect("/v1/messages", _chat, lambda told: str(told.get("delta", {}).get("text", ""))),
    Dialect(
        "/v1/responses",
        lambda model, prompt, n: {
            "model": model, "input": prompt, "stream": True, "temperature": 0,
            "max_output_tokens": n,
        },
        lambda told: told["delta"] if told["type"] == "response.output_text.delta" else "",
    ),
    Dialect(
        "/api/chat",
        lambda model, prompt, n: {
            k: v for k, v in _native(model, prompt, n).items() if k != "prompt"
        },
        lambda told: str(told.get("message", {}).get("content", "")),
    ),
    Dialect(
        "/api/generate",
        lambda model, prompt, n: {
            k: v for k, v in _native(model, prompt, n).items() if k != "messages"
        },
        lambda told: str(told.get("response", "")),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ended:
    """What a caller had in the end."""

    text: str
    error: str
    """"" where there is none."""
    has_end: bool
    """False where it ended without a word: a silent end."""
    longest_gap_s: float
    """Between two pieces of its text."""


@dataclass(slots=True)
class Caller:
    """One stream in a thread of its own."""

    future: Future[Ended]
    reached: Event = field(default_factory=Event)
    """Set once so many pieces of text came as it was to wait for."""


def called(
    threads: ThreadPoolExecutor,
    base: str,
    model: str,
    dialect: Dialect,
    prompt: str,
    *,
    n_tokens: int,
    reach: int,
) -> Caller:
    """Begins one; `reach` pieces of text set its event, its end does too."""
    caller = Caller(Future())

    def read() -> Ended:
        try:
            return _read(base, dialect, dialect.asks(model, prompt, n_tokens), caller, reach)
        except httpx.HTTPError as exc:
            return Ended("", f"the connection broke: {exc}", has_end=False, longest_gap_s=0.0)
        finally:
            caller.reached.set()

    caller.future = threads.submit(read)
    return caller


def _read(base: str, dialect: Dialect, body: dict[str, Any], caller: Caller, reach: int) -> Ended:
    text, pieces, gap_s, last_s, has_end = "", 0, 0.0, 0.0, False
    with (
        httpx.Client(base_url=base, timeout=WITHIN_S, trust_env=False) as client,
        client.stream("POST", dialect.path, json=body) as reply,
    ):
        if reply.status_code != 200:
            return Ended("", reply.read().decode(), has_end=True, longest_gap_s=0.0)
        for line in reply.iter_lines():
            bare = line.removeprefix("data: ")
            has_end = has_end or bare == "[DONE]"
            if not bare.startswith("{"):
                continue
            told = json.loads(bare)
            if told.get("error"):
                return Ended(text, str(told["error"]), has_end=True, longest_gap_s=gap_s)
            has_end = has_end or _is_end(told)
            if not (piece := dialect.text(told)):
                continue
            now_s = time.monotonic()
            gap_s = max(gap_s, now_s - last_s) if pieces else 0.0
            text, pieces, last_s = text + piece, pieces + 1, now_s
            if pieces >= reach:
                caller.reached.set()
    return Ended(text, "", has_end=has_end, longest_gap_s=gap_s)


def _is_end(told: dict[str, Any]) -> bool:
    """Of the dialects that say so in an event."""
    ends = ("message_stop", "response.completed", "response.incomplete")
    return bool(told.get("done") or told.get("stop") is True or told.get("type") in ends)
