"""supervisor.store.hub_files: which files of a repository are models, and which one is meant."""

import json

import pytest

from supervisor.store.hub_files import (
    MAX_GGUF,
    Choice,
    HubFile,
    TooManyFiles,
    Variant,
    read_repository,
    variants,
)

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
    meant = Choice(offered(*NAMES)).of(tag)

    assert (meant.path if meant else None) == path


def test_a_repository_without_quantisations_in_its_names_has_its_only_file_for_latest() -> None:
    meant = Choice(offered("model.gguf")).of("latest")

    assert meant is not None
    assert meant.tag == "model"


def test_a_name_is_compared_once_however_many_lie_beside_it() -> None:
    models = [f"{n}-model-Q4_K_M.gguf" for n in range(MAX_GGUF // 2)]
    projectors = [f"mmproj-{n}-model.gguf" for n in range(MAX_GGUF // 2)]

    found = offered(*models, *projectors)  # each beside each, it would take some minutes

    assert [v.projector.path for v in found if v.projector] == projectors
    assert len(found) == len(models)


def test_a_repository_of_more_files_than_anybody_would_choose_from_is_refused() -> None:
    with pytest.raises(TooManyFiles, match=str(MAX_GGUF)):
        offered(*(f"{n}.gguf" for n in range(MAX_GGUF + 1)))


def test_a_part_of_a_split_that_claims_many_others_is_no_model() -> None:
    names = [f"{n}-00001-of-99999.gguf" for n in range(MAX_GGUF - 2)]

    whole = "whole-00001-of-00001.gguf"

    assert offered(*names, whole) == offered(whole)


@pytest.mark.parametrize("size", [-5, 1 << 63, 10**30], ids=str)
def test_a_size_that_no_file_has_is_none_that_was_told(size: int) -> None:
    sibling = {"rfilename": "a.gguf", "size": size, "lfs": {"sha256": "0" * 64, "size": size}}
    listing = read_repository(json.dumps({"siblings": [sibling]}).encode())

    assert [file.size_bytes for file in listing.files] == [-1]
    assert not listing.is_measured


def test_a_path_that_is_longer_than_any_is_left_out() -> None:
    siblings = [{"rfilename": "a" * 500_000 + ".gguf"}, {"rfilename": "b.gguf"}]

    listing = read_repository(json.dumps({"siblings": siblings}).encode())

    assert [file.path for file in listing.files] == ["b.gguf"]
