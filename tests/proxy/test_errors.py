import json

import pytest

from planners.durations import BadDuration
from planners.model import ModelId
from proxy import errors
from proxy.errors import (
    BadOption,
    BadRequest,
    BodyTooLarge,
    ChildFailed,
    ChildRefused,
    CloudModel,
    Dialect,
    NotCapable,
    PromptTooLong,
    TooManyValues,
    UnknownModel,
    UnusableModel,
    UpstreamBroken,
    UpstreamGone,
    UpstreamStalled,
)
from supervisor.leases.lease import LineFull, ModelUnavailable, Stopping, WaitTimedOut

M = ModelId("m")
GONE = UpstreamGone("s", before_any_byte=True)


@pytest.mark.parametrize(
    ("exc", "openai", "ollama", "code"),
    [
        (BadRequest("x"), 400, 400, None),
        (BadOption("x"), 400, 400, None),
        (BodyTooLarge(limit_bytes=1), 413, 413, "body_too_large"),
        (TooManyValues(limit=1), 400, 400, "too_many_values"),
        (UnusableModel("x", "truncated"), 400, 400, "model_unusable"),
        (UnknownModel("x"), 404, 404, "model_not_found"),
        (CloudModel(), 403, 403, None),
        (NotCapable("m", "x", because="y"), 400, 400, "not_supported_error"),
        (PromptTooLong(model="m", n_prompt=9, n_ctx=8), 400, 400, "context_length_exceeded"),
        (ChildRefused(status=501, kind="not_supported_error", message="x"), 501, 501,
         "not_supported_error"),
        (ChildFailed("x"), 500, 500, "model_failed"),
        (LineFull(model_id=M, waiting=3, retry_after_s=2.0), 503, 503, "queue_full"),
        (WaitTimedOut(model_id=M, waited_s=3.0), 503, 503, "wait_timed_out"),
        (ModelUnavailable(model_id=M, reason="x", retry_after_s=None), 500, 500,
         "model_unavailable"),
        (ModelUnavailable(model_id=M, reason="x", retry_after_s=3.0), 503, 503,
         "model_unavailable"),
        (Stopping(), 503, 503, "stopping"),
        (GONE, 502, 500, "model_lost"),
        (UpstreamBroken("s", "x"), 502, 500, "model_lost"),
        (UpstreamStalled("s", doing="x", limit_s=1), 502, 500, "model_lost"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)  # fmt: skip
def test_every_error_has_its_status_and_code(
    exc: Exception, openai: int, ollama: int, code: str | None
) -> None:
    in_openai = errors.answer(exc, Dialect.OPENAI)
    in_ollama = errors.answer(exc, Dialect.OLLAMA)

    assert in_openai is not None
    assert in_ollama is not None
    assert (in_openai.status, in_ollama.status) == (openai, ollama)
    assert in_openai.code == code
    assert in_openai.message == str(exc)


def test_a_wrong_duration_is_told_with_its_field() -> None:
    said = errors.answer(BadDuration("x", "no"), Dialect.OLLAMA)

    assert said is not None
    assert (said.status, said.message, said.param) == (400, "keep_alive: no", "keep_alive")


def test_what_the_table_does_not_know_is_a_bug() -> None:
    assert errors.answer(ZeroDivisionError("secret"), Dialect.OPENAI) is None
    assert "secret" not in errors.internal_error("id7").message
    assert "id7" in errors.internal_error("id7").message


def test_a_full_line_tells_when_to_come_back() -> None:
    said = errors.answer(LineFull(model_id=M, waiting=3, retry_after_s=1.2), Dialect.OPENAI)

    assert said is not None
    assert said.headers == ((b"retry-after", b"2"),)


@pytest.mark.parametrize("dialect", Dialect)
def test_who_waited_in_vain_is_told_its_place_in_each_dialect(dialect: Dialect) -> None:
    exc = WaitTimedOut(model_id=M, waited_s=3.0, place=2, waiting=7, retry_after_s=4.0)
    said = errors.answer(exc, dialect)
    assert said is not None

    told = json.loads(errors.body(said, dialect))

    facts = told if dialect is Dialect.OLLAMA else told["error"]
    assert (facts["place"], facts["waiting"]) == (2, 7)
    assert "number 2 of 7 in line" in said.message
    assert said.headers == ((b"retry-after", b"4"),)


def test_openai_gets_its_error_object_with_the_numbers() -> None:
    exc = PromptTooLong(model="m", n_prompt=9, n_ctx=8)
    said = errors.answer(exc, Dialect.OPENAI)
    assert said is not None

    told = json.loads(errors.body(said, Dialect.OPENAI))["error"]

    assert told == {
        "message": str(exc),
        "type": "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded",
        "n_prompt_tokens": 9,
        "n_ctx": 8,
    }


def test_ollama_gets_one_sentence() -> None:
    said = errors.answer(UnknownModel("x"), Dialect.OLLAMA)
    assert said is not None

    assert errors.body(said, Dialect.OLLAMA) == b'{"error":"model \'x\' not found"}'


def test_anthropic_gets_its_error_object() -> None:
    said = errors.answer(UnknownModel("x"), Dialect.ANTHROPIC)
    assert said is not None

    told = json.loads(errors.body(said, Dialect.ANTHROPIC))

    assert told["type"] == "error"
    assert told["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("dialect", "ndjson", "head"),
    [
        (Dialect.OPENAI, False, b'data: {"error":{'),
        (Dialect.OLLAMA, True, b'{"error":"'),
        (Dialect.ANTHROPIC, False, b'event: error\ndata: {"type":"error"'),
    ],
)
def test_in_mid_stream_the_error_is_the_last_event(
    dialect: Dialect, ndjson: bool, head: bytes
) -> None:
    said = errors.answer(GONE, dialect)
    assert said is not None

    event = errors.event(said, dialect, ndjson=ndjson)

    assert event.startswith(head)
    assert event.endswith(b"\n" if ndjson else b"\n\n")
