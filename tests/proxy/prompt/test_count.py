"""proxy.prompt.count: how many a completion's body holds."""

import msgspec
import pytest

from proxy.errors import BadRequest
from proxy.prompt.count import MAX_INPUTS, MAX_PROMPTS, check_count, n_prompts_in, prompts_in


@pytest.mark.parametrize(
    ("told", "n_prompts"),
    [
        pytest.param('"a text"', 1, id="a text"),
        pytest.param("[1, 2, 3]", 1, id="token ids"),
        pytest.param("[ -1]", 1, id="an id below 0"),
        pytest.param('["a", 7, "b"]', 1, id="texts and ids"),
        pytest.param('["a", "b"]', 2, id="two texts"),
        pytest.param("[[1, 2], [3]]", 2, id="two lists of ids"),
        pytest.param("[]", 1, id="an empty array"),
        pytest.param("", 1, id="nothing"),
    ],
)
def test_prompts_are_counted_as_the_child_reads_them(told: str, n_prompts: int) -> None:
    assert n_prompts_in(msgspec.Raw(told.encode())) == n_prompts


@pytest.mark.parametrize(
    ("told", "prompts"),
    [
        pytest.param('"a text"', ["a text"], id="a text"),
        pytest.param("[1, 2, 3]", [[1, 2, 3]], id="token ids"),
        pytest.param('["a", "b"]', ["a", "b"], id="two texts"),
        pytest.param('["a"]', [["a"]], id="one text in an array"),
        pytest.param("", [""], id="nothing"),
    ],
)
def test_each_prompt_is_given_as_it_was_told(told: str, prompts: list[object]) -> None:
    assert prompts_in(msgspec.Raw(told.encode())) == prompts


def test_more_prompts_than_one_slot_is_to_read_are_refused_with_both_numbers() -> None:
    told = msgspec.json.encode(["a"] * (MAX_PROMPTS + 1))

    with pytest.raises(BadRequest, match=f"at most {MAX_PROMPTS} prompts, not {MAX_PROMPTS + 1}"):
        n_prompts_in(msgspec.Raw(told))


def test_inputs_to_embed_may_be_many_more_and_are_counted_under_their_own_name() -> None:
    told = msgspec.Raw(msgspec.json.encode(["a"] * (MAX_PROMPTS + 1)))

    assert len(prompts_in(told, most=MAX_INPUTS, param="input")) == MAX_PROMPTS + 1
    with pytest.raises(BadRequest, match="input must hold at most 256 inputs, not 257; send fewer"):
        n_prompts_in(told, param="input")


def test_documents_are_as_many_as_inputs() -> None:
    check_count(MAX_INPUTS, param="documents")

    with pytest.raises(BadRequest, match="documents must hold at most 8192 documents, not 8193"):
        check_count(MAX_INPUTS + 1, param="documents")
