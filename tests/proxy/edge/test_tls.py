"""HTTPS by the real server, with real handshakes, on both loops."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from inferenceosd.door.tls_files import TlsFiles, TlsRefused
from proxy.edge.crowd import Crowd, CrowdLimits
from tests.fakes.certificates import certificate
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import Served, serving

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one two"}]}
SOON_S = 5.0


def trusting(*certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for path in certificates:
        context.load_verify_locations(path)
    return context


async def shown(at: Served, trust: ssl.SSLContext) -> str:
    """The name in the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection("127.0.0.1", at.port, ssl=trust)
    told = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return str(told[0][0][1])


@pytest.fixture
def idle(tmp_path: Path) -> FleetOfOne:
    return FleetOfOne(served_model(), tmp_path)


async def test_streams_and_errors_come_over_https(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with (
        fleet_of_one(tmp_path) as fleet,
        serving(fleet, tls=TlsFiles(str(cert), str(key)).context) as at,
        httpx.AsyncClient(verify=trusting(cert), trust_env=False, base_url=at.url) as client,
    ):
        stream = await client.post("/api/chat", json=CHAT)
        origin = f"https://127.0.0.1:{at.port}"
        same = await client.get("/api/version", headers={"origin": origin})
        unknown = await client.post("/api/chat", json={**CHAT, "model": "nope"})

    assert stream.text.splitlines()[-1].count('"done":true') == 1
    assert "access-control-allow-origin" not in same.headers
    assert unknown.status_code == 404


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
@pytest.mark.parametrize(
    ("version", "is_served"),
    [
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ],
)
async def test_old_versions_are_refused(
    idle: FleetOfOne, tmp_path: Path, version: ssl.TLSVersion, is_served: bool
) -> None:
    cert, key = certificate(tmp_path)
    trust = trusting(cert)
    trust.set_ciphers("ALL:@SECLEVEL=0")
    trust.minimum_version = trust.maximum_version = version
    async with serving(idle, tls=TlsFiles(str(cert), str(key)).context) as at:
        try:
            name = await shown(at, trust)
        except (ssl.SSLError, ConnectionError):
            name = None

    assert (name == "server") is is_served


async def test_a_renewed_certificate_is_shown_to_the_next_caller_and_streams_go_on(
    tmp_path: Path,
) -> None:
    old, key = certificate(tmp_path, "old")
    new, new_key = certificate(tmp_path, "new")
    tls = TlsFiles(str(old), str(key))
    trust = trusting(old, new)
    async with (
        fleet_of_one(tmp_path, faults={"token_s": 0.02, "tokens": 20}) as fleet,
        serving(fleet, tls=tls.context) as at,
        httpx.AsyncClient(verify=trust, trust_env=False, base_url=at.url) as client,
        client.stream("POST", "/api/chat", json=CHAT) as reply,
    ):
        lines = reply.aiter_lines()
        await anext(lines)
        before = await shown(at, trust)
        new.replace(old)
        new_key.replace(key)
        tls.load()
        after = await shown(at, trust)
        rest = [line async for line in lines]

    assert (before, after) == ("old", "new")
    assert '"done":true' in rest[-1]


async def test_a_pair_that_does_not_match_is_not_taken_and_the_old_one_is_served_on(
    idle: FleetOfOne, tmp_path: Path
) -> None:
    old, key = certificate(tmp_path, "old")
    new, _ = certificate(tmp_path, "new")
    tls = TlsFiles(str(old), str(key))
    trust = trusting(old, new)
    new.replace(old)  # and the key not yet, as in the middle of a renewal
    async with serving(idle, tls=tls.context) as at:
        with pytest.raises(TlsRefused):
            tls.load()
        name = await shown(at, trust)

    assert name == "old"


async def test_plain_http_is_told_that_this_port_speaks_https(
    idle: FleetOfOne, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)
    async with (
        serving(idle, tls=TlsFiles(str(cert), str(key)).context) as at,
        httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{at.port}") as client,
    ):
        reply = await client.get("/api/tags")
        name = await shown(at, trusting(cert))

    assert (reply.status_code, reply.headers["connection"]) == (400, "close")
    assert "https://" in reply.text
    assert name == "server"


@pytest.mark.parametrize("sent", [b"\x00GET / HTTP/1.1\r\n", b"\x16\x03\x01\xff\xff", b""])
async def test_who_speaks_no_tls_is_closed_and_others_are_served(
    idle: FleetOfOne, tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate(tmp_path)
    async with serving(idle, tls=TlsFiles(str(cert), str(key)).context) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(SOON_S):
            told = b""
            while data := await reader.read(1 << 16):
                told += data
        writer.close()
        name = await shown(at, trusting(cert))

    assert b"HTTP/1.1" not in told
    assert name == "server"
    assert [record for record in caplog.records if record.exc_info] == []


async def test_handshakes_that_do_not_end_are_no_more_than_connections_may_be(
    idle: FleetOfOne, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)
    crowd = Crowd(CrowdLimits(in_all=3, per_address=3))
    async with (
        serving(idle, tls=TlsFiles(str(cert), str(key)).context, crowd=crowd) as at,
        AsyncExitStack() as held,
    ):
        silent = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
            held.callback(writer.close)
            silent.append((reader, writer))
        async with asyncio.timeout(SOON_S):
            told = await silent[3][0].read()  # it is closed, as one too many
        silent[0][1].close()
        name = await shown_in_the_end(at, trusting(cert))

    assert told == b""
    assert name == "server"


async def shown_in_the_end(at: Served, trust: ssl.SSLContext) -> str:
    """As `shown`, once there is room."""
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                return await shown(at, trust)
            except OSError:
                await asyncio.sleep(0.02)  # cadence
