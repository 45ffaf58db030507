"""What of Go's templates is read, and what is refused by its name."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.templates.go_nodes import (
    BadTemplate,
    Block,
    BlockKind,
    Call,
    Dot,
    Field,
    Literal,
    Output,
    Text,
    Unknown,
)
from planners.templates.go_syntax import MAX_BYTES, parsed


def test_text_and_actions_follow_each_other() -> None:
    assert parsed("a {{- .System -}} \n b") == (
        Text("a"),
        Output(Field(Dot(), "System")),
        Text("b"),
    )


def test_a_pipe_makes_a_value_the_last_argument() -> None:
    assert parsed('{{ .Role | eq "user" }}') == (
        Output(Call("eq", (Literal("user"), Field(Dot(), "Role")))),
    )


def test_an_else_if_shares_the_end() -> None:
    (block,) = parsed("{{ if .A }}1{{ else if .B }}2{{ else }}3{{ end }}")

    inner = Block(BlockKind.IF, Field(Dot(), "B"), (), (Text("2"),), (Text("3"),))
    assert block == Block(BlockKind.IF, Field(Dot(), "A"), (), (Text("1"),), (inner,))


def test_braces_and_quotes_within_strings_end_nothing() -> None:
    assert parsed('{{ "}}\\"" }}{{ `}}"` }}') == (
        Output(Literal('}}"')),
        Output(Literal('}}"')),
    )


@pytest.mark.parametrize("source", ["{{/* {{ .A }} */}}", "{{- /* no\nmatter */ -}}"])
def test_comments_are_nothing(source: str) -> None:
    assert parsed(source) == ()


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{{ slice .Messages 1 }}", "slice"),
        ("{{ if (ne .A 1) }}{{ end }}", "ne"),
        ('{{ define "x" }}{{ end }}', "define"),
        ('{{ template "x" . }}', "template"),
        ("{{ range .A }}{{ break }}{{ end }}", "break"),
        ("{{ .A | printf }}", "printf"),
        ("{{ 1.5 }}", "1.5"),
        ("{{ 'a' }}", "'a'"),
        ("{{ if .A }}{{ else range .B }}{{ end }}", "else range .B"),
    ],
)
def test_the_rest_of_go_is_refused_by_name(source: str, what: str) -> None:
    with pytest.raises(Unknown) as refused:
        parsed(source)

    assert refused.value.what == what


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ .A", "not closed"),
        ('{{ "a }}', "not closed"),
        ("{{ if .A }}", "has no {{ end }}"),
        ("{{ end }}", "ends nothing"),
        ("{{ else }}", "ends nothing"),
        ("{{ }}", "a value is missing"),
        ("{{ if }}{{ end }}", "a value is missing"),
        ("{{ .A .B }}", "called as a function"),
        ("{{ (.A }}", "parenthesis is not closed"),
        ("{{ .A ) }}", "out of place"),
        ("{{ not }}", "not has 0 arguments"),
        ("{{ len .A .B }}", "len has 2 arguments"),
        ("{{ if $a, $b := .A }}{{ end }}", "declares too many"),
        ('{{ "\\x41" }}', "escape that is not known"),
        ('{{ "\\ud800" }}', "no Unicode"),
        ("{{ (" * 40, "not closed"),
        ("{{ " + "(" * 40 + " }}", "nested deeper"),
        ("{{ if .A }}" * 40, "nested deeper"),
        ("x" * (MAX_BYTES + 1), "longer than"),
    ],
)
def test_what_is_no_template_is_refused(source: str, says: str) -> None:
    with pytest.raises(BadTemplate, match=says):
        parsed(source)


_PIECES = st.sampled_from(
    ["{{", "}}", "{{-", "-}}", " ", ".A", "$x", ":=", "=", "(", ")", "|", '"', "`", "if", "else",
     "end", "range", "with", "eq", "json", "true", "nil", "1", ",", "/*", "*/", "\n", "text", "\\"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=30).map("".join))
def test_any_text_is_read_or_refused(source: str) -> None:
    with suppress(BadTemplate):
        parsed(source)


def test_strings_hold_what_go_lets_stand_in_them() -> None:
    assert parsed('{{ "a\rb\0c" }}') == (Output(Literal("a\rb\0c")),)


@pytest.mark.parametrize(
    "action",
    [".A" + ".b" * 20_000, ".A" + " | not" * 10_000, "(" * 30 + ".A" + ")" * 30 + ".b" * 70],
)
def test_what_goes_too_deep_to_be_walked_is_refused(action: str) -> None:
    with pytest.raises(BadTemplate, match="deeper"):
        parsed(f"{{{{ {action} }}}}")


def test_a_number_that_is_none_of_gos_is_refused() -> None:
    with pytest.raises(Unknown):
        parsed("{{ " + "9" * 5000 + " }}")
