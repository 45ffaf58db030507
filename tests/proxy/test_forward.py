"""The relay against a child that goes wrong in every way; real processes and sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from structlog.typing import EventDict

from proxy.errors import UpstreamBroken
from proxy.forward import understood
from tests.fakes.fleet_of_one import FAKE, FleetOfOne, fleet_of_one
from tests.fakes.serving import Served, serving

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}]}
STREAM = {**CHAT, "stream": True}
ROUTES = ("/v1/chat/completions", "/api/chat")
SOON_S = 5.0


class Reply(msgspec.Struct):
    prompt: str


Said = Callable[[Any], str]


@asynccontextmanager
async def door(
    folder: Path, *, n_ctx: int = 4096, n_parallel: int = 1, **faults: object
) -> AsyncIterator[tuple[FleetOfOne, Served]]:
    """A proxy before one fake child with these faults."""
    async with (
        fleet_of_one(folder, faults=faults, n_ctx=n_ctx, n_parallel=n_parallel) as fleet,
        serving(fleet) as served,
    ):
        yield fleet, served


def failing_once(faults: Path) -> tuple[str, ...]:
    """The fake engine with the faults of a file."""
    return (*FAKE, "--fake-faults", str(faults))


async def until_idle(fleet: FleetOfOne) -> None:
    """Waits until the child's slots are free, by its own account."""
    async with asyncio.timeout(SOON_S):
        while any(await fleet.slots()):
            await asyncio.sleep(0.01)  # cadence


@asynccontextmanager
async def overheard(fleet: FleetOfOne, folder: Path) -> AsyncIterator[bytearray]:
    """What is sent to the child, by way of a socket before its own."""
    assert fleet.child is not None
    heard, own_path, path = bytearray(), fleet.child.socket_path, str(folder / "ear.sock")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(own_path)

        async def copy(
            source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray
        ) -> None:
            while data := await source.read(1 << 16):
                kept += data
                sink.write(data)
            sink.close()

        await asyncio.gather(copy(reader, back, heard), copy(there, writer, bytearray()))

    async with await asyncio.start_unix_server(pass_on, path):
        fleet.child.socket_path = path
        yield heard
        fleet.child.socket_path = own_path


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("route", ROUTES)
async def test_the_child_is_told_the_requests_id_and_trace(tmp_path: Path, route: str) -> None:
    async with door(tmp_path) as (fleet, served):
        await served.client.post(route, json=CHAT)
        async with overheard(fleet, tmp_path) as heard:
            own = {"X-Request-Id": "abc-1", "traceparent": TRACE}
            await served.client.post(route, json={**CHAT, "stream": False}, headers=own)
            odd = {"X-Request-Id": "abc-2", "traceparent": "00-" + "A" * 52}
            await served.client.post(route, json={**CHAT, "stream": False}, headers=odd)

    first, _, second = bytes(heard).partition(b"abc-2")
    assert b"\r\nx-request-id: abc-1\r\n" in first
    assert b"\r\ntraceparent: %b\r\n" % TRACE.encode() in first
    assert b"traceparent" not in second


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_child_killed_between_two_requests_is_invisible_to_the_second(
    tmp_path: Path, route: str, stream: bool
) -> None:
    async with door(tmp_path) as (fleet, served):
        before = await served.client.post(route, json={**CHAT, "stream": stream})
        fleet.kill()
        after = await served.client.post(route, json={**CHAT, "stream": stream})

    assert (before.status_code, after.status_code) == (200, 200)
    assert "three" in after.text
    assert fleet.launches == 2


@pytest.mark.parametrize("route", ROUTES)
async def test_a_child_that_dies_before_any_token_is_replaced_unseen(
    tmp_path: Path, route: str
) -> None:
    faults = tmp_path / "faults"
    faults.write_text(json.dumps({"die_before_reply": True, "launches": 1}))
    async with fleet_of_one(tmp_path, argv=failing_once(faults)) as fleet, serving(fleet) as served:
        reply = await served.client.post(route, json=STREAM)

    assert reply.status_code == 200
    assert "three" in reply.text
    assert fleet.launches == 2


@pytest.mark.parametrize("route", ROUTES)
async def test_a_child_that_dies_twice_is_told_and_not_tried_for_ever(
    tmp_path: Path, route: str
) -> None:
    async with door(tmp_path, die_before_reply=True) as (fleet, served):
        reply = await served.client.post(route, json=STREAM)

    assert reply.status_code == (502 if route.startswith("/v1") else 500)
    assert "unexpectedly stopped" in reply.text
    assert "2 times on this request: its process ended with -9" in reply.text
    assert reply.headers["x-should-retry"] == "false"
    assert fleet.launches == 2
    assert fleet.answers == 0


@pytest.mark.parametrize("route", ROUTES)
async def test_the_fleet_hears_of_a_request_that_was_answered(tmp_path: Path, route: str) -> None:
    async with door(tmp_path) as (fleet, served):
        await served.client.post(route, json=STREAM)

    assert fleet.answers == 1
    assert fleet.departures == 0


@pytest.mark.parametrize("fault", ["die_at_byte", "cut_at_byte"])
async def test_a_stream_that_is_lost_ends_with_an_openai_error(tmp_path: Path, fault: str) -> None:
    async with door(tmp_path, **{fault: 1500}) as (_, served):
        reply = await served.client.post("/v1/chat/completions", json=STREAM)

    *_, last = [line for line in reply.text.split("\n\n") if line]
    assert reply.status_code == 200
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_ends_model"
    assert "[DONE]" not in reply.text


@pytest.mark.parametrize("fault", ["die_at_byte", "cut_at_byte"])
async def test_a_stream_that_is_lost_ends_with_an_ollama_error_line(
    tmp_path: Path, fault: str
) -> None:
    async with door(tmp_path, **{fault: 1500}) as (_, served):
        reply = await served.client.post("/api/chat", json=STREAM)

    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert reply.status_code == 200
    assert "unexpectedly stopped" in lines[-1]["error"]
    assert not any(line.get("done") for line in lines)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_whole_reply_that_is_lost_on_the_way_is_made_good(
    tmp_path: Path, route: str
) -> None:
    faults = tmp_path / "faults"
    faults.write_text(json.dumps({"die_at_byte": 900, "launches": 1}))
    async with fleet_of_one(tmp_path, argv=failing_once(faults)) as fleet, serving(fleet) as served:
        reply = await served.client.post(route, json={**CHAT, "stream": False})

    assert reply.status_code == 200
    assert "three" in reply.text
    assert fleet.launches == 2


@pytest.mark.parametrize("route", ROUTES)
async def test_a_childs_stream_that_just_ends_is_told(tmp_path: Path, route: str) -> None:
    async with door(tmp_path, end_at_token=2) as (_, served):
        reply = await served.client.post(route, json=STREAM)

    assert "ended before its end" in reply.text.splitlines()[-1 if route == "/api/chat" else -2]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_childs_error_in_mid_stream_reaches_the_caller(tmp_path: Path, route: str) -> None:
    async with door(tmp_path, error_at_token=2) as (_, served):
        reply = await served.client.post(route, json=STREAM)

    assert "Context size has been exceeded" in reply.text
    assert "[DONE]" not in reply.text
    assert '"done":true' not in reply.text


@pytest.mark.parametrize("route", ROUTES)
async def test_an_error_before_any_token_is_an_error_reply(tmp_path: Path, route: str) -> None:
    async with door(tmp_path, error_at_token=0) as (_, served):
        reply = await served.client.post(route, json={**CHAT, "stream": False})

    assert reply.status_code == 500
    assert "Context size has been exceeded" in reply.text


@pytest.mark.parametrize("route", ROUTES)
async def test_garbage_from_the_child_is_told_and_not_resent(tmp_path: Path, route: str) -> None:
    async with door(tmp_path, garbage=True) as (fleet, served):
        reply = await served.client.post(route, json=STREAM)

    assert reply.status_code == (502 if route.startswith("/v1") else 500)
    assert "broken" in reply.text
    assert fleet.launches == 1


@pytest.mark.parametrize("route", ROUTES)
async def test_children_that_close_idle_connections_are_no_trouble(
    tmp_path: Path, route: str
) -> None:
    async with door(tmp_path, close_idle=True) as (fleet, served):
        replies = [await served.client.post(route, json=STREAM) for _ in range(20)]

    assert [reply.status_code for reply in replies] == [200] * 20
    assert fleet.launches == 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_caller_who_leaves_in_mid_reply_frees_the_slot(
    tmp_path: Path, route: str, stream: bool, served: list[EventDict]
) -> None:
    read_s = 0.3
    async with door(tmp_path, token_s=0.02 if not stream else 0.6, tokens=1000) as (fleet, at):
        await fleet.load(fleet.model.model_id)
        with pytest.raises(httpx.ReadTimeout):
            await at.client.post(
                route, json={**CHAT, "stream": stream}, timeout=httpx.Timeout(5, read=read_s)
            )
        await until_idle(fleet)

    assert fleet.leases == 0
    assert fleet.departures == 1
    assert fleet.launches == 1
    assert [event["error"] for event in served if event["event"] == "request.served"] == [
        "caller_left"
    ]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_caller_who_leaves_before_the_first_token_frees_the_lease(
    tmp_path: Path, route: str
) -> None:
    async with door(tmp_path, hang_decode=True) as (fleet, at):
        caller = asyncio.create_task(at.client.post(route, json=STREAM))
        async with asyncio.timeout(SOON_S):
            while not fleet.leases:
                await asyncio.sleep(0.01)  # cadence

        caller.cancel()

        async with asyncio.timeout(SOON_S):
            while fleet.leases:
                await asyncio.sleep(0.01)  # cadence


@pytest.mark.parametrize("route", ROUTES)
async def test_requests_take_the_slots_they_were_leased(tmp_path: Path, route: str) -> None:
    async with door(tmp_path, n_parallel=3, token_s=0.01) as (fleet, at):
        told = {**STREAM, "id_slot": 0}
        replies = await asyncio.gather(*(at.client.post(route, json=told) for _ in range(9)))
        slots = [line.split("id ")[1].split("|")[0].strip() for line in fleet.log("launch_slot_")]

    assert all(reply.status_code == 200 for reply in replies)
    assert sorted(set(slots)) == ["0", "1", "2"]
    assert fleet.most_leases == 3


async def test_streams_are_kept_from_caches_and_carry_no_hop_by_hop_header(tmp_path: Path) -> None:
    async with door(tmp_path) as (_, at):
        reply = await at.client.post("/v1/chat/completions", json=STREAM)

    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "keep-alive" not in reply.headers
    assert "server" not in reply.headers


async def test_progress_of_the_prompt_is_shown_only_to_who_asks(tmp_path: Path) -> None:
    async with door(tmp_path) as (_, at):
        without = await at.client.post("/v1/chat/completions", json=STREAM)
        with_it = await at.client.post(
            "/v1/chat/completions", json={**STREAM, "return_progress": True}
        )

    assert "prompt_progress" not in without.text
    assert "prompt_progress" in with_it.text
    assert without.text.startswith(
        'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role"'
    )


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ("/v1/chat/completions", lambda reply: reply["error"]["message"]),
        ("/api/chat", lambda reply: reply["error"]),
    ],
    ids=["openai", "ollama"],
)
async def test_a_prompt_over_the_context_is_refused_with_its_numbers(
    tmp_path: Path, route: str, said: Said
) -> None:
    messages = [{"role": "user", "content": "word " * 300}]
    async with door(tmp_path, n_ctx=64) as (_, at):
        reply = await at.client.post(route, json={"model": "tiny", "messages": messages})

    message = said(reply.json())
    assert reply.status_code == 400
    assert "301 tokens" in message
    assert "64 tokens" in message
    assert "exceeds the context" in message
    assert "context = " in message


@pytest.mark.parametrize("reply", [b'{"prompt":5}', b"{}", b"\xff", b""])
def test_a_childs_reply_of_another_shape_is_a_broken_one(reply: bytes) -> None:
    with pytest.raises(UpstreamBroken, match="of another shape"):
        understood(reply, msgspec.json.Decoder(Reply), socket_path="child")


async def test_what_an_exchange_took_is_reported(tmp_path: Path) -> None:
    async with door(tmp_path) as (fleet, at):
        for route in ("/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate"):
            for stream in (True, False):
                told = {**CHAT, "prompt": "one two three", "stream": stream}
                await at.client.post(route, json=told)

    assert [(usage.prompt_tokens, usage.decode_tokens) for usage in fleet.usages] == [(3, 16)] * 8


@pytest.mark.parametrize(
    ("route", "message"),
    [
        (
            "/v1/chat/completions",
            {
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
                ]
            },
        ),
        (
            "/v1/chat/completions",
            {"content": [{"type": "input_audio", "input_audio": {"data": "AAAA"}}]},
        ),
        ("/api/chat", {"content": "what is it?", "images": ["iVBORw0KGgo="]}),
    ],
    ids=["an image", "sound", "in Ollama's dialect"],
)
async def test_what_the_model_cannot_read_is_the_callers_fault(
    tmp_path: Path, route: str, message: dict[str, object]
) -> None:
    told = {"model": "tiny", "messages": [{"role": "user", **message}]}
    async with door(tmp_path) as (_, served):
        reply = await served.client.post(route, json=told)

    assert reply.status_code == 400
    assert "input is not supported" in reply.text


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/api/chat", "/v1/messages"])
async def test_memory_that_a_child_lacks_is_no_fault_of_the_callers(
    tmp_path: Path, route: str
) -> None:
    told = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4}
    async with door(tmp_path, no_memory=True) as (_, served):
        reply = await served.client.post(route, json=told)

    assert reply.status_code == 503
    assert "out of host memory" in reply.text


MESSAGES = [{"role": "user", "content": "one two"}]
SEVERAL = {"prompt": ["one two", "three"]}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("chop_bytes", [1, 7, 50, 400])
@pytest.mark.parametrize(
    ("route", "told"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "one two"}),
        ("/v1/completions", SEVERAL),
        ("/api/chat", {"messages": MESSAGES}),
        ("/api/generate", {"prompt": "one two"}),
    ],
    ids=["chat", "completion", "several", "Ollama's chat", "generate"],
)
async def test_progress_that_nobody_asked_for_is_never_seen_however_it_arrives(
    tmp_path: Path, route: str, told: dict[str, Any], chop_bytes: int, stream: bool
) -> None:
    asked = {"model": "tiny", "max_tokens": 3, "options": {"num_predict": 3}, "stream": stream}
    async with (
        fleet_of_one(tmp_path, faults={"chop_bytes": chop_bytes, "tokens": 3}) as fleet,
        serving(fleet) as at,
    ):
        reply = await at.client.post(route, json={**asked, **told})

    assert reply.status_code == 200
    assert "progress" not in reply.text
    assert "one" in reply.text
    assert reply.text.endswith("data: [DONE]\n\n") == (stream and route.startswith("/v1/"))
