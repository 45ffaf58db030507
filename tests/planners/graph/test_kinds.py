from msgspec.structs import replace

from planners.graph.kinds import forget_kinds, kinds
from planners.model import LayerKind
from tests.fakes.machines import model_info
from tests.fakes.tiny_models import info_of, tiny_models

MODELS = [info_of(model) for model in tiny_models()]


def test_layers_that_are_equal_are_of_one_kind() -> None:
    model = model_info(n_layer=6, kinds=(LayerKind.FULL, LayerKind.SWA))

    found = kinds(model)

    assert [layer.kind for layer in found.layers] == [LayerKind.FULL, LayerKind.SWA]
    assert found.numbers == (0, 1, 0, 1, 0, 1)


def test_each_layer_is_of_the_kind_that_its_number_names() -> None:
    for model in MODELS:
        found = kinds(model)

        assert [found.layers[number] for number in found.numbers] == [*model.layers]


def test_a_model_of_the_same_digest_has_layers_of_its_own() -> None:
    model = model_info(n_layer=4)
    other = replace(model, layers=tuple(replace(x, weight_bytes=1) for x in model.layers))

    assert [kinds(each).layers[0].weight_bytes for each in (model, other, model)] == [
        model.layers[0].weight_bytes, 1, model.layers[0].weight_bytes,
    ]  # fmt: skip


def test_only_states_with_a_matrix_may_be_scanned() -> None:
    scanning = {model.architecture for model in MODELS if kinds(model).scans}

    assert "mamba" in scanning
    assert not {"llama", "qwen3next", "gemma3"} & scanning


def test_what_is_forgotten_is_told_anew() -> None:
    model = MODELS[0]
    before = kinds(model)

    forget_kinds()

    assert kinds(model) == before
    assert kinds(model) is not before
