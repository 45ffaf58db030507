"""What each dialect's callers see of each fault, before the first token and in mid-stream."""

import json
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import pytest

from planners.model import ModelId
from supervisor.leases.lease import LeaseError, LineFull, ModelUnavailable, WaitTimedOut
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import serving

TINY = ModelId("tiny")
WORDS = "one two three four five six"
SCHEMA = {"type": "nothing"}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": WORDS}]},
    "/v1/completions": {"prompt": WORDS},
    "/api/chat": {"messages": [{"role": "user", "content": WORDS}]},
    "/api/generate": {"prompt": WORDS},
    "/v1/messages": {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 99},
    "/v1/responses": {"input": WORDS},
    "/completion": {"prompt": WORDS},
}
SCHEMA_TOLD: dict[str, Any] = {
    "format": SCHEMA,
    "json_schema": SCHEMA,
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "text": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
"""In each dialect's way."""
EACH_ROUTE = pytest.mark.parametrize("route", ROUTES)
STREAMED_OR_WHOLE = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def request(route: str, *, stream: bool, **more: object) -> dict[str, Any]:
    return {"model": "tiny", "stream": stream, **ROUTES[route], **more}


def is_ollama(route: str) -> bool:
    return route.startswith("/api/")


def is_anthropic(route: str) -> bool:
    return route == "/v1/messages"


def told_error(route: str, text: str) -> tuple[str, str | None]:
    """The message, and OpenAI's code, of an error object, which has the dialect's shape."""
    told = json.loads(text)
    error = told["error"]
    if is_ollama(route):
        assert isinstance(error, str)
        return error, None
    if is_anthropic(route):
        assert told["type"] == "error"
        assert set(error) >= {"type", "message"}
        return error["message"], None
    assert set(error) >= {"message", "type", "param", "code"}
    return error["message"], error["code"]


def last_message(route: str, event: str) -> str:
    """The message of the error that a stream ends with."""
    name, _, data = event.rpartition("data: ")
    names = {"/v1/messages": "event: error\n", "/v1/responses": "event: response.failed\n"}
    assert name == names.get(route, "")
    told = json.loads(data)
    if route == "/v1/responses":
        assert told["response"]["status"] == "failed"
        return str(told["response"]["error"]["message"])
    return str(told["error"] if is_ollama(route) else told["error"]["message"])


def assert_refused(
    route: str, reply: httpx.Response, status: int, code: str | None, says: str
) -> None:
    message, told_code = told_error(route, reply.text)
    assert reply.status_code == (529 if is_anthropic(route) and status == 503 else status)
    assert reply.headers["content-type"].startswith("application/json")
    assert told_code == (None if is_ollama(route) or is_anthropic(route) else code)
    assert says in message


def refusing(folder: Path, refusal: LeaseError) -> FleetOfOne:
    """A fleet that grants no lease."""
    fleet = FleetOfOne(served_model(), folder)
    fleet.refusals = repeat(refusal)
    return fleet


@EACH_ROUTE
@STREAMED_OR_WHOLE
@pytest.mark.parametrize(
    ("refusal", "status", "code", "says", "retry_after"),
    [
        (LineFull(model_id=TINY, waiting=3, retry_after_s=2.0), 503, "queue_full", "3", "2"),
        (
            WaitTimedOut(model_id=TINY, waited_s=9.0, retry_after_s=7.0),
            503,
            "wait_timed_out",
            "9 s",
            "7",
        ),
        (
            ModelUnavailable(model_id=TINY, reason="out of memory", retry_after_s=None),
            500,
            "model_unavailable",
            "out of memory",
            None,
        ),
        (
            ModelUnavailable(model_id=TINY, reason="out of memory", retry_after_s=30.0),
            503,
            "model_unavailable",
            "out of memory",
            "30",
        ),
    ],
    ids=["a full line", "a wait too long", "a load that failed", "and may be tried again"],
)
async def test_a_lease_that_is_refused_says_why_and_when_to_come_back(
    tmp_path: Path,
    route: str,
    stream: bool,
    refusal: LeaseError,
    status: int,
    code: str,
    says: str,
    retry_after: str | None,
) -> None:
    async with serving(refusing(tmp_path, refusal)) as at:
        reply = await at.client.post(route, json=request(route, stream=stream))

    assert_refused(route, reply, status, code, says)
    assert reply.headers.get("retry-after") == retry_after


@EACH_ROUTE
@STREAMED_OR_WHOLE
async def test_an_unknown_model_is_a_404(tmp_path: Path, route: str, stream: bool) -> None:
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        reply = await at.client.post(route, json=request(route, stream=stream, model="nope"))

    assert_refused(route, reply, 404, "model_not_found", "'nope' not found")


@EACH_ROUTE
@STREAMED_OR_WHOLE
async def test_too_long_a_prompt_is_a_400_below_the_models_path_too(
    tmp_path: Path, route: str, stream: bool
) -> None:
    paths = [route] if is_ollama(route) else [route, f"/upstream/tiny{route}"]
    async with fleet_of_one(tmp_path, n_ctx=4) as fleet, serving(fleet) as at:
        replies = [await at.client.post(path, json=request(route, stream=stream)) for path in paths]

    says = "the prompt of 6 tokens exceeds the context of 4 tokens"
    for reply in replies:
        assert_refused(route, reply, 400, "context_length_exceeded", says)


@EACH_ROUTE
@STREAMED_OR_WHOLE
async def test_a_grammar_that_is_none_is_a_400(tmp_path: Path, route: str, stream: bool) -> None:
    told = request(route, stream=stream, **SCHEMA_TOLD)
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(route, json=told)

    assert_refused(route, reply, 400, "invalid_request_error", "failed to parse grammar")


@EACH_ROUTE
@STREAMED_OR_WHOLE
async def test_a_child_lost_twice_before_a_token_is_told_with_its_end(
    tmp_path: Path, route: str, stream: bool
) -> None:
    faults = {"die_before_reply": True}
    async with fleet_of_one(tmp_path, faults=faults) as fleet, serving(fleet) as at:
        reply = await at.client.post(route, json=request(route, stream=stream))

    status = 500 if is_ollama(route) else 502
    says = "model runner has unexpectedly stopped before it answered, 2 times on this request"
    assert_refused(route, reply, status, "request_ends_model", says)
    assert reply.headers["x-should-retry"] == "false"
    assert fleet.launches == 2


@EACH_ROUTE
@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"die_at_byte": 1800}, "model runner has unexpectedly stopped in the middle"),
        ({"cut_at_byte": 1800}, "model runner has unexpectedly stopped in the middle"),
        ({"error_at_token": 2}, "Context size has been exceeded."),
        ({"end_at_token": 2}, "its stream ended before its end"),
    ],
    ids=["dies", "closes", "tells an error", "ends early"],
)
async def test_a_stream_that_breaks_ends_with_an_error_in_its_dialect(
    tmp_path: Path, route: str, faults: dict[str, Any], says: str
) -> None:
    paced = {"token_s": 0.01, **faults}  # so that tokens come before what breaks
    async with fleet_of_one(tmp_path, faults=paced) as fleet, serving(fleet) as at:
        reply = await at.client.post(route, json=request(route, stream=True))

    end = "\n" if is_ollama(route) else "\n\n"
    *before, last, rest = reply.text.split(end)
    assert (reply.status_code, rest) == (200, "")
    assert before
    assert not any("rror" in part for part in before if '"error":null' not in part)
    assert says in last_message(route, last)
    assert "[DONE]" not in reply.text
    assert '"done":true' not in reply.text


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions", "/completion"])
async def test_a_childs_error_in_mid_stream_is_worded_as_any_other_and_counted(
    tmp_path: Path, route: str
) -> None:
    async with fleet_of_one(tmp_path, faults={"error_at_token": 2}) as fleet, serving(fleet) as at:
        told = {"model": "tiny", "prompt": "one two", "stream": True}
        told["messages"] = [{"role": "user", "content": "one two"}]
        reply = await at.client.post(route, json=told)
        metrics = (await at.client.get("/metrics")).text

    *_, last, _ = reply.text.split("\n\n")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["type"], error["code"], error["param"]) == ("api_error", "model_failed", None)
    assert reply.text.count('"error"') == 1
    assert 'inferenceosd_errors_total{code="model_failed"} 1.0' in metrics


@EACH_ROUTE
async def test_tokens_that_came_with_an_error_are_told_before_it(
    tmp_path: Path, route: str
) -> None:
    async with fleet_of_one(tmp_path, faults={"error_at_token": 2}) as fleet, serving(fleet) as at:
        reply = await at.client.post(route, json=request(route, stream=True))

    assert reply.status_code == 200
    assert reply.text.index("two") < reply.text.index("Context size has been exceeded.")


@EACH_ROUTE
@pytest.mark.parametrize(
    ("faults", "status", "code", "says"),
    [
        ({"die_at_byte": 1800}, 502, "request_ends_model", "unexpectedly stopped in the middle"),
        ({"error_at_token": 2}, 500, "model_failed", "Context size has been exceeded."),
        ({"end_at_token": 2}, 502, "model_lost", "its stream ended before its end"),
    ],
    ids=["dies", "tells an error", "ends early"],
)
async def test_a_whole_reply_that_breaks_is_an_error_and_nothing_of_the_reply(
    tmp_path: Path, route: str, faults: dict[str, Any], status: int, code: str, says: str
) -> None:
    async with fleet_of_one(tmp_path, faults=faults) as fleet, serving(fleet) as at:
        reply = await at.client.post(route, json=request(route, stream=False))

    assert_refused(route, reply, 500 if is_ollama(route) else status, code, says)
