"""supervisor.models.listing: what cannot be offered, and under which names it would have been."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.model import ModelId
from planners.settings import ModelRule
from supervisor.models.catalogue import Catalogue
from tests.fakes.gguf_writer import gguf, put
from tests.fakes.machines import PLAIN

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


async def names_of_broken(folder: Path, *rules: ModelRule) -> dict[str, tuple[str, ...]]:
    """File name → the names it would have had."""
    catalogue = Catalogue(dirs=(str(folder),), rules=rules, defaults=PLAIN)
    await catalogue.scan()
    return {Path(file.path).name: file.names for file in catalogue.broken}


def rule(name: str, path: Path | None, *aliases: str) -> ModelRule:
    return ModelRule(ModelId(name), None if path is None else str(path), aliases, PLAIN)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("org/Tiny.gguf", "org/Tiny"),
        ("Big-00001-of-00002.gguf", "Big"),
        ("org/Big-00002-of-00002.GGUF", "org/Big"),
    ],
)
async def test_a_broken_file_keeps_the_name_that_a_whole_one_would_have(
    tmp_path: Path, file: str, name: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(POINTER)

    assert await names_of_broken(tmp_path) == {path.name: (name,)}


async def test_a_dangling_link_has_a_name_too(tmp_path: Path) -> None:
    (tmp_path / "Tiny.gguf").symlink_to(tmp_path / "gone")

    assert await names_of_broken(tmp_path) == {"Tiny.gguf": ("Tiny",)}


async def test_rules_give_their_aliases_and_those_with_a_path_the_name(tmp_path: Path) -> None:
    (tmp_path / "Tiny.gguf").write_bytes(POINTER)
    (tmp_path / "other.gguf").write_bytes(POINTER)
    rules = (
        rule("tiny", None, "small"),
        rule("mine", tmp_path / "other.gguf", "own"),
        rule("away", tmp_path / "missing.gguf", "far"),
    )

    assert await names_of_broken(tmp_path, *rules) == {
        "Tiny.gguf": ("Tiny", "small"),
        "other.gguf": ("mine", "own"),
        "missing.gguf": ("away", "far"),
    }


async def test_what_is_no_model_and_what_lacks_a_companion_have_names(tmp_path: Path) -> None:
    put(tmp_path, "lora.gguf", gguf(pairs={"general.type": "adapter"}))
    put(tmp_path, "Tiny.gguf")
    settings = replace(PLAIN, mmproj_path=str(tmp_path / "missing.gguf"))
    lacking = ModelRule(ModelId("tiny"), None, ("small",), settings)

    assert await names_of_broken(tmp_path, lacking) == {
        "lora.gguf": ("lora",),
        "Tiny.gguf": ("Tiny", "small"),
    }


async def test_a_name_that_another_file_has_is_not_the_hidden_ones(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        put(folder, "Tiny.gguf")
    catalogue = Catalogue(dirs=(str(first), str(second)), rules=(), defaults=PLAIN)

    await catalogue.scan()

    (hidden,) = catalogue.broken
    assert "hidden by" in hidden.reason
    assert hidden.names == ()
