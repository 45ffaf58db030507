"""supervisor.models.projectors: whose eyes these are, by the names that people give files."""

import pytest

from supervisor.models.projectors import Projectors, base_name, is_projector_name


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("mmproj-gemma-3-4b-it-f16", "gemma-3-4b-it"),
        ("gemma-3-4b-it-Q4_K_M", "gemma-3-4b-it"),
        ("Qwen2.5-VL-7B-Instruct.mmproj-Q8_0", "qwen2.5-vl-7b-instruct"),
        ("mmproj-F16", ""),
        ("mmproj", ""),
        ("mmproj-model-f16", "model"),
        ("gpt-oss-20b-MXFP4", "gpt-oss-20b"),
        ("Llama-3-8B-UD-IQ2_XXS", "llama-3-8b"),
    ],
)
def test_a_base_name_leaves_out_the_type_and_the_word(name: str, base: str) -> None:
    assert base_name(name) == base


def test_a_projector_is_known_by_its_name() -> None:
    assert is_projector_name("MMPROJ-model")
    assert not is_projector_name("gemma-3-4b-it-Q4_K_M")


GEMMA, GEMMA_Q8, QWEN = "gemma-3-4b-it-Q4_K_M", "gemma-3-4b-it-Q8_0", "Qwen2.5-VL-7B-Q4_K_M"


@pytest.mark.parametrize(
    ("model", "models", "projectors", "found"),
    [
        (GEMMA, [GEMMA], ["mmproj-F16"], "mmproj-F16"),
        (GEMMA, [GEMMA], ["mmproj-another-name"], "mmproj-another-name"),
        (GEMMA_Q8, [GEMMA, GEMMA_Q8], ["mmproj-F16"], "mmproj-F16"),
        (GEMMA, [GEMMA, QWEN], ["mmproj-F16"], None),
        (GEMMA, [GEMMA, QWEN], ["mmproj-gemma-3-4b-it-f16"], "mmproj-gemma-3-4b-it-f16"),
        (QWEN, [GEMMA, QWEN], ["mmproj-gemma-3-4b-it-f16"], None),
        (QWEN, [GEMMA, QWEN], ["mmproj-gemma-3-4b-it-f16", "mmproj-Qwen2.5-VL-7B-f16"],
         "mmproj-Qwen2.5-VL-7B-f16"),
        ("Qwen2.5-7B", ["Qwen2.5-7B", "Qwen2.5-VL-7B"], ["mmproj-Qwen2.5-VL-7B-f16"], None),
        (GEMMA, [GEMMA], ["mmproj-BF16", "mmproj-F16", "mmproj-F32", "mmproj-Q8_0"], "mmproj-F16"),
        (GEMMA, [GEMMA], [], None),
    ],
)  # fmt: skip
def test_a_projector_goes_to_the_model_whose_name_it_shares(
    model: str, models: list[str], projectors: list[str], found: str | None
) -> None:
    assert Projectors(projectors, models=models).of(model) == found


def test_a_folder_of_thousands_has_each_name_read_once() -> None:
    models = [f"{n}-model" for n in range(3000)]

    found = Projectors([f"mmproj-{n}-model" for n in range(3000)], models=models)

    assert [found.of(model) for model in models] == [f"mmproj-{model}" for model in models]
