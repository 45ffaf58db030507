"""Prompts are letter for letter what Go makes of the same template and conversation."""

import pytest

from planners.templates.conversation import Said, infill, prompt, read
from planners.templates.go_nodes import BadTemplate
from tests.planners.templates.recorded import CONVERSATIONS, TEMPLATES, Recorded


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES, ids=str)
def test_a_prompt_is_what_go_makes_of_it(template: Recorded, conversation: str) -> None:
    told = CONVERSATIONS[conversation]

    made = prompt(read(template.source), told.said, tools=told.tools)

    assert made == template.prompts[conversation]


@pytest.mark.parametrize("template", [t for t in TEMPLATES if t.infill is not None], ids=str)
def test_what_goes_between_two_texts_is_what_go_makes_of_it(template: Recorded) -> None:
    assert infill(read(template.source), prefix="a", suffix="b") == template.infill


def test_a_template_tells_what_it_takes() -> None:
    by_messages = read("{{ range .Messages }}{{ .Content }}{{ end }}{{ json .Tools }}")
    by_turns = read("{{ if $.Suffix }}{{ .Suffix }}{{ end }}{{ .Prompt }}")

    assert (by_messages.takes_messages, by_messages.takes_tools) == (True, True)
    assert (by_turns.takes_messages, by_turns.takes_tools) == (False, False)
    assert (by_messages.takes_suffix, by_turns.takes_suffix) == (False, True)


def test_arguments_that_are_no_object_are_printed_as_they_came() -> None:
    calls = ({"function": {"name": "f", "arguments": [1]}}, {"function": 1}, "no call")
    template = read("{{ range .Messages }}{{ range .ToolCalls }}{{ json . }};{{ end }}{{ end }}")

    made = prompt(template, [Said("assistant", "", tool_calls=calls)])

    assert made == '{"function":{"name":"f","arguments":[1]}};{"function":1};"no call";'


def test_a_template_that_multiplies_is_stopped() -> None:
    loop = "{{ range $.Messages }}"
    many = [Said("tool", "x" * 1000)] * 200
    template = read(f"{loop * 4}{{{{ .Content }}}}{'{{ end }}' * 4}")

    with pytest.raises(BadTemplate, match="more than"):
        prompt(template, many)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ .Messages }}", "prints messages whole"),
        ("{{ json .Messages }}", "encodes messages whole"),
        ("{{ range .Messages }}{{ .Nope }}{{ end }}", "it uses .Nope"),
        ("{{ range .System }}{{ end }}{{ .Messages | len }}", "ranges over what is not a list"),
        ("{{ (index .Messages 7).Role }}", "asks for number 7 of 1"),
        ("{{ index .System 0 }}{{ .Messages | len }}", "uses index on what is not a list"),
        ('{{ eq .Messages "a" }}', "compares values that do not compare"),
        ('{{ eq (len .Messages) "1" }}', "compares values that do not compare"),
        ("{{ len true }}", "asks for the length of what has none"),
        ("{{ $x }}", r"\$x is not declared"),
        ("{{ if .Prompt }}{{ $x := 1 }}{{ end }}{{ $x = 2 }}", r"\$x is not declared"),
        ("{{ .System.Text }}", "asks for .Text of what has no parts"),
        ("{{ . }}", "uses all values at once"),
    ],
)
def test_what_go_would_stop_at_is_refused(source: str, says: str) -> None:
    with pytest.raises(BadTemplate, match=says):
        prompt(read(source), [Said("user", "hello")])


@pytest.mark.parametrize(
    "body",
    [
        "{{ range $.Messages }}" * 20 + "{{ end }}" * 20,
        '{{ if eq (json $.System) "a" }}{{ end }}' * 500,
    ],
    ids=["ranges within ranges", "a long text encoded again and again"],
)
def test_a_template_that_prints_nothing_and_never_ends_is_refused(body: str) -> None:
    said = [Said("system", "a" * 1_000_000), Said("user", "b"), Said("assistant", "c")]

    with pytest.raises(BadTemplate, match="takes too long"):
        prompt(read("{{ range .Messages }}" + body + "{{ end }}"), said)
