"""proxy.admission.gate: by itself, and before the real routes on a real port."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.typing import EventDict

from proxy.admission.gate import (
    Caller,
    Gate,
    KeyRefused,
    Management,
    ManagementClosed,
    ScopeTooSmall,
)
from proxy.admission.keys import ApiKey, KeyRing, Scope, digest_of, token_of
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import SETTINGS, Served, serving

EXPIRES_S, SOON_S = 1.0, 30.0
NOW = 1_800_000_000.0
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one two"}], "stream": False}


def key_of(scope: Scope) -> tuple[ApiKey, str]:
    key_id, token = token_of(bytes([scope]) * 36)
    return ApiKey(key_id, scope.word, scope, digest_of(token), NOW, None), token


KEYS, TOKENS = zip(*(key_of(scope) for scope in Scope), strict=True)
INFER, MANAGE, ADMIN = TOKENS
LOCKED = Gate(KeyRing(KEYS), needs_key=True)
OPEN = Gate(KeyRing(), needs_key=False)


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + token.encode())]


@pytest.mark.parametrize(
    ("headers", "key_id"),
    [
        (bearer(INFER), KEYS[0].key_id),
        ([(b"authorization", b"bearer  " + ADMIN.encode() + b" ")], KEYS[2].key_id),
        ([(b"x-api-key", MANAGE.encode())], KEYS[1].key_id),
        ([(b"x-api-key", b"dummy"), *bearer(INFER)], KEYS[0].key_id),
        ([*bearer("dummy"), (b"x-api-key", INFER.encode())], KEYS[0].key_id),
    ],
    ids=["bearer", "small, blanks", "x-api-key", "a dummy first", "a dummy bearer"],
)
def test_a_key_is_told_as_openai_or_as_anthropic_clients_tell_it(
    headers: Sequence[tuple[bytes, bytes]], key_id: str
) -> None:
    assert LOCKED.admit("POST", "/api/chat", headers, now=NOW) == Caller(key_id, is_known=True)


@pytest.mark.parametrize(
    ("headers", "was_told"),
    [
        ([], False),
        (bearer(""), True),
        (bearer(INFER[:-1]), True),
        ([(b"authorization", b"Basic " + INFER.encode())], False),
        ([(b"cookie", INFER.encode())], False),
        ([*bearer("dummy"), *bearer(INFER)], True),
    ],
    ids=["none", "empty", "wrong", "Basic", "a cookie", "a second of one kind"],
)
def test_without_a_valid_key_nobody_is_let_in(
    headers: Sequence[tuple[bytes, bytes]], was_told: bool
) -> None:
    with pytest.raises(KeyRefused) as refused:
        LOCKED.admit("POST", "/api/chat", headers, now=NOW)

    assert refused.value.was_told is was_told


@pytest.mark.parametrize(
    ("token", "path", "is_enough"),
    [
        (INFER, "/api/chat", True),
        (INFER, "/api/pull", False),
        (INFER, "/new/route", False),
        (MANAGE, "/api/pull", True),
        (MANAGE, "/new/route", False),
        (ADMIN, "/api/chat", True),
        (ADMIN, "/api/pull", True),
        (ADMIN, "/new/route", True),
    ],
)
def test_a_key_opens_what_its_scope_reaches(token: str, path: str, is_enough: bool) -> None:
    if is_enough:
        assert LOCKED.admit("POST", path, bearer(token), now=NOW).is_known
    else:
        with pytest.raises(ScopeTooSmall):
            LOCKED.admit("POST", path, bearer(token), now=NOW)


def test_liveness_is_answered_to_anybody_and_who_has_a_key_is_known() -> None:
    assert LOCKED.admit("GET", "/health", [], now=NOW) == Caller(None, is_known=False)
    assert LOCKED.admit("GET", "/health", bearer(INFER), now=NOW).is_known


def test_where_no_key_is_needed_any_will_do() -> None:
    assert OPEN.admit("POST", "/api/pull", bearer("ollama"), now=NOW) == Caller(None, is_known=True)


@pytest.mark.parametrize("gate", [OPEN, LOCKED], ids=["open", "locked"])
def test_management_that_is_off_is_off_for_every_key(gate: Gate) -> None:
    off = replace(gate, management=Management.OFF)

    with pytest.raises(ManagementClosed):
        off.admit("DELETE", "/api/delete", bearer(ADMIN), now=NOW)
    assert off.admit("POST", "/api/chat", bearer(INFER), now=NOW).is_known
    assert off.admit("GET", "/metrics", bearer(ADMIN), now=NOW).is_known


def test_management_by_key_needs_one_where_nothing_else_does() -> None:
    gate = replace(OPEN, management=Management.KEY)

    assert gate.admit("POST", "/api/chat", [], now=NOW).is_known
    with pytest.raises(KeyRefused):
        gate.admit("POST", "/api/pull", [], now=NOW)


# Before the routes.


@asynccontextmanager
async def locked(fleet: FleetOfOne, gate: Gate = LOCKED) -> AsyncIterator[Served]:
    async with serving(fleet, settings=replace(SETTINGS, gate=gate)) as at:
        yield at


@pytest.fixture
def idle(tmp_path: Path) -> FleetOfOne:
    return FleetOfOne(served_model(), tmp_path)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/api/chat", lambda body: body["error"]),
        ("/v1/chat/completions", lambda body: body["error"]["message"]),
        ("/v1/messages", lambda body: body["error"]["message"]),
        ("/nowhere", lambda body: body["error"]),
    ],
)
async def test_a_caller_without_a_key_is_told_in_its_dialect_how_to_send_one(
    idle: FleetOfOne, path: str, told: object
) -> None:
    async with locked(idle) as at:
        reply = await at.client.post(path, json=CHAT)

    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == 'Bearer realm="inferenceosd"'
    assert callable(told)
    assert "Authorization: Bearer" in told(reply.json())
    assert idle.leases == 0


async def test_openais_and_anthropics_clients_know_the_error_by_its_type(idle: FleetOfOne) -> None:
    async with locked(idle) as at:
        openai = await at.client.post("/v1/chat/completions", json=CHAT)
        anthropic = await at.client.post("/v1/messages", json=CHAT)

    assert openai.json()["error"]["code"] == "invalid_api_key"
    assert anthropic.json()["error"]["type"] == "authentication_error"


async def test_a_key_that_does_not_reach_is_told_which_scope_would(idle: FleetOfOne) -> None:
    async with locked(idle) as at:
        headers = {"authorization": f"Bearer {INFER}"}
        reply = await at.client.request("DELETE", "/api/delete", headers=headers)

    assert reply.status_code == 403
    assert 'scope="manage"' in reply.headers["www-authenticate"]
    assert "scope manage" in reply.json()["error"]


async def test_the_keys_id_is_the_caller_and_the_key_is_in_no_log(
    tmp_path: Path, served: list[EventDict]
) -> None:
    async with fleet_of_one(tmp_path) as fleet, locked(fleet) as at:
        reply = await at.client.post("/api/chat", json=CHAT, headers={"x-api-key": INFER})

    (line,) = (event for event in served if event["event"] == "request.served")
    assert reply.status_code == 200
    assert line["caller"] == KEYS[0].key_id
    assert line["address"] == "127.0.0.1"
    assert INFER not in repr(served)


async def test_a_key_that_expires_opens_nothing_more_on_a_connection_that_it_opened(
    idle: FleetOfOne,
) -> None:
    brief = replace(KEYS[0], expires_at=time.time() + EXPIRES_S)
    settings = replace(SETTINGS, gate=Gate(KeyRing([brief]), needs_key=True))
    async with serving(idle, settings=settings) as at:
        told = 200
        async with asyncio.timeout(SOON_S):
            while told == 200:
                reply = await at.client.get("/api/tags", headers={"x-api-key": INFER})
                told = reply.status_code

    assert told == 401


async def test_who_shows_no_key_learns_that_it_lives_and_no_counts(idle: FleetOfOne) -> None:
    async with locked(idle) as at:
        stranger = await at.client.get("/health")
        known = await at.client.get("/health", headers={"x-api-key": INFER})
        root = await at.client.get("/")

    assert stranger.json() == {"status": "ok"}
    assert known.json()["models"] == 1
    assert root.status_code == 200


PAGES = replace(LOCKED, has_pages=True)
PAGE = "/upstream/tiny/"


def basic(password: str, user: str = "me") -> tuple[bytes, bytes]:
    return b"authorization", b"Basic " + base64.b64encode(f"{user}:{password}".encode())


@pytest.mark.parametrize(
    "headers",
    [
        [basic(INFER)],
        [basic(INFER, user="")],
        [basic(INFER), (b"sec-fetch-site", b"none")],
        [basic(INFER), (b"sec-fetch-site", b"same-origin")],
    ],
)
def test_a_browser_tells_a_key_as_a_password_where_there_is_a_web_chat(
    headers: Sequence[tuple[bytes, bytes]],
) -> None:
    assert PAGES.admit("GET", PAGE, headers, now=NOW) == Caller(KEYS[0].key_id, is_known=True)


@pytest.mark.parametrize(
    ("gate", "path", "headers"),
    [
        (LOCKED, PAGE, [basic(INFER)]),
        (PAGES, "/api/chat", [basic(INFER)]),
        (PAGES, "/v1/chat/completions", [basic(INFER)]),
        (PAGES, PAGE, [basic(INFER), (b"sec-fetch-site", b"cross-site")]),
        (PAGES, PAGE, [basic(INFER), (b"sec-fetch-site", b"same-site")]),
        (PAGES, PAGE, [basic("", user=INFER)]),
        (PAGES, PAGE, [basic(INFER[:-1])]),
        (PAGES, PAGE, [(b"authorization", b"Basic " + INFER.encode())]),
        (PAGES, PAGE, [(b"authorization", b"Basic \xff=")]),
    ],
    ids=[
        "no web chat",
        "Ollama's routes",
        "OpenAI's routes",
        "another site's wish",
        "another port's wish",
        "a key as name",
        "wrong",
        "no Base64",
        "no ASCII",
    ],
)
def test_a_password_opens_nothing_else_and_not_because_another_page_asks(
    gate: Gate, path: str, headers: Sequence[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(KeyRefused):
        gate.admit("GET", path, headers, now=NOW)


async def test_a_browser_is_asked_for_a_password_and_then_let_in(idle: FleetOfOne) -> None:
    async with serving(idle, settings=replace(SETTINGS, gate=PAGES, ui=True)) as at:
        asked = await at.client.get("/upstream/tiny")
        let_in = await at.client.get("/upstream/tiny", auth=("me", INFER))
        elsewhere = await at.client.get("/api/tags", auth=("me", INFER))

    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith('Basic realm="')
    assert let_in.status_code == 308
    assert elsewhere.headers["www-authenticate"] == 'Bearer realm="inferenceosd"'


@pytest.mark.parametrize("path", ["//api//chat", "/api/chat/", "/api/%63hat", "/api/ch%61t/"])
async def test_no_spelling_of_an_address_gets_by(idle: FleetOfOne, path: str) -> None:
    async with locked(idle) as at:
        reply = await at.client.post(f"{at.url}{path}", json=CHAT)

    assert reply.status_code == 401


async def test_a_page_that_may_call_is_told_of_a_missing_key_and_may_ask_what_to_send(
    idle: FleetOfOne,
) -> None:
    origin = {"origin": "http://localhost:3000"}
    async with locked(idle) as at:
        preflight = await at.client.options("/api/chat", headers=origin)
        refused = await at.client.post("/api/chat", json=CHAT, headers=origin)

    assert preflight.status_code == 204
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == origin["origin"]


async def test_a_key_does_not_let_a_foreign_page_in(idle: FleetOfOne) -> None:
    headers = {"origin": "https://evil.example", "authorization": f"Bearer {ADMIN}"}
    async with locked(idle) as at:
        reply = await at.client.get("/api/tags", headers=headers)

    assert reply.status_code == 403


async def test_a_body_is_not_read_before_its_key(idle: FleetOfOne) -> None:
    async with locked(idle) as at:
        reply = await at.client.post("/api/chat", content=b"x" * (3 << 20))

    assert reply.status_code == 401  # and not 413
    assert json.loads(reply.content)["error"]
