import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.typing import EventDict

from planners.model import BrokenFile, BrokenKind, ServedModel
from proxy.app import ROUTES
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import SETTINGS, serving


class Faulty(FleetOfOne):
    """A fleet with a bug."""

    def models(self) -> tuple[ServedModel, ...]:
        raise ZeroDivisionError("the secret")


def fleet(folder: Path) -> FleetOfOne:
    """A fleet that is not asked to load anything."""
    return FleetOfOne(served_model(), folder)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nope", 404, "route_not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/x", 405, "method_not_allowed"),
        ("GET", "/completion", 405, "method_not_allowed"),
    ],
)
async def test_elsewhere_a_path_without_an_answer_is_an_error_in_its_dialect(
    tmp_path: Path, method: str, path: str, status: int, code: str
) -> None:
    async with serving(fleet(tmp_path)) as at:
        reply = await at.client.request(method, path)

    assert reply.status_code == status
    assert reply.json()["error"]["code"] == code
    assert (status == 405) == ("allow" in reply.headers)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/models", "overloaded_error"),
        ("/v1/messages", "overloaded_error"),
        ("/api/tags", None),
        ("/nope", None),
    ],
)
async def test_who_parts_unseen_says_of_no_model_that_it_is_missing(
    tmp_path: Path, path: str, kind: str | None
) -> None:
    async with serving(fleet(tmp_path), is_parting=True) as at:
        reply = await at.client.get(path)

    error = reply.json()["error"]
    assert reply.status_code in (503, 529)
    assert "retry-after" in reply.headers
    assert "is stopping" in (error if kind is None else error["message"])
    assert kind is None or error["type"] == kind


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/", 200, "Ollama is running"),
        ("HEAD", "/", 200, ""),
        ("GET", "/nope", 404, "404 page not found"),
        ("GET", "/api/chat", 405, "405 method not allowed"),
        ("GET", "//api/version", 200, '{"version":"0.24.0"}'),
        ("GET", "/api/version/", 200, '{"version":"0.24.0"}'),
        ("POST", "//api/embeddings", 400, '{"error":"missing request body"}'),
    ],
)
async def test_paths_are_answered_as_ollama_answers_them(
    tmp_path: Path, method: str, path: str, status: int, body: str
) -> None:
    async with serving(fleet(tmp_path)) as at:
        reply = await at.client.request(method, f"{at.url}{path}")

    assert (reply.status_code, reply.text) == (status, body)


async def test_health_counts_what_is_there(tmp_path: Path) -> None:
    async with serving(fleet(tmp_path)) as at:
        reply = await at.client.get("/health")

    assert reply.json() == {
        "status": "ok",
        "models": 1,
        "instances": 0,
        "requests_running": 0,
        "requests_waiting": 0,
    }


async def test_a_foreign_page_is_refused_and_may_not_read_why(tmp_path: Path) -> None:
    async with serving(fleet(tmp_path)) as at:
        reply = await at.client.get("/api/tags", headers={"Origin": "https://evil.example"})

    assert reply.status_code == 403
    assert "server.origins" in reply.json()["error"]
    assert "access-control-allow-origin" not in reply.headers


async def test_a_local_page_may_read_the_reply_and_errors_too(tmp_path: Path) -> None:
    origin = "http://localhost:3000"
    async with serving(fleet(tmp_path)) as at:
        replies = [
            await at.client.get(path, headers={"Origin": origin}) for path in ("/api/tags", "/nope")
        ]

    assert [r.headers["access-control-allow-origin"] for r in replies] == [origin, origin]


async def test_a_preflight_is_answered_without_a_body_or_a_length(tmp_path: Path) -> None:
    headers = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    async with serving(fleet(tmp_path)) as at:
        reply = await at.client.options("/api/chat", headers=headers)

    assert (reply.status_code, reply.content) == (204, b"")
    assert "content-length" not in reply.headers
    assert "transfer-encoding" not in reply.headers


async def test_a_rebound_host_name_is_refused_and_the_right_names_are_told(tmp_path: Path) -> None:
    async with serving(fleet(tmp_path)) as at:
        reply = await at.client.get("/v1/models", headers={"Host": "evil.example"})

    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "host_refused")
    assert "localhost" in reply.json()["error"]["message"]


async def test_slashes_to_spare_do_not_change_the_dialect(tmp_path: Path) -> None:
    async with serving(fleet(tmp_path)) as at:
        reply = await at.client.get(f"{at.url}//v1/models/nope")

    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/api/show", "/v1/completions"])
async def test_a_body_over_the_limit_is_refused(tmp_path: Path, path: str) -> None:
    body = {"model": "tiny", "prompt": "x" * (SETTINGS.max_body_bytes + 1)}
    async with serving(fleet(tmp_path)) as at:
        reply = await at.client.post(path, json=body)

    assert reply.status_code == 413
    assert "limit of 1048576 bytes" in reply.text


@pytest.mark.parametrize(
    "path",
    [
        "/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show",
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings",
    ],
)  # fmt: skip
async def test_a_body_of_too_many_values_is_refused_in_the_dialect(
    tmp_path: Path, path: str
) -> None:
    roomy = replace(SETTINGS, max_body_bytes=64 << 20)
    many = ",".join(["0"] * ((1 << 20) + 1))
    names = ("messages", "context", "input", "prompt", "options")
    told = ",".join(f'"{name}":[{many}]' for name in names)
    async with serving(fleet(tmp_path), settings=roomy) as at:
        reply = await at.client.post(path, content=f'{{"model":"tiny",{told}}}')

    error = reply.json()["error"]
    message = error["message"] if isinstance(error, dict) else error
    assert reply.status_code == 400
    assert "values; send fewer at a time" in message


async def test_the_callers_request_id_comes_back_and_is_logged(
    tmp_path: Path, served: list[EventDict]
) -> None:
    async with serving(fleet(tmp_path)) as at:
        own = await at.client.get("/health", headers={"X-Request-Id": "abc-1"})
        odd = await at.client.get("/health", headers={"X-Request-Id": "a b\tc"})

    assert own.headers["x-request-id"] == "abc-1"
    assert len(odd.headers["x-request-id"]) == 16
    assert served[0]["request_id"] == "abc-1"


async def test_a_request_is_one_log_line_without_its_prompt(
    tmp_path: Path, served: list[EventDict]
) -> None:
    told = {"model": "nope", "prompt": "my secret"}
    async with serving(fleet(tmp_path)) as at:
        await at.client.post("/api/generate", json=told)

    (line,) = served
    assert (line["event"], line["status"], line["error"]) == (
        "request.served",
        404,
        "model_not_found",
    )
    assert "secret" not in repr(line)


MOST_LINES = 3  # a request at info


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", [*ROUTES, "/v1/models/tiny", "/no/such/path"])
async def test_every_route_logs_a_few_lines_a_request_each_with_its_id(
    tmp_path: Path, path: str, method: str, served: list[EventDict]
) -> None:
    told = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "my secret"}],
        "prompt": "my secret",
        "input": "my secret",
    }
    async with fleet_of_one(tmp_path) as one, serving(one) as at:
        reply = await at.client.request(method, path, json=told, headers={"X-Request-Id": "abc-1"})

    assert reply.headers["x-request-id"] == "abc-1"
    assert 1 <= len(served) <= MOST_LINES
    assert {line["request_id"] for line in served} == {"abc-1"}
    assert "secret" not in repr(served)


@pytest.mark.parametrize("path", ["/api/tags", "/v1/models"])
async def test_a_bug_is_a_500_in_the_dialect_and_a_traceback_in_the_log(
    tmp_path: Path, path: str, served: list[EventDict]
) -> None:
    async with serving(Faulty(served_model(), tmp_path)) as at:
        reply = await at.client.get(path)
        after = await at.client.get("/api/version")

    error = reply.json()["error"]
    message = error["message"] if isinstance(error, dict) else error
    assert reply.status_code == 500
    assert reply.headers["x-request-id"] in message
    assert "secret" not in reply.text
    assert after.status_code == 200
    assert [event["event"] for event in served][:2] == ["request.failed", "request.served"]
    assert isinstance(served[0]["exc_info"], ZeroDivisionError)


class WithBroken(FleetOfOne):
    """A fleet that knows of a broken file."""

    def broken(self) -> tuple[BrokenFile, ...]:
        return (
            BrokenFile("/m/org/Big.gguf", "a git-lfs pointer", ("org/Big", "large")),
            BrokenFile("lost", "a rule without a file", ("lost", "gone"), kind=BrokenKind.RULE),
        )


async def test_broken_files_are_no_models(tmp_path: Path) -> None:
    async with serving(WithBroken(served_model(), tmp_path)) as at:
        reply = await at.client.get("/api/tags")

    assert [model["name"] for model in json.loads(reply.text)["models"]] == ["tiny:latest"]


@pytest.mark.parametrize("name", ["org/Big", "ORG/big:latest", "large"])
@pytest.mark.parametrize(
    "path",
    [
        "/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show",
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings",
    ],
)  # fmt: skip
async def test_who_asks_for_a_broken_file_is_told_why(tmp_path: Path, path: str, name: str) -> None:
    async with serving(WithBroken(served_model(), tmp_path)) as at:
        reply = await at.client.post(path, json={"model": name})
        unknown = await at.client.post(path, json={"model": "org/Bigger"})

    error = reply.json()["error"]
    sentence = f"model '{name}' cannot be used: a git-lfs pointer"
    assert (reply.status_code, unknown.status_code) == (400, 404)
    if path.startswith("/v1"):
        assert (error["message"], error["code"]) == (sentence, "model_unusable")
    else:
        assert error == sentence


@pytest.mark.parametrize("name", ["lost", "GONE:latest"])
async def test_who_asks_for_a_model_whose_rule_has_no_file_is_told_so(
    tmp_path: Path, name: str
) -> None:
    async with serving(WithBroken(served_model(), tmp_path)) as at:
        reply = await at.client.post("/v1/completions", json={"model": name})

    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (404, "model_not_found")
    assert error["message"] == f"model '{name}' not found: a rule without a file"


async def test_the_entry_of_a_broken_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with serving(WithBroken(served_model(), tmp_path)) as at:
        reply = await at.client.get("/v1/models/org/Big")

    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "model_unusable")
