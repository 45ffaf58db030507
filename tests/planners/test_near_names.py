"""planners.near_names: what is told to who asks for a model by a wrong name."""

import pytest

from planners.near_names import LONGEST, MOST_TOLD, near_names

OFFERED = ("SmolLM2-135M-Instruct-Q4_1", "sub/mine", "qwen3:8b", "llama-3.2-1b")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        pytest.param("smol", ("SmolLM2-135M-Instruct-Q4_1",), id="a beginning, in another case"),
        pytest.param("mine", ("sub/mine",), id="without its folder"),
        pytest.param("mine:latest", ("sub/mine",), id="with a tag that means nothing"),
        pytest.param("qwen3-8b", ("qwen3:8b",), id="a letter off"),
        pytest.param("gpt-5", (), id="nothing like it"),
        pytest.param("b", (), id="too short to be meant"),
        pytest.param("", (), id="no name"),
    ],
)
def test_a_wrong_name_is_told_those_that_may_be_meant(name: str, near: tuple[str, ...]) -> None:
    assert near_names(name, OFFERED) == near


def test_no_more_names_are_told_than_a_sentence_holds() -> None:
    known = [f"model-{n}" for n in range(5000)]

    assert len(near_names("model", known)) == MOST_TOLD


def test_a_name_longer_than_any_is_compared_with_none() -> None:
    long = "a" * (LONGEST + 1)

    assert near_names(long, [long + "a"]) == ()
