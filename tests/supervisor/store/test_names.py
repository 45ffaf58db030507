"""supervisor.store.names: which texts name a model of a store, and as which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.store.names import BadStoreName, parse_name


@pytest.mark.parametrize(
    ("text", "full", "short"),
    [
        ("tiny", "registry.ollama.ai/library/tiny:latest", "tiny:latest"),
        ("tiny:8b-q4_K_M", "registry.ollama.ai/library/tiny:8b-q4_K_M", "tiny:8b-q4_K_M"),
        ("me/tiny", "registry.ollama.ai/me/tiny:latest", "me/tiny:latest"),
        ("library/tiny:1", "registry.ollama.ai/library/tiny:1", "tiny:1"),
        ("hf.co/org/Repo-GGUF:Q4_0", "hf.co/org/Repo-GGUF:Q4_0", "hf.co/org/Repo-GGUF:Q4_0"),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b:latest", "127.0.0.1:5000/a/b:latest"),
        ("https://h.example/library/b", "h.example/library/b:latest", "h.example/library/b:latest"),
        (" tiny ", "registry.ollama.ai/library/tiny:latest", "tiny:latest"),
    ],
)
def test_a_name_has_its_usual_parts_added_and_is_shown_without_them(
    text: str, full: str, short: str
) -> None:
    name = parse_name(text)

    assert (name.full, name.short) == (full, short)


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "tiny:", "/tiny", "a//b", "../etc/passwd", "a/../b", "..", ".hidden", "a/.b:c",
        "/etc/passwd", "tiny:../x", "tiny:.", "a b", "ti\nny", "tiny\x00", "modèle", "ti\u202eny",
        "a" * 81, "t:" + "1" * 81, "a/b/c/d", "na.me/x", "-tiny", "ftp://h/a/b", "C:\\x", "a\\b",
        "h:0/a/b", "h:65536/a/b", "h:80:1/a/b", "h:/a/b", "h..x/a/b", "h.:1/a/b", "h:x/a/b",
        "٣", "tiny@sha256:00", "x" * 100_000,
    ],
)  # fmt: skip
def test_a_hostile_name_is_none(text: str) -> None:
    with pytest.raises(BadStoreName):
        parse_name(text)


@given(st.text(max_size=40) | st.text(alphabet="a.-_:/A0", max_size=40))
def test_whatever_is_a_name_lies_below_the_manifests_and_reads_back_as_itself(text: str) -> None:
    try:
        name = parse_name(text)
    except BadStoreName:
        return

    assert not {"", ".", ".."} & set(name.path)
    assert not any("/" in part or part.startswith((".", "-")) for part in name.path)
    assert parse_name(name.short).path == parse_name(name.full).path == name.path
