"""proxy.admin.routes: the door's answers, good and bad, over a real Unix socket."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import msgspec
import pytest

from proxy.admin.models import ModelsReport
from proxy.admin.plan import PlanReport
from proxy.admin.records import EventReport, EventsReport, Followed
from proxy.admin.routes import MAX_BODY_BYTES
from proxy.admin.status import StatusReport
from supervisor.records.journal_file import JournalUnreadable
from tests.fakes.admin_service import (
    BUILD,
    EVENTS,
    MODELS,
    PLAN,
    PROFILE,
    STATUS,
    OneModelService,
    admin_socket,
)

NOT_FOUND = "not found; inferenceosctl models lists what is offered"


@pytest.fixture
def service() -> OneModelService:
    return OneModelService()


@pytest.fixture
def client(service: OneModelService) -> Iterator[httpx.Client]:
    with (
        admin_socket(service) as path,
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://d", timeout=10
        ) as client,
    ):
        yield client


def test_every_value_comes_back_as_it_was_sent(client: httpx.Client) -> None:
    def get(path: str) -> bytes:
        return client.get(path).raise_for_status().content

    plan = client.post("/plan", json={"model": "qwen"}).raise_for_status().content

    assert msgspec.json.decode(get("/status"), type=StatusReport) == STATUS
    assert msgspec.json.decode(get("/models"), type=ModelsReport) == MODELS
    assert msgspec.json.decode(get("/events"), type=EventsReport).events == EVENTS
    assert msgspec.json.decode(plan, type=PlanReport).plan == PLAN


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/yield", {"bytes": -1}),
        ("/yield", {}),
        ("/yield", {"n_bytes": 1, "all": True}),
        ("/migrate", {"model": "qwen", "layer": 3}),
        ("/load", {"model": "qwen", "contxt": 8192}),
        ("/forget", {"every": True}),
        ("/engines", {"action": "burn", "build": BUILD.build_id}),
    ],
)
def test_an_order_that_says_too_little_or_another_word_is_not_guessed_at(
    client: httpx.Client, path: str, body: dict[str, object]
) -> None:
    reply = client.post(path, json=body)

    assert reply.status_code == 400, reply.text


def test_orders_are_carried_out_and_answered(client: httpx.Client) -> None:
    asked = {"model": "qwen"}

    assert client.post("/load", json=asked).json() == {"model": "qwen", "load_s": 3.5}
    assert client.post("/unload", json=asked).json() == {
        "model": "qwen", "was_loaded": True, "is_pinned": False,
    }  # fmt: skip
    assert client.post("/retry", json=asked).json() == {"model": "qwen", "had_failed": False}
    assert client.post("/reload").json()["changed"] == ["qwen restarts with context 8192"]
    assert client.get("/logs", params={"model": "qwen", "tail": 2}).json()["lines"] == [
        "two",
        "three",
    ]


def followed(client: httpx.Client, service: OneModelService, path: str) -> list[Followed]:
    """The values of a stream that goes on until the service says that it is over."""
    heard: list[Followed] = []
    with client.stream("GET", path) as reply:
        assert reply.raise_for_status().headers["content-type"] == "application/x-ndjson"
        for line in reply.iter_lines():
            heard.append(msgspec.json.decode(line, type=Followed))
            if heard[-1] == Followed():
                service.is_over.set()
    return heard


def test_events_are_followed_with_gaps_and_signs_of_life(
    client: httpx.Client, service: OneModelService
) -> None:
    told = followed(client, service, "/events?follow=1&model=qwen&limit=1&since_s=60")

    assert told[:3] == [Followed(EVENTS[-1]), Followed(skipped=7), Followed()]
    assert service.asked == [("follow", "qwen", 60, 1)]


def test_a_log_is_followed_line_by_line(client: httpx.Client, service: OneModelService) -> None:
    told = followed(client, service, "/logs?follow=1&model=qwen&tail=2")

    assert told[:2] == [Followed(line="two"), Followed(line="three")]


def test_the_log_of_an_unknown_model_is_not_followed(client: httpx.Client) -> None:
    reply = client.get("/logs?follow=1&model=gpt")

    assert (reply.status_code, reply.json()) == (404, {"error": f"model 'gpt' {NOT_FOUND}"})


def test_a_follower_who_leaves_ends_his_stream(
    client: httpx.Client, service: OneModelService
) -> None:
    with client.stream("GET", "/events?follow=1") as reply:
        assert next(reply.iter_lines())

    assert service.has_ended.wait(10)


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"model": "qwen"}, ("forget", "qwen", None)),
        ({"device": "host"}, ("forget", None, "host")),
        ({"all": True}, ("forget", None, None)),
    ],
)
def test_what_was_learned_is_forgotten_as_far_as_asked(
    client: httpx.Client, service: OneModelService, body: object, asked: object
) -> None:
    reply = client.post("/forget", json=body).raise_for_status()

    assert (reply.json()["launches"], reply.json()["requests"]) == (3, 17)
    assert service.asked == [asked]


def test_numbers_reach_the_service(client: httpx.Client, service: OneModelService) -> None:
    client.post("/plan", json={"model": "qwen", "context": 4096, "parallel": 2})
    client.get("/events", params={"model": "qwen", "since_s": 3600, "limit": 1})

    assert service.asked == [("plan", "qwen", 4096, 2, None), ("events", "qwen", 3600, 1)]


def test_what_does_not_fit_is_an_answer_and_no_error(
    client: httpx.Client, service: OneModelService
) -> None:
    service.fits = False

    reply = client.post("/plan", json={"model": "qwen"})

    assert reply.status_code == 200
    assert reply.json()["plan"] is None
    assert reply.json()["shortfall"]["missing_bytes"] == {"pci:0000:01:00.0": 3 << 30}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/plan", {"model": "gpt"}),
        ("POST", "/plans", {"models": ["qwen", "gpt"]}),
        ("POST", "/load", {"model": "gpt"}),
        ("POST", "/unload", {"model": "gpt"}),
        ("POST", "/retry", {"model": "gpt"}),
        ("GET", "/logs?model=gpt", None),
    ],
)
def test_an_unknown_model_is_not_found(
    client: httpx.Client, method: str, path: str, body: object
) -> None:
    reply = client.request(method, path, json=body)

    assert reply.status_code == 404
    assert reply.json() == {"error": f"model 'gpt' {NOT_FOUND}"}


def test_a_model_that_cannot_be_served_says_why_and_when_to_ask_again(
    client: httpx.Client, service: OneModelService
) -> None:
    service.unavailable = "died of SIGSEGV"

    reply = client.post("/load", json={"model": "qwen"})

    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
    assert reply.json() == {"error": "qwen cannot be served: died of SIGSEGV"}


def test_a_journal_that_cannot_be_read_is_no_journal_without_events() -> None:
    class Sick(OneModelService):
        async def events(
            self, *, name: str | None, since_s: float | None, limit: int
        ) -> Sequence[EventReport]:
            raise JournalUnreadable(path=Path("/state/journal.db"), why="disk is full")

    with (
        admin_socket(Sick()) as path,
        httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://d") as client,
    ):
        reply = client.get("/events")

    assert reply.status_code == 503
    assert "/state/journal.db, cannot be read just now: disk is full" in reply.json()["error"]


def test_a_wrong_configuration_is_refused_in_its_own_words(
    client: httpx.Client, service: OneModelService
) -> None:
    service.config_mistake = "/etc/config.toml:3: log.level: 'loud' is none of them"

    reply = client.post("/reload")

    assert reply.status_code == 409
    assert reply.json() == {"error": service.config_mistake}


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/load", b"", 400),
        ("/forget", b"{}", 400),
        ("/forget", b'{"model": "qwen", "all": true}', 400),
        ("/load", b"{", 400),
        ("/load", b"[]", 400),
        ("/load", b'{"model": 3}', 400),
        ("/load", b"\xff", 400),
        ("/load", b"[" * 10_000, 400),
        ("/load", b" " * (MAX_BODY_BYTES + 1), 413),
        ("/plan", b'{"model": "qwen", "context": 0}', 400),
        ("/plans", b'{"models": []}', 400),
        ("/plans", b'{"models": ["a","b","c","d","e","f","g","h","i"]}', 400),
        ("/plans", b'{"models": ["qwen"], "parallel": 0}', 400),
        ("/plan", b'{"model": "qwen", "context": 99999999999}', 400),
        ("/plan", b'{"model": "qwen", "parallel": 257}', 400),
    ],
)
def test_a_body_that_makes_no_sense_is_told_so(
    client: httpx.Client, path: str, content: bytes, status: int
) -> None:
    reply = client.post(path, content=content)

    assert reply.status_code == status
    assert reply.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/logs",
        "/logs?model=qwen&tail=-1",
        "/logs?model=qwen&tail=many",
        "/logs?model=qwen&tail=²",
        "/events?limit=99999999",
        "/events?since_s=1e9",
    ],
)
def test_a_query_that_makes_no_sense_is_told_so(client: httpx.Client, path: str) -> None:
    reply = client.get(path)

    assert reply.status_code == 400
    assert reply.json()["error"]


def test_an_unending_body_is_cut_at_the_bound(client: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 4096

    reply = client.post("/load", content=endless())

    assert reply.status_code == 413


def test_other_paths_and_methods_do_nothing(client: httpx.Client) -> None:
    assert client.get("/").status_code == 404
    assert client.get("/reload").status_code == 405
    assert client.delete("/status").status_code == 405


def test_json_is_flat_and_has_units(client: httpx.Client) -> None:
    status = json.loads(client.get("/status").content)

    instance = status["instances"][0]
    assert (instance["context"], instance["slots"], instance["pid"]) == (4096, 2, 4712)
    assert instance["memory"][0]["measured_bytes"] == (4 << 30) + (812 << 20)
    assert status["devices"][0]["ours_bytes"] == (4 << 30) + (812 << 20)


@pytest.mark.parametrize("path", ["/load", "/unload", "/retry", "/plan"])
def test_who_asks_for_a_broken_file_is_told_why(client: httpx.Client, path: str) -> None:
    reply = client.post(path, json={"model": "LFS"})

    assert (reply.status_code, reply.json()["error"]) == (
        400,
        "model 'LFS' cannot be used: a git-lfs pointer, not a model: run git lfs pull",
    )


def test_a_machine_that_is_no_profile_is_refused_with_what_is_wrong(client: httpx.Client) -> None:
    reply = client.post("/plan", json={"model": "qwen", "hardware": '{"version": 7}'})

    assert reply.status_code == 400
    assert "no hardware profile: format must be" in reply.json()["error"]


def test_the_machine_is_told_as_it_would_be_recorded(client: httpx.Client) -> None:
    assert client.get("/profile").text == PROFILE
