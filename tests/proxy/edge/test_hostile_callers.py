"""proxy.edge.protocol against callers who mean harm, or know no better: bytes on real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from ssl import CERT_NONE, PROTOCOL_TLS_CLIENT, SSLContext

import pytest
from structlog.typing import EventDict

from inferenceosd.door.tls_files import TlsFiles
from proxy.edge.crowd import ANSWERS, Crowd, CrowdLimits
from proxy.edge.protocol import PIPELINED, Patience
from tests.fakes.certificates import certificate
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.raw_caller import SOON_S, Caller, calling, connected
from tests.fakes.serving import serving

GET = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n"
LAST = GET + b"Connection: close\r\n\r\n"
POST = b"POST /api/show HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
SHOW = b'{"model":"tiny"}'
CHAT = json.dumps(
    {"model": "tiny", "messages": [{"role": "user", "content": "one two"}], "stream": True}
).encode()
QUICK = Patience(stall_s=0.2)


@pytest.fixture
def idle(tmp_path: Path) -> FleetOfOne:
    """A fleet that is not asked to load anything."""
    return FleetOfOne(served_model(), tmp_path)


def with_length(path: bytes, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return head % (path, len(body)) + body


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET /api/version HTTP/1.1\nHost: localhost\n\n", id="bare LF"),
        pytest.param(GET + b"X: y\nZ: z\r\n\r\n", id="one bare LF"),
        pytest.param(GET + b"X: a\r\n b\r\n\r\n", id="a folded header"),
        pytest.param(GET + b" X: y\r\n\r\n", id="a blank before a name"),
        pytest.param(GET + b"X : y\r\n\r\n", id="a blank behind a name"),
        pytest.param(GET + b"X y\r\n\r\n", id="no colon"),
        pytest.param(GET + b"X: a\0b\r\n\r\n", id="NUL in a header"),
        pytest.param(GET + b"X: a\rb\r\n\r\n", id="CR in a header"),
        pytest.param(GET + b"Origin: app://a\x01b\r\n\r\n", id="a control character, reflected"),
        pytest.param(b"GET /api/version\0 HTTP/1.1\r\nHost: a\r\n\r\n", id="NUL in the address"),
        pytest.param(b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", id="no ASCII"),
        pytest.param(GET + b"Host: evil.example\r\n\r\n", id="two hosts"),
        pytest.param(b"GET /api/version HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(
            b"GET http://evil.example/api/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
            id="another host in the address",
        ),
        pytest.param(
            b"POST /api/show HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="chunks of old",
        ),
        pytest.param(POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="gzip"),
        pytest.param(b"CONNECT localhost:22 HTTP/1.1\r\nHost: a\r\n\r\n", id="a tunnel"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2 without asking"),
        pytest.param(
            POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="length and chunks",
        ),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
            id="chunks and length",
        ),
        pytest.param(POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", id="2 lengths"),
        pytest.param(POST + b"Content-Length: -3\r\n\r\nabc", id="a length below zero"),
        pytest.param(POST + b"Content-Length: +3\r\n\r\nabc", id="a length with a sign"),
        pytest.param(POST + b"Content-Length: %d\r\n\r\nabc" % 10**23, id="a length of 77 bits"),
        pytest.param(POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", id="no such coding"),
        pytest.param(POST + b"Transfer-Encoding: chunked, a\r\n\r\n0\r\n\r\n", id="not the last"),
        pytest.param(CHUNKED + b"zz\r\nab", id="a chunk size of letters"),
        pytest.param(CHUNKED + b"f" * 19 + b"\r\nab", id="a chunk size of 76 bits"),
        pytest.param(CHUNKED + b"2\n{}\n0\n\n", id="chunks with bare LF"),
        pytest.param(CHUNKED + b"2\r\n{}}}\r\n0\r\n\r\n", id="more than the chunk's size"),
        pytest.param(CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n", id="a chunk size below zero"),
    ],
)
async def test_what_others_might_read_otherwise_is_refused_and_nothing_behind_it_answered(
    idle: FleetOfOne, sent: bytes
) -> None:
    async with calling(idle) as caller:
        await caller.send(sent + LAST)
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 400")
    assert told.count(b"HTTP/1.1") == 1


async def test_a_head_may_come_byte_by_byte(idle: FleetOfOne) -> None:
    async with calling(idle) as caller:
        caller.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in LAST:
            caller.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("address", "status"),
    [
        (b"http://a.local/api/version", b"200"),
        (b"//api///version", b"200"),
        (b"/api/%76ersion", b"200"),
        (b"/api/x/../version", b"404"),
        (b"/%2e%2e/%2e%2e/etc/passwd", b"404"),
        (b"/v1/models/..%2f..%2f..%2fetc%2fpasswd", b"400"),
        (b"/v1/models/%00", b"400"),
        (b"/v1/models/a%0d%0aX-Evil:1", b"400"),
        (b"/api/version%00", b"404"),
    ],
)
async def test_an_address_is_a_route_or_a_model_and_never_a_file(
    idle: FleetOfOne, address: bytes, status: bytes
) -> None:
    async with calling(idle) as caller:
        await caller.send(
            b"GET %b HTTP/1.1\r\nHost: a.local\r\nConnection: close\r\n\r\n" % address
        )
        told = await caller.rest()

    head = told.partition(b"\r\n\r\n")[0]
    assert told.startswith(b"HTTP/1.1 " + status)
    assert b"evil" not in head.lower()
    assert b"root:" not in told


@pytest.mark.parametrize(
    "name",
    ["../../../etc/passwd", "/etc/passwd", "a\0b", "tiny\r\nX-Evil: 1", "%2e%2e/x", "x" * 9999],
)
@pytest.mark.parametrize("path", [b"/api/show", b"/api/chat", b"/v1/chat/completions"])
async def test_a_name_is_looked_up_and_never_a_path(
    idle: FleetOfOne, path: bytes, name: str
) -> None:
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "hi"}]}).encode()
    async with calling(idle) as caller:
        await caller.send(with_length(path, body) + LAST)
        told = await caller.rest()

    assert told.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert b"x-evil" not in told.partition(b"\r\n\r\n")[0].lower()
    assert idle.leases == 0


@pytest.mark.parametrize("wish", [b"h2c", b"websocket", b"TLS/1.0"])
async def test_a_wish_for_another_protocol_is_not_heard_and_its_body_is_a_body(
    idle: FleetOfOne, wish: bytes
) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: A\r\n" % wish
    body = POST + upgrade + b"Content-Length: %d\r\n\r\n" % len(SHOW)
    async with calling(idle) as caller:
        await caller.send(GET + upgrade + b"\r\n")
        await caller.send(body)
        await asyncio.sleep(0.05)  # so that the body comes by itself
        await caller.send(SHOW + LAST)
        told = await caller.rest()

    assert told.count(b"HTTP/1.1 200 OK") == 3
    assert told.count(b"HTTP/1.1") == 3
    assert b"qwen" in told or b"details" in told


async def test_a_tunnel_within_another_wish_is_refused(idle: FleetOfOne) -> None:
    tunnel = b"CONNECT /x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    async with calling(idle) as caller:
        await caller.send(tunnel + LAST)
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 400")


async def test_a_few_requests_may_wait_behind_one_and_a_flood_is_closed(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path, faults={"prompt_s": 0.3}) as fleet:
        async with calling(fleet) as caller:
            await caller.send(with_length(b"/api/chat", CHAT) + (GET + b"\r\n") * 20 + LAST)
            served = await caller.rest()
        async with calling(fleet) as caller:
            await caller.send(with_length(b"/api/chat", CHAT) + (GET + b"\r\n") * 5000)
            flood = await caller.rest()

    assert served.count(b"HTTP/1.1 200") == 22
    assert flood.count(b"HTTP/1.1 200") <= PIPELINED


# Slow ones.


@pytest.mark.parametrize(
    "begun",
    [
        POST + b"Content-Length: 1000\r\n\r\n{",
        CHUNKED + b"5\r\n{",
        CHUNKED,
        GET + b"\r\n" + POST + b"Content-Length: 9\r\n\r\n",
    ],
    ids=["by length", "in a chunk", "before a chunk", "the second request"],
)
async def test_a_body_that_does_not_get_on_is_refused(idle: FleetOfOne, begun: bytes) -> None:
    async with calling(idle, QUICK) as caller:
        await caller.send(begun)
        told = await caller.rest()

    assert b"HTTP/1.1 408" in told


async def test_a_body_that_drips_is_refused(idle: FleetOfOne) -> None:
    async with calling(idle, QUICK) as caller:
        await caller.send(POST + b"Content-Length: 100000\r\n\r\n")
        dripping = asyncio.ensure_future(drip(caller))
        told = await caller.rest()
        dripping.cancel()

    assert told.startswith(b"HTTP/1.1 408")


async def drip(caller: Caller) -> None:
    """A byte every 20 ms, for as long as it takes."""
    while True:
        caller.writer.write(b" ")
        await asyncio.sleep(0.02)  # cadence


async def test_a_slow_body_that_gets_on_is_waited_for(idle: FleetOfOne) -> None:
    async with calling(idle, QUICK) as caller:
        await caller.send(POST + b"Connection: close\r\nContent-Length: 10016\r\n\r\n")
        for _ in range(20):
            caller.writer.write(b" " * 500)
            await asyncio.sleep(0.03)  # 16 kB/s, over three times QUICK.stall_s
        await caller.send(SHOW)
        told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 200")


async def test_a_body_that_goes_on_after_its_answer_is_closed_in_the_end(idle: FleetOfOne) -> None:
    async with calling(idle, QUICK) as caller:
        await caller.send(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n")
        await caller.send(b"Transfer-Encoding: chunked\r\n\r\n")
        pouring = asyncio.ensure_future(pour(caller))
        told = await caller.rest()
        pouring.cancel()

    assert told.startswith(b"HTTP/1.1 404")
    assert told.count(b"HTTP/1.1") == 1


async def pour(caller: Caller) -> None:
    """Chunks, without an end."""
    while True:
        await caller.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        await asyncio.sleep(0.01)  # cadence


@asynccontextmanager
async def streaming_to_nobody(
    fleet: FleetOfOne, patience: Patience, tls: SSLContext | None
) -> AsyncIterator[Caller]:
    """A caller of a fast and endless stream who reads none of it, and has no room for much."""
    trust = None
    if tls is not None:
        trust = SSLContext(PROTOCOL_TLS_CLIENT)
        trust.check_hostname, trust.verify_mode = False, CERT_NONE
    async with serving(fleet, patience=patience, tls=tls, kernel_bytes=4096) as at:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", at.port))
        reader, writer = await asyncio.open_connection(
            sock=sock, limit=1, ssl=trust, server_hostname="" if trust else None
        )
        try:
            await Caller(reader, writer).send(with_length(b"/api/chat", CHAT))
            yield Caller(reader, writer)
        finally:
            writer.transport.abort()


@pytest.mark.parametrize("is_https", [False, True], ids=["HTTP", "HTTPS"])
async def test_a_caller_who_does_not_read_is_cut_and_its_slot_is_free(
    tmp_path: Path, served: list[EventDict], is_https: bool
) -> None:
    cert, key = certificate(tmp_path)
    tls = TlsFiles(str(cert), str(key)).context if is_https else None
    faults = {"token_s": 0.0, "tokens": 200_000}
    async with (
        fleet_of_one(tmp_path, faults=faults) as fleet,
        streaming_to_nobody(fleet, Patience(stall_s=0.3), tls),
    ):
        async with asyncio.timeout(3 * SOON_S):
            while not any(event["event"] == "door.reader_cut" for event in served):
                await asyncio.sleep(0.01)  # cadence
            while fleet.leases:
                await asyncio.sleep(0.01)  # cadence

    (cut,) = (event for event in served if event["event"] == "door.reader_cut")
    assert cut["address"] == "127.0.0.1"
    assert cut["unread_bytes"] > 0


async def test_who_does_not_read_cannot_stay_by_sending_nonsense(
    tmp_path: Path, served: list[EventDict]
) -> None:
    faults = {"token_s": 0.0, "tokens": 200_000}
    async with (
        fleet_of_one(tmp_path, faults=faults) as fleet,
        streaming_to_nobody(fleet, Patience(stall_s=2.0), None) as caller,
    ):
        await caller.reader.read(1)
        await asyncio.sleep(1.0)  # so that more is written than there is room for
        caller.writer.write(b"hello\r\n\r\n")
        async with asyncio.timeout(3 * SOON_S):
            while not any(event["event"] == "door.reader_cut" for event in served):
                await asyncio.sleep(0.01)  # cadence

    names = [event["event"] for event in served]
    assert names.index("request.served") < names.index("door.reader_cut")
    assert fleet.leases == 0


# Many.


async def test_a_thousand_connections_of_one_address_leave_room_for_no_more_than_allowed(
    idle: FleetOfOne, served: list[EventDict]
) -> None:
    crowd = Crowd(CrowdLimits(in_all=900, per_address=10))
    async with serving(idle, crowd=crowd) as at, AsyncExitStack() as held:
        for _ in range(900):
            await held.enter_async_context(connected(at))
        late = [await held.enter_async_context(connected(at)) for _ in range(100)]
        told = [await caller.rest() for caller in late]

    assert {reply[:12] for reply in told} == {b"HTTP/1.1 503"}
    assert [e["connections"] for e in served if e["event"] == "door.crowded"] == [900]


async def test_who_leaves_makes_room(idle: FleetOfOne) -> None:
    crowd = Crowd(CrowdLimits(in_all=2, per_address=2))
    async with serving(idle, crowd=crowd) as at, connected(at):
        async with connected(at):
            pass
        async with asyncio.timeout(SOON_S):
            while len(crowd) > 1:
                await asyncio.sleep(0.01)  # cadence
        async with connected(at) as caller:
            await caller.send(LAST)
            told = await caller.rest()

    assert told.startswith(b"HTTP/1.1 200")


async def test_a_flood_beyond_the_limit_is_closed_without_a_word(idle: FleetOfOne) -> None:
    crowd = Crowd(CrowdLimits(in_all=0, per_address=0), window_s=60.0)  # of a busy machine
    async with serving(idle, crowd=crowd) as at, AsyncExitStack() as held:
        # They connect before the first of them is let in, and so come all at once.
        socks = [socket.create_connection(("127.0.0.1", at.port)) for _ in range(ANSWERS + 50)]
        many = [await held.enter_async_context(connected(at, sock)) for sock in socks]
        told = [await caller.rest() for caller in many]

    assert told.count(b"") > 0
    assert {reply[:12] for reply in told} == {b"HTTP/1.1 503", b""}
