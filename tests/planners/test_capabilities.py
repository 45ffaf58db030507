from dataclasses import replace

import pytest

from planners.capabilities import Capability, capabilities
from planners.model import MetadataValue
from tests.fakes.fleet_of_one import model_info

FIM: tuple[tuple[str, MetadataValue], ...] = (
    ("tokenizer.ggml.fim_pre_token_id", 1),
    ("tokenizer.ggml.suffix_token_id", 2),
    ("tokenizer.ggml.fim_mid_token_id", 3),
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param(None, {"completion"}, id="no template"),
        pytest.param("{{ messages }}", {"completion"}, id="plain"),
        pytest.param("{% if tools %}", {"completion", "tools"}, id="tools"),
        pytest.param("{% if m.tool_calls %}", {"completion", "tools"}, id="tool calls"),
        pytest.param("<think>\n</think>", {"completion", "thinking"}, id="think tags"),
        pytest.param("m.reasoning_content", {"completion", "thinking"}, id="a reasoning field"),
        pytest.param("<think> only opened", {"completion"}, id="half a tag"),
    ],
)
def test_a_template_shows_what_it_can(template: str | None, expected: set[str]) -> None:
    assert set(capabilities(model_info(chat_template=template))) == expected


def test_a_pooling_model_embeds_and_nothing_else() -> None:
    info = model_info(chat_template="{% if tools %}", pooling="mean")

    assert capabilities(info) == (Capability.EMBEDDING,)


def test_three_fill_in_tokens_make_an_inserting_model() -> None:
    info = model_info()

    assert Capability.INSERT in capabilities(replace(info, metadata=FIM))
    assert Capability.INSERT not in capabilities(replace(info, metadata=FIM[:2]))


def test_a_projector_or_tensors_of_its_own_make_a_seeing_model() -> None:
    info = model_info()

    assert Capability.VISION in capabilities(info, has_projector=True)
    assert Capability.VISION in capabilities(replace(info, has_vision=True))
    assert Capability.VISION not in capabilities(info)
