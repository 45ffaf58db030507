"""Several choices of one request, before a fake child and before the engine itself."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.fakes.fleet_of_one import fleet_of_one
from tests.fakes.real_engine import engine
from tests.fakes.serving import serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = "one two three"
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": WORDS}],
    "prompt": WORDS,
    "n": 3,
}
EACH_ROUTE = pytest.mark.parametrize("route", [CHAT, COMPLETIONS])


def chunks(reply: httpx.Response) -> list[dict[str, Any]]:
    *events, last, end = reply.text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def text_of(choice: dict[str, Any]) -> str:
    told = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
    return told.get("content") or ""


@EACH_ROUTE
async def test_a_whole_reply_has_so_many_choices_and_counts_the_prompt_once(
    tmp_path: Path, route: str
) -> None:
    async with fleet_of_one(tmp_path, faults={"tokens": 4}) as fleet, serving(fleet) as at:
        reply = (await at.client.post(route, json=ASKED)).json()

    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert [text_of(choice) for choice in reply["choices"]] == ["one two three one"] * 3
    assert {choice["finish_reason"] for choice in reply["choices"]} == {"stop"}
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (3, 12)
    assert reply["usage"]["total_tokens"] == 15
    assert (fleet.most_leases, fleet.answers, fleet.usages[0].decode_tokens) == (1, 1, 12)


@EACH_ROUTE
async def test_a_stream_tells_one_choice_after_another_and_its_usage_where_asked(
    tmp_path: Path, route: str
) -> None:
    told = {**ASKED, "stream": True}
    async with fleet_of_one(tmp_path, faults={"tokens": 4}) as fleet, serving(fleet) as at:
        plain = chunks(await at.client.post(route, json=told))
        options = {"stream_options": {"include_usage": True}}
        *parts, last = chunks(await at.client.post(route, json={**told, **options}))

    choices = [choice for part in plain for choice in part["choices"]]
    indices = [choice["index"] for choice in choices]
    assert indices == sorted(indices)
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(map(text_of, own)) == "one two three one"
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
    assert len({part["id"] for part in plain}) == 1
    assert not any("usage" in part or "prompt_progress" in part for part in [*plain, *parts])
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 15)
    assert last["object"] == plain[0]["object"]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"n": 9}, "n must be 1 to 8, not 9"),
        ({"n": 0}, "n must be 1 to 8, not 0"),
        ({"n": 2, "prompt": ["a", "b"]}, "n must be 1 where there are several prompts"),
        ({"n": 2, "seed": "a"}, "seed"),
    ],
)
async def test_what_makes_no_sense_is_refused_without_a_load(
    tmp_path: Path, told: dict[str, Any], says: str
) -> None:
    async with fleet_of_one(tmp_path) as fleet, serving(fleet) as at:
        reply = await at.client.post(COMPLETIONS, json={**ASKED, **told})

    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]
    assert fleet.launches == 0


@EACH_ROUTE
@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"error_at_token": 2}, "Context size has been exceeded."),
        ({"end_at_token": 2}, "its stream ended before its end"),
        ({"die_at_byte": 1800}, "unexpectedly stopped in the middle"),
    ],
    ids=["tells an error", "ends early", "dies"],
)
async def test_a_choice_that_breaks_ends_the_stream_with_an_error(
    tmp_path: Path, route: str, faults: dict[str, Any], says: str
) -> None:
    paced = {"token_s": 0.01, **faults}
    async with fleet_of_one(tmp_path, faults=paced) as fleet, serving(fleet) as at:
        stream = await at.client.post(route, json={**ASKED, "stream": True})
        whole = await at.client.post(route, json=ASKED)

    *before, last, end = stream.text.split("\n\n")
    assert (stream.status_code, end) == (200, "")
    assert before
    assert says in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert whole.status_code in (500, 502)
    assert says in whole.json()["error"]["message"]


async def test_who_leaves_in_the_middle_of_a_later_choice_frees_the_slot(tmp_path: Path) -> None:
    slow = {"token_s": 0.01, "tokens": 30}
    async with fleet_of_one(tmp_path, faults=slow) as fleet, serving(fleet) as at:
        told = {**ASKED, "stream": True}
        async with at.client.stream("POST", CHAT, json=told) as reply:
            lines = reply.aiter_lines()
            while '"index":1' not in await anext(lines):
                pass
        async with asyncio.timeout(5):
            while fleet.leases or any(await fleet.slots()):
                await asyncio.sleep(0.01)  # cadence

    assert fleet.answers == 0


@pytest.mark.llama
@EACH_ROUTE
async def test_the_engines_choices_are_those_of_so_many_seeds(tmp_path: Path, route: str) -> None:
    told = {**ASKED, "model": "smollm2", "max_tokens": 12, "temperature": 1.5}
    async with engine(tmp_path) as (_, at):
        whole = (await at.client.post(route, json={**told, "seed": 7})).json()
        stream = await at.client.post(route, json={**told, "seed": 7, "stream": True})
        each = [
            (await at.client.post(route, json={**told, "n": 1, "seed": seed})).json()
            for seed in (7, 8, 9)
        ]
        probable = (await at.client.post(route, json={**told, "seed": 7, "logprobs": 1})).json()

    texts = [text_of(reply["choices"][0]) for reply in each]
    streamed = [choice for part in chunks(stream) for choice in part["choices"]]
    assert [text_of(choice) for choice in whole["choices"]] == texts
    assert len(set(texts)) == 3
    for index, text in enumerate(texts):
        own = [text_of(choice) for choice in streamed if choice["index"] == index]
        assert "".join(own) == text
    assert whole["usage"]["prompt_tokens"] == each[0]["usage"]["prompt_tokens"]
    assert whole["usage"]["completion_tokens"] == sum(
        reply["usage"]["completion_tokens"] for reply in each
    )
    assert [bool(choice["logprobs"]) for choice in probable["choices"]] == [True] * 3


@pytest.mark.llama
async def test_openais_client_gets_its_choices(tmp_path: Path) -> None:
    async with (
        engine(tmp_path) as (_, at),
        openai.AsyncOpenAI(base_url=f"{at.url}/v1", api_key="none", max_retries=0) as client,
    ):
        reply = await client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Hi"}], n=2, max_tokens=4
        )

    assert [choice.index for choice in reply.choices] == [0, 1]
    assert all(choice.message.role == "assistant" for choice in reply.choices)
