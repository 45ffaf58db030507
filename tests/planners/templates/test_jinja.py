"""Jinja made of a TEMPLATE layer: the real engine makes the same prompts of it as Go."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from planners.templates.conversation import read
from planners.templates.go_nodes import BadTemplate
from planners.templates.jinja import jinja
from tests.fakes.real_child import RealChild, real_child
from tests.planners.templates.recorded import CONVERSATIONS, TEMPLATES, Recorded

_BY_TURNS, _BY_MESSAGES = "chatml, by turns", "messages, tools and their calls"


@pytest.mark.llama
@pytest.mark.parametrize("name", [_BY_TURNS, _BY_MESSAGES])
async def test_the_engine_makes_the_prompts_that_go_makes(tmp_path: Path, name: str) -> None:
    (template,) = (template for template in TEMPLATES if template.name == name)

    async with _engine_with(tmp_path, jinja(read(template.source))) as child:
        made = await _prompts(child, template)

    assert made == template.prompts


@pytest.mark.llama
async def test_it_does_so_with_every_template(tmp_path: Path) -> None:
    # All of them in one file, for a launch takes seconds. The engine tries what a template can do
    # without any argument, so the first that stands there is one that can do everything.
    made = [f"{{%- if not which or which == {_BY_MESSAGES!r} -%}}\n"]
    made += [jinja(read(t.source)) for t in TEMPLATES if t.name == _BY_MESSAGES]
    for number, template in enumerate(TEMPLATES):
        made += [f"{{%- elif which == '{number}' -%}}\n", jinja(read(template.source))]

    async with _engine_with(tmp_path, "".join(made) + "{%- endif -%}") as child:
        for number, template in enumerate(TEMPLATES):
            prompts = await _prompts(child, template, which=str(number))
            assert prompts == template.prompts, template.name


@asynccontextmanager
async def _engine_with(folder: Path, template: str) -> AsyncIterator[RealChild]:
    file = folder / "template.jinja"
    file.write_text(template, encoding="utf-8")
    async with real_child(folder, flags=["--jinja", "--chat-template-file", str(file)]) as child:
        yield child


async def _prompts(child: RealChild, template: Recorded, **kwargs: str) -> dict[str, str]:
    """What the engine makes of each conversation."""
    made = {}
    for name, conversation in CONVERSATIONS.items():
        told: dict[str, Any] = {
            "messages": list(conversation.messages()),
            "chat_template_kwargs": kwargs,
        }
        if conversation.tools and read(template.source).takes_tools:
            told["tools"] = list(conversation.tools)
        made[name] = (await child.ask("/apply-template", told))["prompt"]
    return made


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ .Messages }}", "prints messages whole"),
        ("{{ range .Messages }}{{ .Nope }}{{ end }}", "it uses .Nope of a message"),
        ("{{ range .Messages }}{{ . }}{{ end }}", "prints a message whole"),
        ("{{ range $.Messages }}" * 3 + "{{ end }}" * 3, "ranges are nested deeper than 2"),
        ("{{ range .System }}{{ end }}{{ .Messages | len }}", "ranges over text"),
        ("{{ len .System }}{{ .Messages | len }}", "asks for the length of text"),
        ('{{ eq (len .Messages) "1" }}', "compares a number with text"),
        ("{{ $x := .Nope }}{{ .Prompt }}", "puts nothing into"),
        ("{{ $x := 1 }}{{ $x = `a` }}{{ .Prompt }}", "is a number first, then text"),
        ("{{ or .System .Messages }}", "prints one of two kinds whole"),
        ("{{ index .System 0 }}{{ .Messages | len }}", "uses index on text"),
    ],
)
def test_what_cannot_be_said_in_jinja_is_refused(source: str, says: str) -> None:
    with pytest.raises(BadTemplate, match=says):
        jinja(read(source))


def test_ranges_may_follow_one_another_and_lie_within_one() -> None:
    one = (
        "{{ range .Messages }}{{ range $.Tools }}{{ end }}{{ range .ToolCalls }}{{ end }}{{ end }}"
    )

    assert jinja(read(one + one)).count("{%- for d") == 6


def test_text_that_looks_like_jinja_stays_text() -> None:
    made = jinja(read("{% x %}{# y #}{{ .Prompt }}"))

    assert '{{- "{% x %}{# y #}" -}}' in made


@pytest.mark.parametrize(
    "action",
    ["(or " * 31 + ".System" + ' "a")' * 31, "(eq " * 31 + "true" + " true true true)" * 31],
    ids=["or", "eq"],
)
def test_an_expression_that_doubles_with_every_step_is_refused(action: str) -> None:
    with pytest.raises(BadTemplate, match="too much"):
        jinja(read("{{ range .Messages }}{{ end }}{{ if " + action + " }}{{ end }}"))


def test_a_template_that_comes_to_too_much_jinja_is_refused() -> None:
    half = "{{ if " + "(or " * 10 + ".System" + ' "a")' * 10 + " }}{{ end }}"

    with pytest.raises(BadTemplate, match="characters of Jinja"):
        jinja(read("{{ range .Messages }}{{ end }}" + half * 500))
