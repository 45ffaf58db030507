"""One stream in a thread of its own, read to its end: what its caller had of it."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from bench.migration.questions import Event, Question

WITHIN_S = 300.0


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
    finish: str = ""
    """Why it ended, in its dialect's word."""
    n_tokens: int = 0
    """As the reply tells that it took; 0 where it tells nothing."""
    n_ids: int = 0
    """Different ids that the reply had."""
    n_roles: int = 0
    """How often its role was told."""
    request_id: str = ""

    @property
    def frame(self) -> tuple[str, int, int, int]:
        """What else than the text makes it one reply."""
        return self.finish, self.n_tokens, self.n_ids, self.n_roles


def ended(
    base: str,
    model: str,
    question: Question,
    *,
    n_tokens: int,
    came: Callable[[int], None] | None = None,
) -> Ended:
    """Asks it, and waits for the end; `came` hears how many pieces of it there are, from 0 up."""
    try:
        return _read(base, question, question.body(model, n_tokens), came or (lambda _: None))
    except httpx.HTTPError as exc:
        return Ended("", f"the connection broke: {exc!r}", has_end=False, longest_gap_s=0.0)


@dataclass(slots=True)
class _Reading:
    """A reply as far as it came."""

    question: Question
    text: str = ""
    error: str = ""
    has_end: bool = False
    gap_s: float = 0.0
    last_s: float = 0.0
    finish: str = ""
    n_tokens: int = 0
    ids: set[str] = field(default_factory=set)
    n_roles: int = 0
    n_pieces: int = 0
    request_id: str = ""

    def take(self, event: Event) -> None:
        """One more of its events."""
        if event.get("error"):
            self.error, self.has_end = str(event["error"]), True
            return
        self._note(event)
        if not (piece := self.question.told(event)):
            return
        now_s = time.monotonic()
        if self.text:
            self.gap_s = max(self.gap_s, now_s - self.last_s)
        self.text, self.last_s = self.text + piece, now_s
        self.n_pieces += 1

    def _note(self, event: Event) -> None:
        inner = event.get("message") if event.get("type") == "message_start" else None
        inner = inner or event.get("response") or event
        if isinstance(inner, str):  # of /api/generate
            inner = event
        if said_id := inner.get("id"):
            self.ids.add(said_id)
        for choice in event.get("choices", ()):
            self.n_roles += "role" in choice.get("delta", ())
            self.finish = choice.get("finish_reason") or self.finish
        self.n_roles += event.get("type") in ("message_start", "response.created")
        delta = event.get("delta")
        told = delta.get("stop_reason") if isinstance(delta, dict) else None
        whole = inner.get("status") if event.get("type") == "response.completed" else None
        self.finish = (
            told or whole or event.get("done_reason") or event.get("stop_type") or self.finish
        )
        self.n_tokens = _tokens(event, inner) or self.n_tokens
        ends = ("message_stop", "response.completed", "response.incomplete")
        is_end = event.get("done") or event.get("stop") is True or event.get("type") in ends
        self.has_end = self.has_end or bool(is_end)

    def ended(self) -> Ended:
        """What there is of it."""
        return Ended(
            self.text, self.error, has_end=self.has_end, longest_gap_s=self.gap_s,
            finish=self.finish, n_tokens=self.n_tokens, n_ids=len(self.ids), n_roles=self.n_roles,
            request_id=self.request_id,
        )  # fmt: skip


def _tokens(event: Event, inner: dict[str, Any]) -> int:
    usage = event.get("usage") or inner.get("usage") or {}
    native = event.get("eval_count") or (event.get("stop") and event.get("tokens_predicted"))
    return int(usage.get("completion_tokens") or usage.get("output_tokens") or native or 0)


def _read(
    base: str, question: Question, body: dict[str, Any], came: Callable[[int], None]
) -> Ended:
    reading = _Reading(question)
    with (
        httpx.Client(base_url=base, timeout=WITHIN_S, trust_env=False) as client,
        client.stream("POST", question.path, json=body) as reply,
    ):
        if reply.status_code != 200:
            return Ended("", reply.read().decode(), has_end=True, longest_gap_s=0.0)
        reading.request_id = reply.headers["x-request-id"]
        came(0)
        for line in reply.iter_lines():
            bare = line.removeprefix("data: ")
            reading.has_end = reading.has_end or bare == "[DONE]"
            if bare.startswith("{"):
                reading.take(json.loads(bare))
                came(reading.n_pieces)
    return reading.ended()
