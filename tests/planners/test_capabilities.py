import pytest
from msgspec.structs import replace

from planners.capabilities import Capability, capabilities
from planners.model import MetadataValue
from tests.fakes.fleet_of_one import model_info, served_model

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
    assert set(capabilities(served_model(info=model_info(chat_template=template)))) == expected


def test_a_pooling_model_embeds_and_nothing_else() -> None:
    info = model_info(chat_template="{% if tools %}", pooling="mean")

    assert capabilities(served_model(info=info)) == (Capability.EMBEDDING,)


def test_three_fill_in_tokens_make_an_inserting_model() -> None:
    info = model_info()

    inserts = served_model(info=replace(info, metadata=FIM))
    lacks_one = served_model(info=replace(info, metadata=FIM[:2]))
    assert Capability.INSERT in capabilities(inserts)
    assert Capability.INSERT not in capabilities(lacks_one)


def test_a_model_that_ranks_does_that_alone() -> None:
    info = model_info(pooling="rank")

    assert capabilities(served_model(info=info)) == (Capability.RERANK,)


def test_a_projector_or_tensors_of_its_own_make_a_seeing_model() -> None:
    model = served_model()
    unread = replace(model, settings=replace(model.settings, mmproj_path="/eyes.gguf"))

    assert Capability.VISION in capabilities(unread)
    assert Capability.VISION in capabilities(
        served_model(info=replace(model.info, has_vision=True))
    )
    assert Capability.VISION not in capabilities(model)


def test_a_projector_says_itself_whether_it_sees_or_hears() -> None:
    ears = replace(model_info(), metadata=(("clip.has_audio_encoder", True),))
    model = served_model()
    settings = replace(model.settings, mmproj_path="/ears.gguf")

    can = capabilities(replace(model, settings=settings, projector=ears))

    assert Capability.AUDIO in can
    assert Capability.VISION not in can
