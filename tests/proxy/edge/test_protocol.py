"""What callers may send, byte by byte, on real sockets before the real server; on both loops."""

import asyncio
import gc
import json
from pathlib import Path

import pytest
from structlog.typing import EventDict

from proxy.edge.cycle import Cycle
from proxy.edge.protocol import Patience
from proxy.exchange import Exchange
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.raw_caller import SOON_S, Caller, calling

GET = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/show HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
CHAT = json.dumps(
    {"model": "tiny", "messages": [{"role": "user", "content": "one two"}], "stream": True}
).encode()


@pytest.fixture
def idle(tmp_path: Path) -> FleetOfOne:
    """A fleet that is not asked to load anything."""
    return FleetOfOne(served_model(), tmp_path)


def post(path: bytes, body: bytes, *, version: bytes = b"1.1") -> bytes:
    head = b"POST %b HTTP/%b\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return head % (path, version, len(body)) + body


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(GET + b"X: " + b"x" * (1 << 20), b"431", id="a header without an end"),
        pytest.param(GET + b"x" * (1 << 20), b"431", id="a name without an end"),
        pytest.param(GET + b"X: y\r\n" * 200_000, b"431", id="headers without an end"),
        pytest.param(GET + b"X: y\r\n" * 200 + b"\r\n", b"431", id="200 headers"),
        pytest.param(GET + b"X: " + b"x" * (70 << 10) + b"\r\n\r\n", b"431", id="70 KiB"),
        pytest.param(b"GET /" + b"x" * (1 << 20), b"414", id="an address without an end"),
        pytest.param(
            b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"414",
            id="9,000 bytes of address",
        ),
        pytest.param(b"\r\n" * 50_000, b"431", id="blank lines without an end"),
        pytest.param(b"hello\r\n\r\n", b"400", id="no HTTP"),
    ],
)
async def test_more_than_a_head_is_refused_and_closed(
    idle: FleetOfOne, head: bytes, status: bytes
) -> None:
    async with calling(idle) as caller:
        await caller.send(head)
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 " + status)
    assert told.count(b"HTTP/1.1") == 1
    assert b"connection: close" in told


async def replies(caller: Caller, n: int) -> list[tuple[bytes, bytes]]:
    """Status and body of the next replies, each of a told length."""
    told = []
    async with asyncio.timeout(SOON_S):
        for _ in range(n):
            head = await caller.reader.readuntil(b"\r\n\r\n")
            length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
            told.append((head[9:12], await caller.reader.readexactly(int(length))))
    return told


def named(model: str, *, more: bytes = b"") -> bytes:
    """A question about a model, which is said to be unknown by its name."""
    body = json.dumps({"model": model}).encode()
    head = b"POST /api/show HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%b\r\n"
    return head % (len(body), more) + body


async def test_the_same_head_again_is_a_request_of_its_own_with_its_own_body(
    idle: FleetOfOne,
) -> None:
    models = ("one", "two", "three", "x" * 70, "one")
    async with calling(idle) as caller:
        told = []
        for model in models:
            await caller.send(named(model))
            told += await replies(caller, 1)

    assert [status for status, _ in told] == [b"404"] * len(models)
    assert all(model.encode() in body for model, (_, body) in zip(models, told, strict=True))


async def test_the_same_head_in_pieces_and_many_at_once_are_answered_one_after_another(
    idle: FleetOfOne,
) -> None:
    request = named("third")
    async with calling(idle) as caller:
        await caller.send(named("first"))
        told = await replies(caller, 1)
        await caller.send(named("second") * 2 + request[:-9])
        told += await replies(caller, 2)
        await caller.send(request[-9:])
        told += await replies(caller, 1)

    names = (b"first", b"second", b"second", b"third")
    assert all(name in body for name, (_, body) in zip(names, told, strict=True))


async def test_after_a_head_that_is_known_another_one_is_read_for_what_it_says(
    idle: FleetOfOne,
) -> None:
    async with calling(idle) as caller:
        await caller.send(named("one"))
        await caller.send(named("two", more=b"Origin: http://evil.example\r\n"))
        await caller.send(named("three").replace(b"/api/show", b"/api/nowhere"))
        await caller.send(named("four", more=b"Connection: close\r\n"))
        told = await replies(caller, 4)
        rest = await caller.rest()

    assert [status for status, _ in told] == [b"404", b"403", b"404", b"404"]
    assert told[2][1] == b"404 page not found"
    assert b"four" in told[3][1]
    assert rest == b""


async def test_an_id_that_comes_with_the_same_head_is_the_requests_each_time(
    idle: FleetOfOne, served: list[EventDict]
) -> None:
    async with calling(idle) as caller:
        for more in (b"", b"", b"X-Request-Id: mine\r\n", b"X-Request-Id: mine\r\n", b""):
            await caller.send(named("one", more=more))
            await replies(caller, 1)

    ids = [line["request_id"] for line in served if line["event"] == "request.served"]
    assert ids[2:4] == ["mine", "mine"]
    assert len({ids[0], ids[1], ids[4]}) == 3


async def test_a_request_that_is_over_leaves_nothing_for_the_collector(idle: FleetOfOne) -> None:
    async with calling(idle) as caller:
        await caller.send(named("warm"))
        await replies(caller, 1)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(5):
                await caller.send(GET + b"\r\n")
                await replies(caller, 1)
            gc.collect()
            left = [found for found in gc.garbage if isinstance(found, Cycle | Exchange)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    assert left == []


async def test_a_large_head_within_the_bounds_is_served(idle: FleetOfOne) -> None:
    headers = b"".join(b"X-%d: %b\r\n" % (n, b"x" * 480) for n in range(120))
    async with calling(idle) as caller:
        await caller.send(GET + headers + b"Connection: close\r\n\r\n")
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 200")


async def test_a_body_in_chunks_of_a_byte_is_read_whole(idle: FleetOfOne) -> None:
    body = json.dumps({"model": "nope", "system": "x" * 100_000}).encode()
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    async with calling(idle) as caller:
        await caller.send(POST + pieces + b"0\r\n\r\n" + GET + b"Connection: close\r\n\r\n")
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 404")  # no such model: all of it was understood
    assert told.count(b"HTTP/1.1") == 2


async def test_a_small_head_and_a_large_body_in_one_read_are_served(idle: FleetOfOne) -> None:
    body = json.dumps({"model": "nope", "system": "x" * 200_000}).encode()
    async with calling(idle) as caller:
        caller.writer.write(post(b"/api/show", body))
        caller.writer.write(GET + b"Connection: close\r\n\r\n")
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 404")
    assert told.count(b"HTTP/1.1 200") == 1


async def test_trailers_are_dropped(idle: FleetOfOne) -> None:
    async with calling(idle) as caller:
        await caller.send(POST + b"2\r\n{}\r\n0\r\nX-Request-Id: trailed\r\n\r\n")
        await caller.send(GET + b"Connection: close\r\n\r\n")
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 400")
    assert b"trailed" not in told
    assert told.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    "trailers",
    [b"X: " + b"x" * (4 << 20), b"X: y\r\n" * (1 << 20)],
    ids=["one without an end", "without an end"],
)
async def test_trailers_without_an_end_are_refused(idle: FleetOfOne, trailers: bytes) -> None:
    async with calling(idle) as caller:
        await caller.send(POST + b"2\r\n{}\r\n0\r\n" + trailers)
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(
            b"GET / HTTP/1.1\r\nX-Request-Id: abc-1\r\nA: b\r\n\x00: 1\r\n\r\n", id="no head"
        ),
        pytest.param(
            POST.replace(b"\r\n\r\n", b"\r\nX-Request-Id: abc-1\r\n\r\n") + b"zz\r\n",
            id="no body",
        ),
    ],
)
async def test_a_refusal_without_a_route_has_the_request_id_too(
    idle: FleetOfOne, sent: bytes
) -> None:
    async with calling(idle) as caller:
        await caller.send(sent)
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nx-request-id: abc-1\r\n" in told


async def test_what_is_no_request_at_all_is_given_an_id(idle: FleetOfOne) -> None:
    async with calling(idle) as caller:
        await caller.send(b"\x16\x03\x01hello\r\n\r\n")
        told = await caller.rest()

    assert b"\r\nx-request-id: " in told


async def test_what_is_no_request_is_not_answered_in_the_middle_of_a_reply(
    tmp_path: Path,
) -> None:
    async with fleet_of_one(tmp_path, faults={"token_s": 0.05, "tokens": 200}) as fleet:
        async with calling(fleet) as caller:
            await caller.send(post(b"/api/chat", CHAT))
            await caller.reader.readuntil(b'"done":false')
            await caller.send(b"hello\r\n\r\n")
            told = await caller.rest()

        await until_free(fleet)

    assert b"HTTP/1.1" not in told


async def until_free(fleet: FleetOfOne) -> None:
    """Waits until no lease is held."""
    async with asyncio.timeout(SOON_S):
        while fleet.leases:
            await asyncio.sleep(0.01)  # cadence


async def test_a_head_that_nothing_follows_is_sent_all_the_same(idle: FleetOfOne) -> None:
    async with calling(idle) as caller:
        await caller.send(b"HEAD /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await caller.reader.readuntil(b"\r\n\r\n")
        await caller.send(GET + b"Connection: close\r\n\r\n")
        told = await caller.rest()

    assert head.startswith(b"HTTP/1.1 200")
    assert told.startswith(b"HTTP/1.1 200")


async def test_a_caller_who_waits_to_be_told_to_go_on_is_told(idle: FleetOfOne) -> None:
    async with calling(idle) as caller:
        await caller.send(
            b"POST /api/show HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"
        )
        interim = await caller.reader.readuntil(b"\r\n\r\n")
        await caller.send(b"{}")
        told = await caller.rest()

    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert told.startswith(b"HTTP/1.1 400")


async def test_a_stream_to_an_http_1_0_caller_ends_with_the_connection(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, calling(fleet) as caller:
        await caller.send(post(b"/api/chat", CHAT, version=b"1.0"))
        head, _, body = (await caller.rest()).partition(b"\r\n\r\n")

    lines = [json.loads(line) for line in body.splitlines()]
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert lines[-1]["done"] is True


async def test_a_whole_reply_to_an_http_1_0_caller_has_its_length(idle: FleetOfOne) -> None:
    async with calling(idle) as caller:
        await caller.send(b"GET /api/version HTTP/1.0\r\n\r\n")
        told = await caller.rest()

    assert b"content-length: 20" in told
    assert told.endswith(b'{"version":"0.24.0"}')


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET + b"\r\n", b"200"),
        (post(b"/api/show", b'{"model":"tiny"}'), b"200"),
        (post(b"/api/show", b'{"model":"nope"}'), b"404"),
    ],
    ids=["GET", "POST", "an error"],
)
async def test_a_caller_who_ends_its_sending_is_answered_what_is_ready_at_once(
    idle: FleetOfOne, request_: bytes, status: bytes
) -> None:
    async with calling(idle) as caller:
        await caller.send(request_)
        caller.writer.write_eof()
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("closes", [True, False], ids=["close", "shutdown"])
@pytest.mark.parametrize("faults", [{"prompt_s": 60.0}, {"token_s": 0.05, "tokens": 1000}])
async def test_no_model_works_on_for_a_caller_who_may_have_left(
    tmp_path: Path, closes: bool, faults: dict[str, object]
) -> None:
    async with fleet_of_one(tmp_path, faults=faults) as fleet, calling(fleet) as caller:
        await caller.send(post(b"/api/chat", CHAT))
        async with asyncio.timeout(SOON_S):
            while not fleet.leases:
                await asyncio.sleep(0.01)  # cadence
        if closes:
            caller.writer.close()
        else:
            caller.writer.write_eof()

        await until_free(fleet)


@pytest.mark.parametrize("kib", [70, 100, 300])
async def test_a_caller_who_leaves_is_noticed_however_long_its_prompt_was(
    tmp_path: Path, kib: int
) -> None:
    body = CHAT[:-1] + b', "padding": "' + b"x" * (kib << 10) + b'"}'
    async with (
        fleet_of_one(tmp_path, faults={"prompt_s": 60.0}) as fleet,
        calling(fleet) as caller,
    ):
        caller.writer.write(post(b"/api/chat", body))
        async with asyncio.timeout(SOON_S):
            while not fleet.leases:
                await asyncio.sleep(0.01)  # cadence
        caller.writer.close()

        await until_free(fleet)


@pytest.mark.parametrize(
    "waiting",
    [GET + b"\r\n", post(b"/api/chat", CHAT), (GET + b"\r\n") * 8, GET],
    ids=["one", "another chat", "eight", "a half"],
)
async def test_a_caller_who_leaves_is_noticed_though_its_next_request_waits(
    tmp_path: Path, waiting: bytes
) -> None:
    async with (
        fleet_of_one(tmp_path, faults={"prompt_s": 60.0}) as fleet,
        calling(fleet) as caller,
    ):
        await caller.send(post(b"/api/chat", CHAT) + waiting)
        async with asyncio.timeout(SOON_S):
            while not fleet.leases:
                await asyncio.sleep(0.01)  # cadence
        caller.writer.close()

        await until_free(fleet)


async def test_a_caller_who_ends_in_mid_request_is_closed(idle: FleetOfOne) -> None:
    async with calling(idle) as caller:
        await caller.send(GET)
        caller.writer.write_eof()
        told = await caller.rest()

    assert told == b""


IMPATIENT = Patience(idle_s=0.2, head_s=0.1)


@pytest.mark.parametrize("begun", [b"G", GET, GET + b"\r\n" + GET], ids=["G", "half", "second"])
async def test_a_head_that_does_not_come_to_its_end_is_refused(
    idle: FleetOfOne, begun: bytes
) -> None:
    async with calling(idle, Patience(head_s=0.1)) as caller:
        await caller.send(begun)
        told = await caller.rest()

    assert b"HTTP/1.1 408" in told


@pytest.mark.parametrize(
    "sent",
    [b"", b"\r\n", GET + b"\r\n", post(b"/api/show", b"{}") + b"\r\n"],
    ids=["nothing", "a blank line", "one request", "one and a blank line"],
)
async def test_a_caller_who_asks_nothing_is_closed_without_a_word(
    idle: FleetOfOne, sent: bytes
) -> None:
    async with calling(idle, IMPATIENT) as caller:
        await caller.send(sent)
        told = await caller.rest()

    assert b"408" not in told
    assert told.count(b"HTTP/1.1") == (1 if len(sent) > 2 else 0)


async def test_a_slow_reply_is_waited_for_however_short_the_patience(tmp_path: Path) -> None:
    async with (
        fleet_of_one(tmp_path, faults={"prompt_s": 0.5}) as fleet,
        calling(fleet, IMPATIENT) as caller,
    ):
        await caller.send(post(b"/api/chat", CHAT) + b"GET /api/")
        await caller.reader.readuntil(b'"done":true')
        told = await caller.rest()

    assert b"HTTP/1.1 408" in told
