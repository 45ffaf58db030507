"""One round of a campaign: streams in all slots, a move or a kill in their middle, what came of it.

It strikes once one of them, drawn at random, has come to a point drawn at random. What a stream
that was hit should have said is what the same question is answered undisturbed. That may be more
than one text: a prompt of which a slot knows the beginning is read in other batches, and rounds
otherwise. So replies of whom nothing befell count too, and a few more are asked for before a text
is called another one.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any, TypeVar

import httpx

from bench.migration.account import FAULTS, Round
from bench.migration.questions import LONG, TEXTS, Form, Question, drawn
from bench.migration.streams import WITHIN_S, Ended, ended
from bench.migration.worlds import World

READY_S = 120.0
RESTED_S = 0.5  # cadence of looking whether a killed process has a successor
UNDER_WAY_S = 0.5  # for a move to hold callers back
APART_S = 0.5  # between the two who come then
MOST_ASKED = 4  # undisturbed replies, before a text is called another one
KEPT_TOKENS = 80  # of an idle conversation of 130, to be found cached

Heard = tuple[Question, Ended]
T = TypeVar("T")

HARBOUR = (
    "Here is what you should know. The harbour has four piers, and each has its own colour. The"
    " first is red, the second is blue, the third is green and the last one is white. Ferries leave"
    " from the blue pier at nine in the morning and come back in the evening. Fishing boats lie at"
    " the white one. Answer in one short sentence: from which pier do the ferries leave?"
)


@dataclass(frozen=True, slots=True)
class Style:
    """How a campaign's rounds are."""

    what: str
    n_tokens: int = 96
    callers: int = 8
    kills: bool = False
    keeps_math: bool = True
    with_others: bool = True
    """Whether not all that is asked for is plain text."""
    is_mixed: bool = False
    """With an idle conversation and late callers beside the streams."""


@dataclass(slots=True)
class Undisturbed:
    """Replies that nothing befell, by their questions."""

    world: World
    style: Style
    _known: dict[str, list[Ended]] = field(default_factory=dict)

    def note(self, question: Question, told: Ended) -> None:
        """One that was not hit."""
        if told.has_end and not told.error:
            self._known.setdefault(question.key, []).append(told)

    def learn(self, questions: Iterable[Question]) -> None:
        """Has a reply to each, those that are unknown asked for at once."""
        unknown = {q.key: q for q in questions if q.key not in self._known}
        with ThreadPoolExecutor(self.style.callers) as threads:
            list(threads.map(lambda question: self._ask(question, 0), unknown.values()))

    def is_one(self, question: Question, told: Ended) -> bool:
        """Whether a reply is one of those, also in what is not its text."""
        for n_asked in range(1, MOST_ASKED):
            if any(_is_alike(told, known) for known in self._known[question.key]):
                return True
            self._ask(question, n_asked)
        return any(_is_alike(told, known) for known in self._known[question.key])

    def nearest(self, question: Question, told: Ended) -> Ended:
        """The one that has most of its text in common."""
        known = self._known[question.key]
        return max(known, key=lambda one: _n_common(one.text, told.text))

    def _ask(self, question: Question, n_asked: int) -> None:
        """Each time in a slot that knows something else of it: nothing, all, another beginning."""
        if n_asked == 2:
            ended(self.world.base, self.world.model, TEXTS[-1], n_tokens=1)
        n_tokens = self.style.n_tokens
        told = ended(self.world.base, self.world.model, question, n_tokens=n_tokens)
        assert told.has_end, f"{question.key}: {told}"
        assert not told.error, f"{question.key}: {told}"
        self.note(question, told)


def _is_alike(one: Ended, other: Ended) -> bool:
    return one.text == other.text and one.frame == other.frame


def _n_common(one: str, other: str) -> int:
    """Characters that two texts begin with."""
    differs = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differs, min(len(one), len(other)))


class _Point:
    """A moment in one stream; who waits for it goes on too where that stream ends before."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self.reached = Event()

    def came(self, n_pieces: int) -> None:
        """So many pieces are there."""
        if n_pieces >= self._pieces:
            self.reached.set()


def played(style: Style, world: World, alone: Undisturbed, *, seed: int, number: int) -> Round:
    """One round."""
    chance = random.Random(f"{style.what} {seed} {number}")
    began_at = time.time()
    asked = [_drawn(style, chance) for _ in range(style.callers)]
    point = _Point(chance.randrange(style.n_tokens // 5))
    with ThreadPoolExecutor(len(asked) + 2) as threads:
        told = [
            threads.submit(_heard, style, world, question, point if n == 0 else None)
            for n, question in enumerate(asked)
        ]
        told[0].add_done_callback(lambda _: point.reached.set())
        point.reached.wait(WITHIN_S)
        beside = _Beside(style, world, threads, chance) if style.is_mixed else None
        move_s = _struck(style, world, number)
        heard = [one.result(2 * WITHIN_S) for one in told]
        heard += beside.heard() if beside is not None else ()
    lost = beside.lost_caches() if beside is not None else ()
    hit = {event["request_id"]: event for event in world.resumed(since=began_at)}
    return _round(
        style, alone, heard, hit, seed=seed, number=number, move_s=move_s, lost_caches=lost
    )


def _drawn(style: Style, chance: random.Random) -> Question:
    if style.is_mixed:
        return chance.choice(LONG)
    return drawn(chance, with_others=style.with_others)


class _Beside:
    """A conversation in the first slot behind the streams', and who comes once that is idle.

    Its next turn comes first, and so to its slot: the lowest that is free.
    """

    def __init__(
        self, style: Style, world: World, threads: ThreadPoolExecutor, chance: random.Random
    ) -> None:
        said, _ = _turn(world, [])
        more = [{"role": "assistant", "content": said}, {"role": "user", "content": "And boats?"}]
        self._next = threads.submit(self._later, 0.0, lambda: _turn(world, more))
        question = chance.choice(TEXTS)
        self._late = threads.submit(
            self._later, APART_S, lambda: _heard(style, world, question, None)
        )

    @staticmethod
    def _later(after_s: float, ask: Callable[[], T]) -> T:
        """What is asked once the move is under way."""
        time.sleep(UNDER_WAY_S + after_s)
        return ask()

    def heard(self) -> list[Heard]:
        """Of the late caller."""
        return [self._late.result(WITHIN_S)]

    def lost_caches(self) -> tuple[str, ...]:
        """Of the conversation, where it had to be read again."""
        _, cached = self._next.result(WITHIN_S)
        return () if cached >= KEPT_TOKENS else (f"only {cached} tokens were cached",)


def _heard(style: Style, world: World, question: Question, point: _Point | None) -> Heard:
    came = point.came if point is not None else None
    return question, ended(world.base, world.model, question, n_tokens=style.n_tokens, came=came)


# what strikes


def _struck(style: Style, world: World, number: int) -> float | None:
    """Has the model move, and says how long that took; or kills its process."""
    if style.kills:
        _kill(world)
        return None
    began_s = time.monotonic()
    world.move(world.moves[number % len(world.moves)])
    return time.monotonic() - began_s


def _kill(world: World) -> None:
    """SIGKILL to the process that serves, and until there is another."""
    (before,) = {each["pid"] for each in _until_ready(world)}
    with suppress(ProcessLookupError):
        os.kill(before, signal.SIGKILL)
    give_up_s = time.monotonic() + READY_S
    while before in {each["pid"] for each in _until_ready(world)}:
        assert time.monotonic() < give_up_s, "the killed process is still told of"
        time.sleep(RESTED_S)


def _until_ready(world: World) -> list[dict[str, Any]]:
    give_up_s = time.monotonic() + READY_S
    while not (found := world.ready()):
        assert time.monotonic() < give_up_s, "no process serves"
        time.sleep(RESTED_S)
    return found


# an idle conversation


def _turn(world: World, more: Sequence[dict[str, str]]) -> tuple[str, int]:
    """What is said next in it, and how many tokens were found cached."""
    body = {
        "model": world.model, "messages": [{"role": "user", "content": HARBOUR}, *more],
        "temperature": 0, "max_tokens": 12,
    }  # fmt: skip
    with httpx.Client(base_url=world.base, timeout=WITHIN_S, trust_env=False) as client:
        reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return str(reply["choices"][0]["message"]["content"]), int(cached)


# what is told of it


def _round(
    style: Style,
    alone: Undisturbed,
    heard: Sequence[Heard],
    hit: Mapping[str, Mapping[str, Any]],
    *,
    seed: int,
    number: int,
    move_s: float | None,
    lost_caches: tuple[str, ...],
) -> Round:
    for question, told in heard:
        if told.request_id not in hit:
            alone.note(question, told)
    if style.keeps_math:
        alone.learn(question for question, told in heard if told.request_id in hit)
    faults: dict[str, list[str]] = {}
    for question, told in heard:
        if fault := _fault(style, alone, question, told, is_hit=told.request_id in hit):
            faults.setdefault(fault[0], []).append(f"{question.key}: {fault[1]}")
    lists = {name: tuple(faults.get(name, ())) for name in FAULTS}
    return Round(
        what=style.what,
        seed=seed,
        number=number,
        streams=len(heard),
        ways=dict(Counter(str(event["way"]) for event in hit.values())),
        failed=lists["failed"],
        silent=lists["silent"],
        differing=lists["differing"],
        broken=lists["broken"],
        misframed=lists["misframed"],
        miscounted=lists["miscounted"],
        lost_caches=lost_caches,
        pauses_s=tuple(float(event["pause_s"]) for event in hit.values()),
        gaps_s=tuple(one.longest_gap_s for _, one in heard if one.request_id in hit),
        move_s=move_s,
    )


def _fault(
    style: Style, alone: Undisturbed, question: Question, told: Ended, *, is_hit: bool
) -> tuple[str, str] | None:
    """What is wrong with a reply, if anything is, and in which way."""
    if told.error:
        return "failed", told.error[:300]
    if not told.has_end:
        return "silent", repr(told.text[-80:])
    if not is_hit:
        return None
    if not style.keeps_math:
        return _miscounted(alone.world, question, told)
    if alone.is_one(question, told):
        return None
    due = alone.nearest(question, told)
    if told.text == due.text:
        return "misframed", f"{told.frame}, not {due.frame}"
    kind = "broken" if question.form is Form.MANY_BYTES else "differing"
    return kind, f"{told.text!r}, not {due.text!r}"


def _miscounted(world: World, question: Question, told: Ended) -> tuple[str, str] | None:
    """A text in words of its own is to be of as many tokens as it tells, one for its end apart."""
    if question.form is not Form.TEXT or not told.n_tokens:
        return None
    counted = world.n_tokens(told.text)
    if told.n_tokens - counted in (0, 1):
        return None
    return "miscounted", f"{counted} tokens, told {told.n_tokens}: {told.text!r}"
