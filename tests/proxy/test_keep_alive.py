"""Comments in a stream that says nothing yet, and what becomes of the reply after them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from msgspec.structs import replace

from proxy.anthropic.replies import PING
from proxy.child.sse import KEEP_ALIVE
from tests.fakes.events import named_events
from tests.fakes.fleet_of_one import fleet_of_one
from tests.fakes.real_engine import engine
from tests.fakes.serving import SETTINGS, serving

OFTEN = replace(SETTINGS, keep_alive_comments_s=0.05)
CHAT = "/v1/chat/completions"
TOLD: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "one two"}],
    "prompt": "one two",
    "max_tokens": 2,
    "stream": True,
}
SLOW = pytest.mark.parametrize("slow", [{"load_s": 0.4}, {"prompt_s": 0.4}], ids=["load", "prompt"])


@pytest.mark.parametrize("route", [CHAT, "/v1/completions"])
@SLOW
async def test_a_stream_says_that_it_is_coming_and_then_is_the_childs_own(
    tmp_path: Path, route: str, slow: dict[str, float]
) -> None:
    async with (
        fleet_of_one(tmp_path, faults=slow) as fleet,
        serving(fleet, settings=OFTEN) as at,
    ):
        reply = await at.client.post(route, json=TOLD)

    comments, _, events = reply.content.rpartition(KEEP_ALIVE)
    assert comments == KEEP_ALIVE * comments.count(KEEP_ALIVE)
    assert reply.content.startswith(KEEP_ALIVE)
    assert reply.headers["content-type"] == "text/event-stream"
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")
    assert b"\n:" not in events
    assert b"prompt_progress" not in events


OTHERS = pytest.mark.parametrize(
    ("route", "sign", "last"),
    [
        ("/v1/messages", PING, '"type":"message_stop"'),
        ("/v1/responses", KEEP_ALIVE, '"type":"response.completed"'),
        ("/completion", KEEP_ALIVE, '"stop":true'),
    ],
)


@OTHERS
@SLOW
async def test_the_other_streams_of_events_say_so_in_their_own_way(
    tmp_path: Path, route: str, sign: bytes, last: str, slow: dict[str, float]
) -> None:
    async with (
        fleet_of_one(tmp_path, faults=slow) as fleet,
        serving(fleet, settings=OFTEN) as at,
    ):
        reply = await at.client.post(route, json={**TOLD, "input": "one two", "n_predict": 2})

    signs, _, events = reply.content.rpartition(sign)
    assert reply.content.startswith(sign)
    assert signs == sign * signs.count(sign)
    assert last in events.decode().split("\n\n")[-2]
    assert b'"error":{' not in events
    assert b"prompt_progress" not in events


@OTHERS
@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"load_s": 0.4, "die_while_loading": "crash"}, "unexpectedly stopped"),
        ({"prompt_s": 0.4, "error_at_token": 0}, "Context size has been exceeded"),
    ],
    ids=["a load that fails", "an error of the child's"],
)
async def test_an_error_after_a_sign_of_life_is_the_dialects_last_event(
    tmp_path: Path, route: str, sign: bytes, last: str, faults: dict[str, Any], says: str
) -> None:
    async with (
        fleet_of_one(tmp_path, faults=faults) as fleet,
        serving(fleet, settings=OFTEN) as at,
    ):
        reply = await at.client.post(route, json={**TOLD, "input": "one two"})

    heads = {"/v1/messages": "event: error\n", "/v1/responses": "event: response.failed\n"}
    *_, event, end = reply.text.split("\n\n")
    assert (reply.status_code, end) == (200, "")
    assert reply.content.startswith(sign)
    assert event.startswith(heads.get(route, 'data: {"error":'))
    assert says in event
    assert last not in reply.text


@pytest.mark.parametrize(
    ("route", "more"),
    [
        (CHAT, {"stream": False}),
        ("/v1/messages", {"stream": False}),
        ("/api/chat", {}),
        ("/api/generate", {}),
    ],
    ids=["whole", "a whole message", "Ollama's chat", "generate"],
)
async def test_what_knows_no_comments_gets_none(
    tmp_path: Path, route: str, more: dict[str, Any]
) -> None:
    async with (
        fleet_of_one(tmp_path, faults={"load_s": 0.2, "prompt_s": 0.2}) as fleet,
        serving(fleet, settings=OFTEN) as at,
    ):
        reply = await at.client.post(route, json={**TOLD, **more})

    assert [json.loads(line) for line in reply.text.splitlines()]


async def test_a_stream_that_begins_in_time_has_no_comment(tmp_path: Path) -> None:
    patient = replace(SETTINGS, keep_alive_comments_s=30)
    async with fleet_of_one(tmp_path) as fleet, serving(fleet, settings=patient) as at:
        reply = await at.client.post(CHAT, json=TOLD)

    assert reply.text.startswith("data: ")


@pytest.mark.parametrize(
    ("faults", "more", "code"),
    [
        ({"load_s": 0.4, "die_while_loading": "crash"}, {}, "request_ends_model"),
        ({"load_s": 0.4}, {"messages": [{"content": "word " * 5000}]}, "context_length_exceeded"),
        ({"load_s": 0.4, "die_before_reply": True}, {}, "request_ends_model"),
        ({"prompt_s": 0.4, "error_at_token": 0}, {}, "model_failed"),
    ],
    ids=["a load that fails", "too long a prompt", "a lost child", "an error of the child's"],
)
async def test_an_error_after_a_comment_is_an_event_that_ends_the_stream(
    tmp_path: Path, faults: dict[str, Any], more: dict[str, Any], code: str
) -> None:
    async with (
        fleet_of_one(tmp_path, faults=faults) as fleet,
        serving(fleet, settings=OFTEN) as at,
    ):
        reply = await at.client.post(CHAT, json={**TOLD, **more})

    *before, last, end = reply.text.split("\n\n")
    assert (reply.status_code, end) == (200, "")
    assert before
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == code


@pytest.mark.parametrize("route", [CHAT, "/v1/messages", "/v1/responses", "/completion"])
async def test_a_child_lost_after_comments_alone_is_made_good(tmp_path: Path, route: str) -> None:
    async with (
        fleet_of_one(tmp_path, faults={"prompt_s": 0.6}) as fleet,
        serving(fleet, settings=OFTEN) as at,
    ):
        await fleet.load(fleet.model.model_id)
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(at.client.post(route, json={**TOLD, "input": "one"}))
            while not fleet.log("processing task"):
                await asyncio.sleep(0.05)  # cadence
            await asyncio.sleep(0.2)  # for a comment or more
            fleet.kill()

    reply = asked.result()
    assert fleet.launches == 2
    assert reply.content.startswith((KEEP_ALIVE, PING))
    assert "one" in reply.text.split("\n\n", 1)[1]
    assert 'error":{' not in reply.text


async def test_openais_client_reads_past_the_comments(tmp_path: Path) -> None:
    async with (
        fleet_of_one(tmp_path, faults={"load_s": 0.3}) as fleet,
        serving(fleet, settings=OFTEN) as at,
        openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "one two"}], stream=True
        )
        chunks = [chunk async for chunk in stream]

    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_anthropics_client_reads_past_the_pings(tmp_path: Path) -> None:
    async with (
        fleet_of_one(tmp_path, faults={"load_s": 0.3, "tokens": 2}) as fleet,
        serving(fleet, settings=OFTEN) as at,
        anthropic.AsyncAnthropic(base_url=at.url, api_key="none", max_retries=0) as client,
        client.messages.stream(
            model="tiny", max_tokens=8, messages=[{"role": "user", "content": "one two"}]
        ) as stream,
    ):
        message = await stream.get_final_message()

    assert [block.text for block in message.content if block.type == "text"] == ["one two"]


@pytest.mark.llama
@pytest.mark.parametrize("route", ["/v1/messages", "/v1/responses"])
async def test_a_long_prompt_of_the_engines_is_bridged(tmp_path: Path, route: str) -> None:
    often = replace(SETTINGS, keep_alive_comments_s=0.02)
    told = {
        **TOLD, "model": "smollm2", "input": "word " * 700,
        "messages": [{"role": "user", "content": "word " * 700}],
    }  # fmt: skip
    async with engine(tmp_path, settings=often) as (_, at):
        reply = await at.client.post(route, json=told)

    sign = PING if route == "/v1/messages" else KEEP_ALIVE
    _, _, events = reply.content.rpartition(sign)
    assert reply.content.startswith(sign)
    assert named_events(events.decode())
