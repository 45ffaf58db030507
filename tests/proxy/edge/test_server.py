"""The embedded server's life: start, drain, end; on both loops."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from structlog.typing import EventDict

from proxy.app import ASGIApp, build_app
from proxy.child.upstream import UpstreamPools
from proxy.edge.server import serve
from proxy.exchange import Receive, Scope, Send
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.kept_store import kept_store
from tests.fakes.serving import SETTINGS, Served, metrics_of, serving

STREAM = {"model": "tiny", "messages": [{"role": "user", "content": "one two"}], "stream": True}
Last = Callable[[str], object]

SLOW = {"token_s": 0.05, "tokens": 200}


async def stopped_in_mid_stream(at: Served, route: str) -> str:
    """A stream's whole text, the server being stopped at its first part."""
    text = ""
    async with at.client.stream("POST", route, json=STREAM) as reply:
        async for part in reply.aiter_text():
            text += part
            at.stop.set()
    return text


async def test_idle_it_ends_at_once(tmp_path: Path) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with asyncio.timeout(2), serving(fleet, drain_s=lambda: 60) as at:
        await at.client.get("/health")


@pytest.mark.parametrize(
    ("route", "last"),
    [
        ("/v1/chat/completions", lambda text: json.loads(text.split("\n\n")[-2][6:])["error"]),
        ("/api/chat", lambda text: json.loads(text.splitlines()[-1])["error"]),
    ],
)
async def test_a_stream_that_outlives_the_drain_ends_with_an_error(
    tmp_path: Path, route: str, last: Last
) -> None:
    async with (
        fleet_of_one(tmp_path, faults=SLOW) as fleet,
        serving(fleet, drain_s=lambda: 0.1) as at,
    ):
        text = await stopped_in_mid_stream(at, route)

    assert "stopping" in str(last(text))
    assert fleet.leases == 0


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/api/chat"])
@pytest.mark.parametrize("faults", [SLOW, {"prompt_s": 60}], ids=["stream", "prompt"])
async def test_a_request_that_is_cut_off_by_the_end_is_one_line_and_no_bug(
    tmp_path: Path,
    route: str,
    faults: dict[str, object],
    served: list[EventDict],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        fleet_of_one(tmp_path, faults=faults) as fleet,
        serving(fleet, drain_s=lambda: 0.1) as at,
    ):
        asking = asyncio.ensure_future(at.client.post(route, json=STREAM))
        async with asyncio.timeout(10):
            while not fleet.leases:
                await asyncio.sleep(0.01)  # cadence
        at.stop.set()
        await asking

    lines = [event["error"] for event in served if event["event"] == "request.served"]
    assert lines == ["stopping"]
    assert [record.getMessage() for record in caplog.records] == []


async def test_the_time_to_drain_is_the_one_wanted_when_it_begins(tmp_path: Path) -> None:
    wanted_s = 60.0
    async with (
        fleet_of_one(tmp_path, faults=SLOW) as fleet,
        serving(fleet, drain_s=lambda: wanted_s) as at,
    ):
        wanted_s = 0.1
        text = await stopped_in_mid_stream(at, "/v1/chat/completions")

    assert "stopping" in text


async def test_a_stream_that_ends_within_the_drain_is_whole(tmp_path: Path) -> None:
    faults = {"token_s": 0.02, "tokens": 20}
    async with (
        fleet_of_one(tmp_path, faults=faults) as fleet,
        serving(fleet, drain_s=lambda: 10) as at,
    ):
        text = await stopped_in_mid_stream(at, "/v1/chat/completions")

    assert text.endswith("data: [DONE]\n\n")


async def test_while_it_drains_nobody_new_is_let_in(tmp_path: Path) -> None:
    async with (
        fleet_of_one(tmp_path, faults=SLOW) as fleet,
        serving(fleet, drain_s=lambda: 0.5) as at,
        at.client.stream("POST", "/api/chat", json=STREAM) as reply,
        httpx.AsyncClient(trust_env=False) as newcomer,
    ):
        lines = reply.aiter_lines()
        await anext(lines)
        at.stop.set()
        await anext(lines)
        with pytest.raises(httpx.ConnectError):
            await newcomer.get(f"{at.url}/health")


async def test_cancelled_it_ends_without_draining(tmp_path: Path) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    started = asyncio.Event()
    fleet = FleetOfOne(served_model(), tmp_path)
    async with UpstreamPools(connections_per_child=1) as pools, kept_store(fleet) as store:
        app = build_app(fleet, pools, SETTINGS, metrics_of(fleet), store=store)
        task = asyncio.ensure_future(
            serve(app, (listener,), stop=asyncio.Event(), started=started, drain_s=lambda: 60)
        )
        await started.wait()
        task.cancel()
        async with asyncio.timeout(2):
            with pytest.raises(asyncio.CancelledError):
                await task

    assert listener.fileno() == -1


async def told_by(app: ASGIApp) -> tuple[bytes, bytes]:
    """Head and body of what comes of a request to an application, until the connection closes."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    started, stop = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        served = serve(app, (listener,), stop=stop, started=started, drain_s=lambda: 1)
        tasks.create_task(served)
        await started.wait()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        stop.set()
    return head, body


async def raises(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError


async def says_nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


async def raises_in_between(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    raise ZeroDivisionError


async def does_not_end(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})


@pytest.mark.parametrize("app", [raises, says_nothing])
async def test_an_application_that_does_not_answer_is_answered_for(app: ASGIApp) -> None:
    head, body = await told_by(app)

    assert head.startswith(b"HTTP/1.1 500 ")
    assert body == b"Internal Server Error"


@pytest.mark.parametrize("app", [raises_in_between, does_not_end])
async def test_a_reply_that_its_application_leaves_unfinished_is_cut(app: ASGIApp) -> None:
    head, body = await told_by(app)

    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == b"3\r\none\r\n"


AT_ONCE_S = 0.03  # a reply of two writes takes 0.04 s with Nagle's algorithm


async def test_replies_do_not_wait_for_acknowledgements(tmp_path: Path) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    loop = asyncio.get_running_loop()
    async with serving(fleet) as at:
        quickest_s = 1.0
        for _ in range(200):  # one is enough, and on a busy machine many are slow
            began_s = loop.time()
            await at.client.get("/health")
            quickest_s = min(quickest_s, loop.time() - began_s)
            if quickest_s < AT_ONCE_S:
                break

    assert quickest_s < AT_ONCE_S
