"""Callers of a soak: each asks one thing after another, in a dialect by chance, and judges it."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

import httpx

from bench.soak.account import Ended, Outcome

N_TOKENS = 24
ANSWER_S = 90.0  # two loads, a line and an answer, on two busy cores
LEAVES = 0.1  # of callers, in the middle of their answer
PROMPTS = (
    "Name three colours.",
    "Count from one to ten in words.",
    "What is the capital of France?",
    "Write a sentence about the sea.",
    "Why is the sky blue?",
    "List four animals that live on a farm.",
    "Finish the sentence: once upon a time",
    "Say something kind.",
)


class NotAnswered(Exception):
    """The caller was told, in its dialect, that there will be no answer, or no more of it."""


class Silent(Exception):
    """The reply ended, and did not say that it was at its end."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request: whom, what, in which dialect."""

    model: str
    prompt: str
    dialect: str

    @property
    def path(self) -> str:
        """Its route."""
        return "/api/chat" if self.dialect == "ollama" else "/v1/chat/completions"

    def body(self) -> dict[str, object]:
        """Deterministic, so that it can be compared."""
        told: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt}],
            "stream": self.dialect != "openai whole",
        }
        if self.dialect == "ollama":
            return told | {"options": {"temperature": 0, "seed": 1, "num_predict": N_TOKENS}}
        return told | {"temperature": 0, "seed": 1, "max_tokens": N_TOKENS}


DIALECTS = ("openai", "openai whole", "ollama")
Solo = Mapping[tuple[str, str], str]
"""Model and prompt → the answer alone on an idle machine."""


@dataclass(slots=True)
class Callers:
    """All callers, and what became of their requests."""

    base: str
    models: tuple[str, ...]
    solo: Solo
    was_disturbed: Callable[[float, float], bool]
    """Whether anything was killed or stopped between two moments (monotonic)."""
    ended: list[Ended] = field(default_factory=list)

    async def ask_until(self, over: asyncio.Event, *, seed: int) -> None:
        """One caller: one question after another."""
        chance = random.Random(seed)
        async with httpx.AsyncClient(
            base_url=self.base, timeout=ANSWER_S, trust_env=False
        ) as client:
            while not over.is_set():
                question = Question(
                    chance.choice(self.models), chance.choice(PROMPTS), chance.choice(DIALECTS)
                )
                leaves_after = chance.randrange(1, 8) if chance.random() < LEAVES else None
                self.ended.append(await self._judged(client, question, leaves_after))

    async def _judged(
        self, client: httpx.AsyncClient, question: Question, leaves_after: int | None
    ) -> Ended:
        began_s = monotonic()
        try:
            text = await answer(client, question, leaves_after=leaves_after)
        except NotAnswered as exc:
            cut = self.was_disturbed(began_s, monotonic())
            outcome, note = (Outcome.TOLD if cut else Outcome.REFUSED), str(exc)
        except (httpx.HTTPError, Silent, ValueError, KeyError) as exc:
            outcome, note = Outcome.LOST, f"{type(exc).__name__}: {exc}"
        else:
            if text is None:
                outcome, note = Outcome.LEFT, ""
            else:
                right = self.solo[question.model, question.prompt]
                outcome = Outcome.RIGHT if text == right else Outcome.WRONG
                note = f"{text!r} instead of {right!r}"
        return Ended(outcome, question.model, question.dialect, began_s, monotonic(), note)


async def answer(
    client: httpx.AsyncClient, question: Question, *, leaves_after: int | None = None
) -> str | None:
    """The whole text of the answer; None where the caller left after some chunks.

    Raises NotAnswered, Silent, and httpx.HTTPError where the connection broke.
    """
    async with client.stream("POST", question.path, json=question.body()) as reply:
        if reply.status_code != 200:
            raise NotAnswered(f"{reply.status_code} {(await reply.aread())[:300]!r}")
        if question.dialect == "openai whole":
            told = json.loads(await reply.aread())
            return str(told["choices"][0]["message"]["content"])
        text, n_chunks = "", 0
        async for line in reply.aiter_lines():
            more = _ollama(line) if question.dialect == "ollama" else _openai(line)
            if more is None:
                return text
            text, n_chunks = text + more, n_chunks + bool(more)
            if leaves_after is not None and n_chunks >= leaves_after:
                return None
        raise Silent(f"after {text!r}")


def _openai(line: str) -> str | None:
    """The text of one line of a stream; None at its end."""
    if not line.startswith("data: "):
        return ""
    if line == "data: [DONE]":
        return None
    told = json.loads(line.removeprefix("data: "))
    if "error" in told:
        raise NotAnswered(f"in mid-stream: {told['error']}")
    choices = told["choices"]
    return str(choices[0]["delta"].get("content") or "") if choices else ""


def _ollama(line: str) -> str | None:
    if not line:
        return ""
    told = json.loads(line)
    if "error" in told:
        raise NotAnswered(f"in mid-stream: {told['error']}")
    # The last line of Ollama's carries no text.
    return None if told["done"] else str(told["message"]["content"])
