"""The two dialects that are asked as a chat, before a child that goes wrong; real processes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.events import named_events
from tests.fakes.fleet_of_one import FAKE, FleetOfOne, fleet_of_one, model_info, served_model
from tests.fakes.serving import Served, serving

WORDS = "one two three"
MESSAGES = {"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": WORDS}]}
RESPONSES = {"model": "tiny", "input": WORDS}
DIALECTS = pytest.mark.parametrize(
    ("path", "told"),
    [("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES)],
    ids=["anthropic", "responses"],
)
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
SOON_S = 5.0


@asynccontextmanager
async def door(
    folder: Path, *, n_ctx: int = 4096, **faults: object
) -> AsyncIterator[tuple[FleetOfOne, Served]]:
    """A proxy before one fake child with these faults."""
    async with fleet_of_one(folder, faults=faults, n_ctx=n_ctx) as fleet, serving(fleet) as at:
        yield fleet, at


def error_in(reply: httpx.Response) -> dict[str, Any]:
    """What went wrong, of an error reply or of the last event of a stream."""
    told = named_events(reply.text)[-1] if reply.text.startswith("event: ") else reply.json()
    error: dict[str, Any] = (told.get("response") or told)["error"]
    return error


def text_of(reply: httpx.Response) -> str:
    """The text that was told."""
    if not reply.text.startswith("event: "):
        told = reply.json()
        content = told["content"] if "content" in told else told["output"][0]["content"]
        return str(content[0]["text"])
    deltas = [event.get("delta") for event in named_events(reply.text)]
    parts = [delta.get("text") if isinstance(delta, dict) else delta for delta in deltas]
    return "".join(part for part in parts if part)


@DIALECTS
@STREAMED
async def test_a_reply_is_told(
    tmp_path: Path, path: str, told: dict[str, Any], stream: bool
) -> None:
    async with door(tmp_path, tokens=4) as (fleet, at):
        reply = await at.client.post(path, json={**told, "stream": stream})

    assert reply.status_code == 200
    assert text_of(reply) == "one two three one"
    assert (fleet.usages[0].prompt_tokens, fleet.usages[0].decode_tokens) == (3, 4)
    assert fleet.answers == 1


@DIALECTS
@STREAMED
async def test_progress_of_the_prompt_does_not_leak(
    tmp_path: Path, path: str, told: dict[str, Any], stream: bool
) -> None:
    async with door(tmp_path) as (_, at):
        asked = {**told, "stream": stream, "return_progress": True}
        reply = await at.client.post(path, json=asked)

    assert "progress" not in reply.text.replace("in_progress", "")
    assert "timings" not in reply.text


@DIALECTS
@STREAMED
async def test_a_child_that_dies_before_any_token_is_replaced_unseen(
    tmp_path: Path, path: str, told: dict[str, Any], stream: bool
) -> None:
    faults = tmp_path / "faults"
    faults.write_text(json.dumps({"die_before_reply": True, "launches": 1}))
    argv = (*FAKE, "--fake-faults", str(faults))
    async with fleet_of_one(tmp_path, argv=argv) as fleet, serving(fleet) as at:
        reply = await at.client.post(path, json={**told, "stream": stream})

    assert reply.status_code == 200
    assert "three" in text_of(reply)
    assert fleet.launches == 2


@DIALECTS
async def test_a_child_that_dies_twice_is_told_and_not_tried_for_ever(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    async with door(tmp_path, die_before_reply=True) as (fleet, at):
        reply = await at.client.post(path, json={**told, "stream": True})

    assert reply.status_code == 502
    assert "2 times on this request" in error_in(reply)["message"]
    assert reply.headers["x-should-retry"] == "false"
    assert fleet.launches == 2


@DIALECTS
@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"die_at_byte": 1500}, "unexpectedly stopped"),
        ({"cut_at_byte": 1500}, "unexpectedly stopped"),
        ({"error_at_token": 2}, "Context size has been exceeded"),
        ({"end_at_token": 2}, "ended before its end"),
    ],
    ids=["dies", "cuts", "fails", "ends"],
)
async def test_a_stream_that_breaks_off_ends_with_the_dialects_error(
    tmp_path: Path, path: str, told: dict[str, Any], faults: dict[str, Any], says: str
) -> None:
    async with door(tmp_path, token_s=0.05, **faults) as (_, at):
        reply = await at.client.post(path, json={**told, "stream": True})

    events = named_events(reply.text)
    assert reply.status_code == 200
    assert "one" in text_of(reply)
    assert says in error_in(reply)["message"]
    assert events[-1]["type"] == ("error" if path == "/v1/messages" else "response.failed")
    assert [event["type"] for event in events].count(events[-1]["type"]) == 1


@DIALECTS
async def test_a_whole_reply_that_the_child_cannot_end_is_an_error(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    async with door(tmp_path, error_at_token=2) as (_, at):
        reply = await at.client.post(path, json=told)

    assert reply.status_code == 500
    assert "Context size has been exceeded" in error_in(reply)["message"]


@DIALECTS
async def test_a_daemon_that_stops_says_so_in_the_stream(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    async with door(tmp_path, token_s=0.05, tokens=1000) as (_, at):
        asked = {**told, "stream": True, "max_tokens": 1000}
        async with at.client.stream("POST", path, json=asked) as reply:
            text = ""
            async for part in reply.aiter_text():
                text += part
                if "one" in text:
                    at.stop.set()

    last = named_events(text)[-1]
    assert last["type"] == ("error" if path == "/v1/messages" else "response.failed")


@DIALECTS
@STREAMED
async def test_a_caller_who_leaves_frees_the_slot(
    tmp_path: Path, path: str, told: dict[str, Any], stream: bool
) -> None:
    async with door(tmp_path, token_s=0.01, tokens=10_000) as (fleet, at):
        await fleet.load(fleet.model.model_id)
        asked = {**told, "stream": stream, "max_tokens": 10_000}
        call = asyncio.create_task(at.client.post(path, json=asked))
        async with asyncio.timeout(SOON_S):
            while not any(await fleet.slots()):
                await asyncio.sleep(0.01)  # cadence
        call.cancel()
        async with asyncio.timeout(SOON_S):
            while any(await fleet.slots()):
                await asyncio.sleep(0.01)  # cadence

    assert fleet.leases == 0


@DIALECTS
async def test_an_unknown_model_is_a_404(tmp_path: Path, path: str, told: dict[str, Any]) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post(path, json={**told, "model": "nope"})

    assert (reply.status_code, error_in(reply)["type"]) == (404, "not_found_error")
    assert "'nope' not found" in error_in(reply)["message"]
    assert fleet.launches == 0


@DIALECTS
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"model": None}, "model is required"),
        ({"stream": "yes"}, "stream"),
        ({"keep_alive": "1d"}, "unit"),
    ],
)
async def test_a_bad_request_is_a_400_and_loads_nothing(
    tmp_path: Path, path: str, told: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post(path, json={**told, **more})

    assert (reply.status_code, error_in(reply)["type"]) == (400, "invalid_request_error")
    assert says in error_in(reply)["message"]
    assert fleet.launches == 0


@DIALECTS
async def test_a_body_of_too_many_values_is_refused(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as at:
        reply = await at.client.post(path, json={**told, "more": [0] * 300_000})

    assert reply.status_code == 400
    assert "holds more than 300000 values" in error_in(reply)["message"]


@DIALECTS
async def test_a_model_for_embeddings_is_refused(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    model = served_model(info=model_info(pooling="mean"))
    async with serving(FleetOfOne(model, tmp_path)) as at:
        reply = await at.client.post(path, json=told)

    assert reply.status_code == 400
    assert "does not support completions" in error_in(reply)["message"]


@DIALECTS
async def test_too_long_a_prompt_is_refused_with_the_numbers(
    tmp_path: Path, path: str, told: dict[str, Any]
) -> None:
    key = "input" if "input" in told else "messages"
    long = "word " * 200 if key == "input" else [{"role": "user", "content": "word " * 200}]
    async with door(tmp_path, n_ctx=128) as (_, at):
        reply = await at.client.post(path, json={**told, key: long})
        bound = await at.client.post(path, json={**told, key: long, "num_ctx": 100})

    for refused in (reply, bound):
        assert (refused.status_code, error_in(refused)["type"]) == (400, "invalid_request_error")
    assert "the prompt of 201 tokens exceeds the context of 128 " in error_in(reply)["message"]
    assert "context of 100" in error_in(bound)["message"]


@DIALECTS
async def test_keep_alive_is_passed_on(tmp_path: Path, path: str, told: dict[str, Any]) -> None:
    async with door(tmp_path) as (fleet, at):
        await at.client.post(path, json={**told, "keep_alive": "1m30s"})

    assert fleet.keep_alive_s == 90.0
