"""Every field of every route that reads one, with values of other types: a 400 that names it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.prompt.options import OPTIONS
from tests.fakes.fleet_of_one import FleetOfOne, model_info, served_model
from tests.fakes.real_engine import engine
from tests.fakes.serving import serving

TEXTS = ["x", ""]
NUMBERS = [1, -3, 1.5, 1e300]
LISTS: list[Any] = [[], [1], [[]]]
OBJECTS: list[Any] = [{}, {"a": 1}]
FLAGS = [True, False]

NO_TEXT = [*NUMBERS, *LISTS, *OBJECTS, *FLAGS]
NO_NUMBER = [*TEXTS, *LISTS, *OBJECTS, *FLAGS]
NO_FLAG = [*TEXTS, *NUMBERS, *LISTS, *OBJECTS]
NO_LIST = [*TEXTS, *NUMBERS, *OBJECTS, *FLAGS]
NO_OBJECT = [*TEXTS, *NUMBERS, *LISTS, *FLAGS]
NO_SPAN = [*LISTS, *OBJECTS, *FLAGS, "x", "5", "1d"]

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PROMPT = {"model": "tiny", "prompt": "Hi"}
GENERATE = {"suffix": NO_TEXT, "system": NO_TEXT, "raw": NO_FLAG, "context": NO_LIST}
COMMON = {"model": NO_TEXT, "stream": NO_FLAG, "options": NO_OBJECT, "keep_alive": NO_SPAN}
OPENAI = {"model": NO_TEXT, "stream": NO_FLAG, "keep_alive": NO_SPAN, "num_ctx": NO_NUMBER}

FIELDS = [
    ("/api/chat", CHAT, {**COMMON, "messages": NO_LIST, "tools": NO_LIST}),
    ("/api/generate", PROMPT, {**COMMON, "prompt": NO_TEXT, **GENERATE}),
    ("/api/embed", {"model": "tiny", "input": "Hi"}, {"model": NO_TEXT, "keep_alive": NO_SPAN}),
    ("/api/embed", {"model": "tiny"}, {"input": [*NUMBERS, *OBJECTS, *FLAGS, [1], [[]]]}),
    ("/api/embeddings", PROMPT, {"model": NO_TEXT, "prompt": NO_TEXT, "keep_alive": NO_SPAN}),
    ("/api/show", {"model": "tiny"}, {"model": NO_TEXT, "verbose": NO_FLAG}),
    ("/v1/chat/completions", CHAT, {**OPENAI, "reasoning_format": NO_TEXT}),
    ("/v1/completions", PROMPT, OPENAI),
    ("/v1/embeddings", {"model": "tiny", "input": "Hi"}, OPENAI),
]
OPTION_ROUTES = [("/api/chat", CHAT), ("/api/generate", PROMPT)]


def no_option(kind: str) -> list[Any]:
    """Values that are none of an option's type."""
    return {"boolean": NO_FLAG, "array": NO_LIST}.get(kind, NO_NUMBER)


def cases() -> Iterator[Any]:
    for route, base, fields in FIELDS:
        for name, wrong in fields.items():
            yield pytest.param(route, base, name, wrong, id=f"{route} {name}")


def error_of(reply: Any) -> tuple[int, str]:
    told = reply.json()["error"]
    return reply.status_code, told if isinstance(told, str) else json.dumps(told)


@pytest.mark.parametrize(("route", "base", "name", "wrong"), [*cases()])
async def test_a_field_of_another_type_is_a_400_that_names_it(
    tmp_path: Path, route: str, base: dict[str, Any], name: str, wrong: list[Any]
) -> None:
    pooling = "mean" if "embed" in route else None
    fleet = FleetOfOne(served_model(info=model_info(pooling=pooling)), tmp_path)
    async with serving(fleet) as at:
        replies = [await at.client.post(route, json={**base, name: value}) for value in wrong]

    for value, (status, error) in zip(wrong, map(error_of, replies), strict=True):
        assert status == 400, (value, error)
        assert name in error, (value, error)
    assert fleet.launches == 0


@pytest.mark.parametrize(("route", "base"), OPTION_ROUTES)
async def test_an_option_of_another_type_is_a_400_that_names_it(
    tmp_path: Path, route: str, base: dict[str, Any]
) -> None:
    fleet = FleetOfOne(served_model(), tmp_path)
    async with serving(fleet) as at:
        for name, kind in OPTIONS.items():
            for value in no_option(kind):
                reply = await at.client.post(route, json={**base, "options": {name: value}})

                status, error = error_of(reply)
                assert status == 400, (name, value, error)
                assert f'"{name}"' in error

    assert fleet.launches == 0


NO_SAMPLER: list[Any] = ["x", [], {"a": 1}]
SAMPLING = [
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty",
    "presence_penalty", "frequency_penalty", "seed", "max_tokens", "xtc_probability", "mirostat",
    "dry_multiplier", "n_keep", "n_probs",
]  # fmt: skip


@pytest.mark.llama
@pytest.mark.parametrize(
    ("route", "base"), [("/v1/chat/completions", CHAT), ("/v1/completions", PROMPT)]
)
async def test_what_only_the_engine_reads_is_refused_by_it_with_a_400_that_names_it(
    tmp_path: Path, route: str, base: dict[str, Any]
) -> None:
    async with engine(tmp_path) as (_, at):
        for name in SAMPLING:
            for value in NO_SAMPLER:
                told = {**base, "model": "smollm2", "max_tokens": 2, name: value}

                status, error = error_of(await at.client.post(route, json=told))

                assert status == 400, (name, value, error)
                assert name in error
