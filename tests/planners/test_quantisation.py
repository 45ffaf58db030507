"""planners.quantisation: what names tell, and which is the better."""

from itertools import pairwise

import pytest

from planners.quantisation import QUALITY, quality, quantisation_of, usual


@pytest.mark.parametrize(
    ("stem", "label"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", "Q4_1"), ("qwen2.5-0.5b-instruct-q4_k_m", "Q4_K_M"),
        ("gemma-3-4b-it-UD-Q4_K_XL", "UD-Q4_K_XL"), ("gpt-oss-20b-mxfp4", "MXFP4"),
        ("Phi-3-mini-4k-instruct-fp16", "F16"), ("x-i1-IQ2_XXS", "IQ2_XXS"), ("BF16", "BF16"),
        ("Qwen3-8B", ""), ("model", ""), ("Q-Star-7B-TQ1_0", "TQ1_0"),
    ],
)  # fmt: skip
def test_a_files_name_tells_its_quantisation(stem: str, label: str) -> None:
    assert quantisation_of(stem) == label


def test_quality_goes_row_by_row_whoever_made_the_file() -> None:
    assert quality("F16") == quality("q8_0") == 0
    assert quality("UD-Q4_K_XL") == quality("Q4_K_M")
    assert all(quality(a[0]) < quality(b[0]) for a, b in pairwise(QUALITY))


def test_what_is_not_known_goes_with_the_least_of_its_bits() -> None:
    assert quality("Q4_0") <= quality("Q4_0_8_8") < quality("Q3_K_S")
    assert quality("") == len(QUALITY)


def test_the_usual_one_is_four_bits_or_else_the_best() -> None:
    assert usual(["Q8_0", "Q4_0", "Q4_K_M", "F16"]) == "Q4_K_M"
    assert usual(["Q2_K", "Q6_K", "Q3_K_M"]) == "Q6_K"
