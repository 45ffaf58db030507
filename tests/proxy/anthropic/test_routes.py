from pathlib import Path

import pytest

from planners.model import ModelId
from proxy import errors
from proxy.errors import Dialect, PromptTooLong
from supervisor.leases.lease import LineFull
from tests.fakes.events import named_events
from tests.fakes.fleet_of_one import fleet_of_one
from tests.fakes.serving import serving

ASKED = {
    "model": "tiny",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "one two three"}],
}


async def test_a_stream_has_its_events_in_anthropics_order(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path, faults={"tokens": 2}) as fleet, serving(fleet) as at:
        reply = await at.client.post("/v1/messages", json={**ASKED, "stream": True})

    start, *rest = named_events(reply.text)
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    assert start["message"]["usage"] == {**usage, "output_tokens": 0}
    assert (start["message"]["content"], start["message"]["stop_reason"]) == ([], None)
    assert start["message"]["id"].startswith("msg_")
    assert rest == [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "one"},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": " two"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**usage, "output_tokens": 2},
        },
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    ("more", "text", "reason", "sequence"),
    [
        ({}, "one two three one", "end_turn", None),
        ({"max_tokens": 2}, "one two", "max_tokens", None),
        ({"stop_sequences": ["thr", "x"]}, "one two ", "stop_sequence", "thr"),
        ({"stop_sequences": ["onex"]}, "one two three one", "end_turn", None),
    ],
)
async def test_a_message_says_why_it_stopped(
    tmp_path: Path, more: dict[str, object], text: str, reason: str, sequence: str | None
) -> None:
    async with fleet_of_one(tmp_path, faults={"tokens": 4}) as fleet, serving(fleet) as at:
        whole = (await at.client.post("/v1/messages", json={**ASKED, **more})).json()
        stream = await at.client.post("/v1/messages", json={**ASKED, **more, "stream": True})

    assert whole["content"] == [{"type": "text", "text": text}]
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    *_, delta, _ = named_events(stream.text)
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


async def test_what_comes_after_a_stop_sequence_is_not_waited_for(tmp_path: Path) -> None:
    faults = {"tokens": 100_000, "token_s": 0.01}
    asked = {**ASKED, "max_tokens": 100_000, "stop_sequences": ["three"]}
    async with fleet_of_one(tmp_path, faults=faults) as fleet, serving(fleet) as at:
        reply = await at.client.post("/v1/messages", json=asked, timeout=10)

    assert reply.json()["stop_sequence"] == "three"
    assert reply.json()["usage"]["output_tokens"] < 100
    assert fleet.answers == 1


async def test_headers_of_anthropics_clients_are_taken_and_given(tmp_path: Path) -> None:
    headers = {
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "x-2026",
        "x-api-key": "none",
        "x-request-id": "r1",
    }
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post("/v1/messages?beta=true", json=ASKED, headers=headers)

    assert (reply.status_code, reply.headers["request-id"]) == (200, "r1")


def test_a_full_line_is_anthropics_own_status_which_its_clients_try_again() -> None:
    exc = LineFull(model_id=ModelId("m"), waiting=3, retry_after_s=1.2)
    said = errors.answer(exc, Dialect.ANTHROPIC)

    assert said is not None
    assert (said.status, said.headers) == (529, ((b"retry-after", b"2"),))
    assert b'"type":"overloaded_error"' in errors.body(said, Dialect.ANTHROPIC)


def test_too_long_a_prompt_is_told_in_the_words_that_agents_look_for() -> None:
    said = errors.answer(PromptTooLong(model="m", n_prompt=9, n_ctx=8), Dialect.ANTHROPIC)

    assert said is not None
    told = errors.body(said, Dialect.ANTHROPIC)
    assert b"prompt is too long: 9 tokens > 8 maximum; the prompt of 9 tokens" in told
