import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from planners.recipe import PLAIN, Message, Recipe
from planners.templates.given import GivenTemplate
from proxy.errors import BadOption
from proxy.prompt.maker import OPENAIS_DEFAULTS, asked_body, asked_chat
from tests.fakes.fleet_of_one import FleetOfOne, served_model
from tests.fakes.real_engine import engine
from tests.fakes.serving import SETTINGS, serving

RECIPE = Recipe(
    parameters=(("temperature", 0), ("stop", ("<end>",)), ("num_predict", 2), ("num_ctx", 64)),
    system="Be brief.",
    messages=(Message("user", "a"), Message("assistant", "b")),
)
SYSTEM = {"role": "system", "content": "Be brief."}
BEFORE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
HI = {"role": "user", "content": "hi"}


def body(recipe: Recipe, *, chat: bool = True, **told: object) -> Any:
    """What comes of an OpenAI request that tells that."""
    return json.loads(asked_body(json.dumps(told).encode(), recipe, chat=chat))


def test_what_a_request_does_not_say_is_said_by_the_models_maker() -> None:
    assert body(RECIPE, messages=[HI], tools=[]) == {
        "messages": [SYSTEM, *BEFORE, HI],
        "tools": [],
        "temperature": 0.0,
        "stop": ["<end>"],
        "n_predict": 2,
    }


@pytest.mark.parametrize(
    ("told", "unsaid"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"stop": "x"}, "stop"),
        ({"max_tokens": 9}, "n_predict"),
        ({"max_completion_tokens": 9}, "n_predict"),
    ],
)
def test_what_a_request_says_goes_before_it(told: dict[str, Any], unsaid: str) -> None:
    came = body(RECIPE, messages=[HI], **told)

    assert told.items() <= came.items()
    assert unsaid in told or unsaid not in came


def test_null_says_nothing() -> None:
    assert body(RECIPE, messages=[HI], temperature=None, stop=None)["stop"] == ["<end>"]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_chats_own_system_prompt_replaces_the_makers(role: str) -> None:
    own = {"role": role, "content": "Be long."}

    assert body(RECIPE, messages=[own, HI])["messages"] == [*BEFORE, own, HI]


def test_a_text_gets_parameters_and_no_messages() -> None:
    came = body(RECIPE, chat=False, prompt="x")

    assert came == {"prompt": "x", "temperature": 0.0, "stop": ["<end>"], "n_predict": 2}


@pytest.mark.parametrize("messages", [[], 5, ["x"], [{"role": 1}], None])
def test_what_is_no_conversation_is_left_for_the_engine_to_refuse(messages: object) -> None:
    assert body(RECIPE, messages=messages)["messages"] == messages


@pytest.mark.parametrize(
    ("recipe", "chat"), [(PLAIN, True), (Recipe(system="s", messages=RECIPE.messages), False)]
)
def test_a_body_to_which_nothing_is_added_stays_as_it_is_to_the_byte(
    recipe: Recipe, chat: bool
) -> None:
    told = b' { "messages": [], "x":1 ,"prompt": "y"} '

    assert asked_body(told, recipe, chat=chat) is told


def test_a_parameter_of_the_wrong_type_is_told_as_in_a_request() -> None:
    with pytest.raises(BadOption, match='option "top_k" must be of type integer'):
        asked_chat({"messages": [HI]}, Recipe(parameters=(("top_k", "x"),)))


def test_where_all_is_as_in_ollama_openais_defaults_go_before_the_makers() -> None:
    came = asked_chat({"messages": [HI], "top_p": 0.5}, RECIPE, defaults=OPENAIS_DEFAULTS)

    assert (came["temperature"], came["top_p"], came["min_p"]) == (1.0, 0.5, 0.0)


@pytest.mark.llama
async def test_every_dialect_reads_the_same_prompt_and_writes_the_same_text(
    tmp_path: Path,
) -> None:
    hello = "Say hello."
    chat: dict[str, Any] = {"model": "smollm2", "messages": [{"role": "user", "content": hello}]}
    async with engine(tmp_path) as (fleet, at):
        fleet.model = replace(fleet.model, recipe=RECIPE)

        async def asked(path: str, **told: object) -> Any:
            reply = await at.client.post(path, json={"model": "smollm2", **told})
            return reply.raise_for_status().json()

        native = await asked("/api/chat", **chat, stream=False)
        openai = await asked("/v1/chat/completions", **chat)
        response = await asked("/v1/responses", input=hello)
        message = await asked("/v1/messages", **chat, max_tokens=2)
        counted = [
            (await asked(f"/v1/{route}", **told))["input_tokens"]
            for route, told in (
                ("messages/count_tokens", chat),
                ("responses/input_tokens", {"input": hello}),
            )
        ]
        text = await asked("/v1/completions", prompt="One, two,")

    said = [
        native["message"]["content"],
        openai["choices"][0]["message"]["content"],
        response["output"][0]["content"][0]["text"],
        message["content"][0]["text"],
    ]
    n_prompt = native["prompt_eval_count"]
    usages = [openai["usage"]["prompt_tokens"], response["usage"]["input_tokens"]]
    usages += [message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]]
    assert said == said[:1] * 4
    assert [*usages, *counted] == [n_prompt] * 5
    assert n_prompt > 30  # of the maker's messages too
    assert openai["usage"]["completion_tokens"] == text["usage"]["completion_tokens"] == 2


async def test_a_model_whose_template_is_refused_has_no_prompt_to_show(tmp_path: Path) -> None:
    why = "it uses slice, which is not known here"
    model = replace(served_model(), template=GivenTemplate("", why))
    fleet = FleetOfOne(model, tmp_path)
    async with serving(fleet, settings=SETTINGS) as at:
        told = {"model": "tiny", "messages": [HI]}
        reply = await at.client.post("/apply-template", json=told)

    assert (reply.status_code, why in reply.json()["error"]["message"]) == (400, True)
    assert fleet.launches == 0
