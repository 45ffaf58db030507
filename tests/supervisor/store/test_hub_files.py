"""supervisor.store.hub_files: which files of a repository are models, and which one is meant."""

import pytest

from supervisor.store.hub_files import HubFile, Variant, chosen, variants

NAMES = (
    "README.md", "Tiny-1B-Q4_K_M.gguf", "Tiny-1B-Q8_0.gguf", "Tiny-1B-imatrix.gguf",
    "UD/Tiny-1B-UD-Q4_K_XL.gguf", "BF16/Tiny-1B-BF16-00001-of-00002.gguf",
    "BF16/Tiny-1B-BF16-00002-of-00002.gguf", "Tiny-1B-F32-00002-of-00002.gguf",
    "mmproj-F16.gguf", "mmproj-BF16.gguf",
)  # fmt: skip


def offered(*names: str) -> tuple[Variant, ...]:
    return variants(HubFile(name, 100, None, "") for name in names)


def test_models_are_told_from_projectors_matrices_and_lone_parts() -> None:
    found = {variant.label: variant for variant in offered(*NAMES)}

    assert sorted(found) == ["BF16", "Q4_K_M", "Q8_0", "UD-Q4_K_XL"]
    assert [part.path[-8:] for part in found["BF16"].parts] == ["002.gguf"] * 2
    assert {v.projector.path for v in found.values() if v.projector} == {"mmproj-F16.gguf"}
    assert all(variant.projector for variant in found.values())


@pytest.mark.parametrize(
    ("tag", "path"),
    [
        ("latest", "Tiny-1B-Q4_K_M.gguf"),
        ("q8_0", "Tiny-1B-Q8_0.gguf"),
        ("Tiny-1B-Q8_0.gguf", "Tiny-1B-Q8_0.gguf"),
        ("Q4_K_XL", "UD/Tiny-1B-UD-Q4_K_XL.gguf"),
        ("bf16", "BF16/Tiny-1B-BF16-00001-of-00002.gguf"),
        ("F32", None),
        ("Q4", None),
    ],
)
def test_a_tag_means_a_quantisation_or_a_file(tag: str, path: str | None) -> None:
    meant = chosen(offered(*NAMES), tag)

    assert (meant.path if meant else None) == path


def test_a_repository_without_quantisations_in_its_names_has_its_only_file_for_latest() -> None:
    meant = chosen(offered("model.gguf"), "latest")

    assert meant is not None
    assert meant.tag == "model"
