"""What stops a request at the door or in the line, as the official clients' own error classes."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anthropic
import ollama
import openai
import pytest
from anthropic.types import MessageParam
from msgspec.structs import replace
from openai.types.chat import ChatCompletionMessageParam

from planners.model import ModelId
from proxy.admission.gate import Gate
from proxy.admission.keys import ID_BYTES, SECRET_BYTES, ApiKey, KeyRing, Scope, digest_of, token_of
from supervisor.leases.lease import LineFull
from tests.fakes.fleet_of_one import FleetOfOne, fleet_of_one, served_model
from tests.fakes.serving import SETTINGS, serving

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "one two three"}]
CLAUDE_HELLO: list[MessageParam] = [{"role": "user", "content": "one two three"}]
KEY_ID, TOKEN = token_of(bytes(range(ID_BYTES + SECRET_BYTES)))
KEY = ApiKey(KEY_ID, "laptop", Scope.INFER, digest_of(TOKEN), created_at=0.0, expires_at=None)
LOCKED = replace(SETTINGS, gate=Gate(KeyRing([KEY]), needs_key=True))
TOO_MUCH = "a" * (SETTINGS.max_body_bytes + 1)


def openai_client(url: str, key: str = "none", *, max_retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=max_retries)


def anthropic_client(url: str, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)


CALLS: list[Callable[[openai.AsyncOpenAI], Awaitable[object]]] = [
    lambda c: c.chat.completions.create(model="tiny", messages=HELLO),
    lambda c: c.chat.completions.create(model="tiny", messages=HELLO, stream=True),
    lambda c: c.responses.create(model="tiny", input="one"),
    lambda c: c.embeddings.create(model="tiny", input="one"),
    lambda c: c.models.retrieve("tiny"),
]


async def test_openai_is_told_of_a_wrong_key(tmp_path: Path) -> None:
    async with (
        serving(FleetOfOne(served_model(), tmp_path), settings=LOCKED) as at,
        openai_client(at.url, "sk-wrong") as client,
    ):
        for call in CALLS:
            with pytest.raises(openai.AuthenticationError, match="not valid") as refused:
                await call(client)

            assert refused.value.code == "invalid_api_key"
            assert refused.value.request_id


async def test_anthropic_and_ollama_are_told_of_a_wrong_key(tmp_path: Path) -> None:
    async with (
        serving(FleetOfOne(served_model(), tmp_path), settings=LOCKED) as at,
        anthropic_client(at.url, "sk-wrong") as client,
    ):
        with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
            await client.messages.create(model="tiny", max_tokens=4, messages=CLAUDE_HELLO)
        async with ollama.AsyncClient(host=at.url, trust_env=False) as other:
            with pytest.raises(ollama.ResponseError, match="API key is needed") as refused:
                await other.chat("tiny", messages=[{"role": "user", "content": "one"}])

    assert refused.value.status_code == 401


async def test_each_client_is_let_in_with_its_key(tmp_path: Path) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet, settings=LOCKED) as at:
        async with openai_client(at.url, TOKEN) as client:
            reply = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3)
        async with anthropic_client(at.url, TOKEN) as claude:
            message = await claude.messages.create(
                model="tiny", max_tokens=3, messages=CLAUDE_HELLO
            )
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with ollama.AsyncClient(host=at.url, headers=headers, trust_env=False) as other:
            listed = await other.list()

    assert reply.choices[0].message.content == "one two three"
    assert message.content[0].type == "text"
    assert [model.model for model in listed.models] == ["tiny:latest"]


async def test_a_page_of_elsewhere_is_denied_in_each_clients_class(tmp_path: Path) -> None:
    page = {"origin": "https://evil.example"}
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        async with openai_client(at.url) as client:
            with pytest.raises(openai.PermissionDeniedError, match="Origin"):
                await client.chat.completions.create(
                    model="tiny", messages=HELLO, extra_headers=page
                )
        async with anthropic_client(at.url) as claude:
            with pytest.raises(anthropic.PermissionDeniedError, match="Origin"):
                await claude.messages.create(
                    model="tiny", max_tokens=4, messages=CLAUDE_HELLO, extra_headers=page
                )


async def test_what_is_too_large_is_told_in_each_clients_class(tmp_path: Path) -> None:
    async with serving(FleetOfOne(served_model(), tmp_path)) as at:
        async with openai_client(at.url) as client:
            with pytest.raises(openai.APIStatusError) as refused:
                await client.completions.create(model="tiny", prompt=TOO_MUCH)
        async with anthropic_client(at.url) as claude:
            with pytest.raises(anthropic.RequestTooLargeError, match="request_too_large"):
                await claude.messages.create(
                    model="tiny", max_tokens=4, messages=[{"role": "user", "content": TOO_MUCH}]
                )

    assert refused.value.status_code == 413


async def test_openai_tries_again_where_the_line_was_full(tmp_path: Path) -> None:
    full = LineFull(model_id=ModelId("tiny"), waiting=8, retry_after_s=0.1)
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        fleet.refusals = iter((full,))
        async with openai_client(at.url) as client:
            with pytest.raises(openai.InternalServerError) as refused:
                await client.chat.completions.create(model="tiny", messages=HELLO)
        fleet.refusals = iter((full,))
        async with openai_client(at.url, max_retries=1) as patient:
            reply = await patient.chat.completions.create(
                model="tiny", messages=HELLO, max_tokens=3
            )

    assert (refused.value.status_code, refused.value.code) == (503, "queue_full")
    assert refused.value.response.headers["retry-after"]
    assert reply.choices[0].message.content == "one two three"
