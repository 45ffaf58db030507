"""Replies that two real children write one after the other, against those that one writes."""

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planners.moving.migration import is_carried
from proxy.bodies import amended
from proxy.continuity.continuation import (
    Continue,
    Finish,
    Impossible,
    Replay,
    Resend,
    Way,
    asked_by,
    way_on,
    written,
)
from proxy.continuity.delivered import Delivered, Kind, Progress, Told, pieces, read_chunk, told_by
from proxy.continuity.splice import Splice, ending
from supervisor.moving.slots import SavedSlot, SlotShelf
from tests.fakes.chat_templates import HERMES, QWEN, WEATHER, WEATHER_CHAT, with_template
from tests.fakes.real_child import RealChild, real_child
from tests.fakes.real_engine import quickstart_model

pytestmark = [pytest.mark.llama, pytest.mark.timeout(300)]

SAID = "List the colours of the rainbow and say something about each of them."
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": SAID}], "max_tokens": 40}
TEXT: dict[str, Any] = {"prompt": "The lighthouse stood on a hill, and", "max_tokens": 40}
RAW: dict[str, Any] = {"prompt": "The lighthouse stood on a hill, and", "n_predict": 40}
PLAIN = [(Kind.CHAT, CHAT), (Kind.TEXT, TEXT), (Kind.COMPLETION, RAW)]
GREEDY = {"temperature": 0, "seed": 7}
SAMPLED = {"temperature": 0.8, "seed": 7}
ALWAYS = {"stream": True, "return_progress": True, "stream_options": {"include_usage": True}}
THREAD = ThreadPoolExecutor(1, "slots")


@dataclass(frozen=True)
class Pair:
    """The child that is lost, and the one that goes on."""

    first: RealChild
    second: RealChild
    shelf: SlotShelf


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path leaves room for socket names."""
    folder = Path(tempfile.mkdtemp(prefix="seam-"))
    yield folder
    shutil.rmtree(folder)


@asynccontextmanager
async def pair(folder: Path, *, template: str | None = None) -> AsyncIterator[Pair]:
    model = quickstart_model()
    if template is not None:
        model = with_template(model, template, folder / "another.gguf")
    async with (
        real_child(folder, model=model, context=1024) as first,
        real_child(folder, model=model, context=1024) as second,
    ):
        shelf = SlotShelf(quota_bytes=1 << 30, thread=THREAD, keep_free_bytes=0)
        yield Pair(first, second, shelf)


def framed(events: list[bytes]) -> bytes:
    return b"".join(b"data: " + event + b"\n\n" for event in events)


def told_of(events: list[bytes], kind: Kind) -> Told:
    delivered = Delivered()
    delivered.add(framed(events))
    return told_by(delivered, kind)


def is_progress(event: bytes) -> bool:
    """Of the prompt alone: the child's echo of a beginning of the caller's own has it too."""
    return b'"prompt_progress":' in event and not pieces(read_chunk(event), Kind.CHAT)


@dataclass(frozen=True)
class GoneOn:
    """What the caller of a reply with a seam got."""

    way: Way
    told: Told
    events: list[bytes]


async def alone(pair: Pair, kind: Kind, body: dict[str, Any]) -> Told:
    await pair.first.client.post("/slots/0?action=erase")  # a cached prompt rounds otherwise
    events = await pair.first.events(kind.value.decode(), encoded(body))
    return told_of([event for event in events if not is_progress(event)], kind)


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps({**body, **ALWAYS, "id_slot": 0, "cache_prompt": True}).encode()


async def gone_on(
    pair: Pair,
    kind: Kind,
    body: dict[str, Any],
    *,
    cut: int,
    keeps_math: bool = True,
    is_restored: bool = False,
) -> GoneOn:
    """The reply to `body`, of which `cut` events of the first child came before it was lost."""
    path, sent = kind.value.decode(), encoded(body)
    await pair.first.client.post("/slots/0?action=erase")
    progress = [Progress()]
    events = await pair.first.events(path, sent, n=cut)
    progress += [p for e in events if (p := read_chunk(e).prompt_progress) is not None]
    delivered = [event for event in events if not is_progress(event)]
    told, asked = told_of(delivered, kind), asked_by(sent)
    assert asked is not None
    saved = await carried(pair) if is_restored else None
    if saved is None:
        await pair.second.client.post("/slots/0?action=erase")
    counted = await pair.second.ask("/tokenize", {"content": written(asked, told)})
    way = way_on(
        asked,
        told,
        keeps_math=keeps_math,
        is_restored=is_restored,
        sent_tokens=len(counted["tokens"]),
    )
    match way:
        case Finish():
            rest = ending(way, told, prompt=progress[-1], wants_usage=True)
            return GoneOn(way, told_of(delivered + rest, kind), delivered + rest)
        case Impossible():
            return GoneOn(way, told, delivered)
        case Resend() | Replay() | Continue():
            splice = Splice(way, told, prompt=progress[-1])
            extra = b'"id_slot":0' if isinstance(way, Resend) else way.extra or b'"id_slot":0'
            again = await pair.second.events(path, b"".join(amended(sent, extra)))
            rest = [taken for e in again if (taken := splice.take(e)) is not None]
    if saved is not None:
        assert splice.cached_tokens is not None
        assert splice.prompt_tokens is not None
        assert is_carried(
            restored_tokens=saved.n_tokens,
            cached_tokens=splice.cached_tokens,
            prompt_tokens=splice.prompt_tokens,
        )
        assert splice.prompt_tokens - splice.cached_tokens == 1
    return GoneOn(way, told_of(delivered + rest, kind), delivered + rest)


async def carried(pair: Pair) -> SavedSlot:
    await pair.first.until_idle()
    saved = await pair.shelf.save(pair.first.door, 0, expected_bytes=64 << 20, within_s=30)
    saved = pair.shelf.moved(saved, pair.second.folder)
    await pair.shelf.restore(pair.second.door, 0, saved, within_s=30)
    pair.shelf.remove(saved)
    return saved


def assert_one_reply(found: GoneOn, whole: Told) -> None:
    """The caller sees what one child alone would have written, under one id."""
    assert found.told.texts == whole.texts
    assert found.told.finishes == whole.finishes
    assert found.told.is_done
    assert found.told.roles == whole.roles
    assert found.told.usage == whole.usage
    chunks = [read_chunk(event) for event in found.events if event != b"[DONE]"]
    assert len({chunk.id for chunk in chunks}) == 1
    roles = [c for chunk in chunks for c in chunk.choices if c.delta.role is not None]
    assert len(roles) == len(whole.roles)


@pytest.mark.parametrize(("kind", "body"), PLAIN, ids=lambda x: getattr(x, "name", ""))
async def test_a_reply_whose_cache_went_along_is_the_one_that_one_child_writes(
    short_dir: Path, kind: Kind, body: dict[str, Any]
) -> None:
    told = {**body, **GREEDY}
    async with pair(short_dir) as children:
        whole = await alone(children, kind, told)
        for cut in (3, 9, 17, 30):
            found = await gone_on(children, kind, told, cut=cut, is_restored=True)

            assert isinstance(found.way, Continue)
            assert found.way.is_exact
            assert_one_reply(found, whole)


@pytest.mark.parametrize(("kind", "body"), PLAIN, ids=lambda x: getattr(x, "name", ""))
@pytest.mark.parametrize("chance", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_a_reply_whose_child_died_is_written_again_and_told_only_from_where_it_broke(
    short_dir: Path, kind: Kind, body: dict[str, Any], chance: dict[str, Any]
) -> None:
    told = {**body, **chance}
    async with pair(short_dir) as children:
        whole = await alone(children, kind, told)
        for cut in (3, 17):
            found = await gone_on(children, kind, told, cut=cut)

            assert isinstance(found.way, Replay)
            assert_one_reply(found, whole)


@pytest.mark.parametrize(("kind", "body"), PLAIN, ids=lambda x: getattr(x, "name", ""))
async def test_on_other_math_a_reply_goes_on_from_its_text_and_its_counts_add_up(
    short_dir: Path, kind: Kind, body: dict[str, Any]
) -> None:
    told = {**body, **SAMPLED}
    async with pair(short_dir) as children:
        whole = await alone(children, kind, told)
        found = await gone_on(children, kind, told, cut=9, keeps_math=False)

    assert isinstance(found.way, Continue)
    assert not found.way.is_exact
    assert found.told.is_done
    assert found.told.content[:20] == whole.content[:20]
    if found.told.usage is not None and found.told.finishes == {0: "length"}:
        assert found.told.usage == whole.usage


async def test_every_form_of_a_chats_reply_is_whole_after_a_replay(short_dir: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    forms: dict[str, dict[str, Any]] = {
        "JSON schema": {
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}
        },
        "log probabilities": {"logprobs": True, "top_logprobs": 2},
        "emoji": {"messages": [{"role": "user", "content": "Repeat: 🌈 虹 🦄 ü 🌈 虹 🦄 ü"}]},
        "a stop string": {"stop": ["Red", "green", "."]},
    }
    async with pair(short_dir) as children:
        for name, more in forms.items():
            told = {**CHAT, **GREEDY, **more}
            whole = await alone(children, Kind.CHAT, told)
            for cut in (2, 6):
                found = await gone_on(children, Kind.CHAT, told, cut=cut)

                assert isinstance(found.way, Replay | Finish), name
                assert_one_reply(found, whole)


async def test_a_stop_string_on_the_seam_ends_the_reply_as_it_would_have(short_dir: Path) -> None:
    async with pair(short_dir) as children:
        words = (await alone(children, Kind.CHAT, {**CHAT, **GREEDY})).content.split(" ")
        told = {**CHAT, **GREEDY, "stop": [" ".join(words[8:11])]}
        whole = await alone(children, Kind.CHAT, told)
        assert whole.finishes == {0: "stop"}
        for cut in range(5, 9):
            found = await gone_on(children, Kind.CHAT, told, cut=cut, is_restored=True)

            assert_one_reply(found, whole)


async def test_text_that_a_stop_string_cut_within_a_token_is_written_again(
    short_dir: Path,
) -> None:
    async with pair(short_dir) as children:
        text = (await alone(children, Kind.CHAT, {**CHAT, **GREEDY})).content
        told = {**CHAT, **GREEDY, "stop": [" ".join(text.split(" ")[8:11])]}
        whole = await alone(children, Kind.CHAT, told)
        assert whole.content.endswith(" ")
        # A role, six words, two that were held back as one, and the blank before the stop string.
        found = await gone_on(children, Kind.CHAT, told, cut=9)

    assert found.events[8].count(b'"content":" "') == 1
    assert_one_reply(found, whole)


async def test_a_tool_call_goes_on_under_its_first_id(short_dir: Path) -> None:
    told = {
        "messages": WEATHER_CHAT,
        "tools": [{"type": "function", "function": WEATHER}],
        "max_tokens": 60,
        **GREEDY,
    }
    async with pair(short_dir, template=HERMES) as children:
        whole = await alone(children, Kind.CHAT, told)
        assert whole.finishes == {0: "tool_calls"}
        for cut in (2, 3, 6):
            found = await gone_on(children, Kind.CHAT, told, cut=cut)

            assert isinstance(found.way, Replay)
            assert_one_reply(found, whole)
            named = [event for event in found.events if b'"name":"weather"' in event]
            assert len(named) == len(found.told.call_ids) == 1
        again = await gone_on(children, Kind.CHAT, told, cut=6, keeps_math=False)

    assert isinstance(again.way, Replay)
    assert "a tool call was begun" in again.way.otherwise
    assert_one_reply(again, whole)


async def test_a_thought_is_gone_on_with_by_thinking_it_again(short_dir: Path) -> None:
    told = {**CHAT, **GREEDY}
    async with pair(short_dir, template=QWEN) as children:
        whole = await alone(children, Kind.CHAT, told)
        assert whole.has_reasoning
        for cut in (3, 12):
            found = await gone_on(children, Kind.CHAT, told, cut=cut)

            assert isinstance(found.way, Replay)
            assert_one_reply(found, whole)


@pytest.mark.parametrize(("kind", "body"), PLAIN, ids=lambda x: getattr(x, "name", ""))
async def test_of_a_reply_that_lacks_nothing_but_its_end_the_end_is_written(
    short_dir: Path, kind: Kind, body: dict[str, Any]
) -> None:
    short = {"max_tokens": 6} if kind is not Kind.COMPLETION else {"n_predict": 6}
    told = {**body, **GREEDY, **short}
    async with pair(short_dir) as children:
        whole = await alone(children, kind, told)
        texts = 6 + (kind is Kind.CHAT)
        found = await gone_on(children, kind, told, cut=texts, is_restored=True)

    assert found.way == Finish("length", 6)
    assert_one_reply(found, whole)


async def test_a_reply_of_which_only_the_role_was_told_begins_anew(short_dir: Path) -> None:
    told = {**CHAT, **GREEDY}
    async with pair(short_dir) as children:
        whole = await alone(children, Kind.CHAT, told)
        for cut in (0, 1):
            found = await gone_on(children, Kind.CHAT, told, cut=cut)

            assert isinstance(found.way, Resend)
            assert_one_reply(found, whole)


async def test_a_beginning_of_the_callers_own_is_gone_on_with(short_dir: Path) -> None:
    begun = {"role": "assistant", "content": "The first colour"}
    told = {**CHAT, **GREEDY, "messages": [*CHAT["messages"], begun]}
    plain = {**told, "continue_final_message": True, "add_generation_prompt": False}
    async with pair(short_dir) as children:
        for body in (told, plain):
            whole = await alone(children, Kind.CHAT, body)
            found = await gone_on(children, Kind.CHAT, body, cut=9, is_restored=True)

            assert isinstance(found.way, Continue)
            assert found.told.texts == whole.texts
