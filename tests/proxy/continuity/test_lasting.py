"""Streams whose child is killed on the way, against those of a child that lives."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from planners.model import ModelId
from supervisor.leases.lease import ModelUnavailable
from tests.fakes.chat_templates import HERMES
from tests.fakes.fleet_of_one import FAKE, FleetOfOne, fleet_of_one
from tests.fakes.forms import (
    CHAT,
    FORMS,
    OF_A_TEMPLATE,
    TEXT,
    TOOLS,
    heard,
)
from tests.fakes.real_engine import engine
from tests.fakes.serving import SETTINGS, Served, serving


async def streamed(served: Served, route: str, body: dict[str, Any]) -> AsyncIterator[str]:
    """The reply, line by line."""
    asked = {"model": "smollm2", **body, "stream": True}
    async with served.client.stream("POST", route, json=asked) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            yield line


async def whole(served: Served, route: str, body: dict[str, Any]) -> str:
    return "\n".join([line async for line in streamed(served, route, body)])


async def broken(
    fleet: FleetOfOne,
    served: Served,
    route: str,
    body: dict[str, Any],
    *,
    at: int,
    lost: Callable[[], None] = lambda: None,
) -> str:
    """The reply to a request whose child is killed once `at` pieces of it were read."""
    lines: list[str] = []
    async for line in streamed(served, route, body):
        lines.append(line)
        if line.startswith(("data: ", "{")):
            at -= 1
            if at == 0:
                fleet.kill()
                lost()
    return "\n".join(lines)


def anew(fleet: FleetOfOne) -> None:
    """A new child, that has nothing cached: on a cached prompt a greedy text may differ."""
    fleet.unload(fleet.model.model_id)


async def assert_unbroken(
    fleet: FleetOfOne, served: Served, route: str, body: dict[str, Any], *, chance: Random
) -> None:
    """Killed at a random point, the reply is the one that a child alone writes."""
    alone = heard(route, await whole(served, route, body))
    anew(fleet)
    found = await broken(fleet, served, route, body, at=chance.randint(2, 6))

    assert heard(route, found) == alone
    assert [way for way, _ in fleet.resumptions] in (["replay"], ["resend"])


@pytest.mark.llama
@pytest.mark.parametrize("form", FORMS)
async def test_a_stream_whose_child_is_killed_is_the_one_that_a_child_alone_writes(
    tmp_path: Path, form: str
) -> None:
    route, body = FORMS[form]
    async with engine(tmp_path) as (fleet, served):
        await assert_unbroken(fleet, served, route, body, chance=Random(form))


@pytest.mark.llama
@pytest.mark.parametrize("at", [12, 14, 27], ids=["on the seam", "in the second", "in the third"])
async def test_of_several_choices_the_one_that_was_told_goes_on_and_the_rest_are_asked_for(
    tmp_path: Path, at: int
) -> None:
    body = {**TEXT, "n": 3, "max_tokens": 12, "ignore_eos": True}
    async with engine(tmp_path) as (fleet, served):
        alone = heard("/v1/completions", await whole(served, "/v1/completions", body))
        anew(fleet)
        found = await broken(fleet, served, "/v1/completions", body, at=at)

    assert heard("/v1/completions", found) == alone
    assert set(alone["why"]) == {0, 1, 2}
    assert fleet.leases == 0


@pytest.mark.llama
@pytest.mark.parametrize("form", OF_A_TEMPLATE)
async def test_what_a_template_makes_of_a_stream_is_whole_after_a_kill(
    tmp_path: Path, form: str
) -> None:
    template, route, body = OF_A_TEMPLATE[form]
    async with engine(tmp_path, template=template) as (fleet, served):
        await assert_unbroken(fleet, served, route, body, chance=Random(form))


@pytest.mark.llama
async def test_a_stream_without_a_seed_is_whole_after_a_kill_for_one_is_given_to_it(
    tmp_path: Path,
) -> None:
    body = {**CHAT, "temperature": 1.0, "ignore_eos": True}
    async with engine(tmp_path) as (fleet, served):
        found = await broken(fleet, served, "/v1/chat/completions", body, at=9)

    told = heard("/v1/chat/completions", found)
    assert told["why"]
    assert told["usage"].completion_tokens == CHAT["max_tokens"]
    assert [way for way, _ in fleet.resumptions] == ["replay"]


@pytest.mark.llama
@pytest.mark.parametrize(
    "form", ["chat", "text", "completion", "Ollama's chat", "chat, JSON by a schema"]
)
async def test_on_other_math_a_stream_goes_on_from_its_text(tmp_path: Path, form: str) -> None:
    route, body = FORMS[form]
    async with engine(tmp_path) as (fleet, served):
        alone = heard(route, await whole(served, route, body))
        anew(fleet)
        found = await broken(fleet, served, route, body, at=9, lost=lambda: other_math(fleet))

    told = heard(route, found)
    assert [way for way, _ in fleet.resumptions] == ["continue"]
    assert told["why"] == alone["why"]
    assert told.keys() == alone.keys()
    if form != "chat, JSON by a schema":
        assert told["usage"] == alone["usage"]


@pytest.mark.llama
async def test_on_other_math_a_tool_call_that_comes_out_the_same_goes_on(tmp_path: Path) -> None:
    route = "/v1/chat/completions"
    async with engine(tmp_path, template=HERMES) as (fleet, served):
        alone = heard(route, await whole(served, route, TOOLS))
        anew(fleet)
        found = await broken(fleet, served, route, TOOLS, at=6, lost=lambda: other_math(fleet))

    assert heard(route, found) == alone
    assert [way for way, _ in fleet.resumptions] == ["replay"]


@pytest.mark.llama
async def test_on_other_math_the_caller_of_a_tool_is_told_why_it_cannot_go_on(
    tmp_path: Path,
) -> None:
    route = "/v1/chat/completions"
    async with engine(tmp_path, template=HERMES) as (fleet, served):
        found = await broken(
            fleet, served, route, TOOLS, at=8, lost=lambda: other_math(fleet, *HALF_AS_FAR)
        )

    *_, last = [line for line in found.splitlines() if line]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert "a tool call was begun" in error["message"]
    assert "unexpectedly stopped" in error["message"]
    assert "[DONE]" not in found
    assert fleet.resumptions == []


HALF_AS_FAR = ("--rope-freq-scale", "0.5")


def other_math(fleet: FleetOfOne, *flags: str) -> None:
    """What comes next computes on another backend, by its plan; and otherwise, with `flags`."""
    fleet.plan = replace(fleet.plan, backend="vulkan")
    fleet.argv = (*fleet.argv, *flags)


@asynccontextmanager
async def fake(
    folder: Path, *, keep_alive_s: float = 15.0, **faults: object
) -> AsyncIterator[tuple[FleetOfOne, Served]]:
    """The proxy before a fake child that has these faults in its first launch."""
    told = folder / "faults"
    told.write_text(json.dumps({"launches": 1, **faults}))
    settings = replace(SETTINGS, keep_alive_comments_s=keep_alive_s)
    argv = (*FAKE, "--fake-faults", str(told))
    async with (
        fleet_of_one(folder, argv=argv) as fleet,
        serving(fleet, settings=settings) as served,
    ):
        yield fleet, served


WORDS = "one two three four"
ASKED_OF_FAKE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": WORDS}],
        "stream_options": {"include_usage": True},
    },
    "/completion": {"prompt": WORDS},
    "/api/chat": {"messages": [{"role": "user", "content": WORDS}]},
}


@pytest.mark.parametrize("route", ASKED_OF_FAKE)
async def test_wherever_a_stream_breaks_its_caller_gets_each_word_once(
    tmp_path: Path, route: str
) -> None:
    body = {"model": "tiny", **ASKED_OF_FAKE[route], "stream": True}
    async with fake(tmp_path) as (fleet, served):
        alone = (await served.client.post(route, json=body)).text
    n_launches = []
    for at in range(350, 2100, 250):
        folder = tmp_path / str(at)
        folder.mkdir()
        async with fake(folder, die_at_byte=at) as (fleet, served):
            found = (await served.client.post(route, json=body)).text

        assert heard(route, found) == heard(route, alone), at
        n_launches.append(fleet.launches)
    assert n_launches.count(2) > 3


async def test_a_caller_who_waits_for_the_rest_gets_comments(tmp_path: Path) -> None:
    route = "/v1/chat/completions"
    body = {"model": "tiny", **ASKED_OF_FAKE[route], "stream": True}
    async with fake(tmp_path, keep_alive_s=0.02, die_at_byte=1500) as (_, served):
        found = (await served.client.post(route, json=body)).text

    words = found.index('"content":"one')
    assert "\n: " in found[words:]
    assert heard(route, found)["done"]


async def test_a_stream_that_loses_a_second_child_is_told_so(tmp_path: Path) -> None:
    body = {"model": "tiny", **ASKED_OF_FAKE["/v1/chat/completions"], "stream": True}
    async with fake(tmp_path, die_at_byte=1500, launches=2) as (fleet, served):
        reply = await served.client.post("/v1/chat/completions", json=body)

    assert "2 times on this request: its process ended with -9" in reply.text
    assert fleet.launches == 2
    assert fleet.leases == 0


async def test_a_stream_moves_as_often_as_its_model_does(tmp_path: Path) -> None:
    body = {"model": "tiny", **ASKED_OF_FAKE["/v1/chat/completions"], "stream": True}
    (tmp_path / "alone").mkdir()
    async with fake(tmp_path / "alone") as (_, served):
        alone = (await served.client.post("/v1/chat/completions", json=body)).text
    async with fake(tmp_path, die_at_byte=1500, launches=4) as (fleet, served):
        fleet.why_moved = "it moved"
        found = (await served.client.post("/v1/chat/completions", json=body)).text

    assert heard("/v1/chat/completions", found) == heard("/v1/chat/completions", alone)
    assert fleet.launches == 5
    assert fleet.leases == 0


async def test_a_stream_ends_with_the_reason_where_there_is_no_other_child(tmp_path: Path) -> None:
    body = {"model": "tiny", **ASKED_OF_FAKE["/v1/chat/completions"], "stream": True}
    refusal = ModelUnavailable(
        model_id=ModelId("tiny"), reason="it died too often", retry_after_s=None
    )
    async with (
        fake(tmp_path, token_s=0.2) as (fleet, served),
        served.client.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        lines = aiter(reply.aiter_lines())
        while '"content":"one' not in await anext(lines):
            pass
        fleet.refusals = iter((refusal,))
        fleet.kill()
        rest = "\n".join([line async for line in lines])

    assert "it died too often" in rest
    assert "[DONE]" not in rest
    assert fleet.leases == 0
