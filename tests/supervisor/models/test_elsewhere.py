"""supervisor.models.elsewhere, through the catalogue: what other programs keep is on offer too."""

import asyncio
import hashlib
import os
from pathlib import Path

from supervisor.models.catalogue import Catalogue
from supervisor.models.places import Place, Program
from tests.fakes.gguf_writer import gguf, put, split_gguf
from tests.fakes.machines import PLAIN
from tests.fakes.ollama_store import OllamaStore, as_it_lies

OLD, NEW = "1" * 40, "2" * 40


def cached(hub: Path, name: str, data: bytes | None = None, *, revision: str = NEW) -> Path:
    """A file of org/Tiny-GGUF as huggingface_hub lays it: a link into the repository's blobs."""
    repository = hub / "models--org--Tiny-GGUF"
    blob = put(
        repository / "blobs", hashlib.sha256(f"{revision}/{name}".encode()).hexdigest(), data
    )
    link = repository / "snapshots" / revision / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    put(repository / "refs", "main", NEW.encode())
    return link


def catalogue(*places: tuple[Program, Path], dirs: tuple[Path, ...] = ()) -> Catalogue:
    found = tuple(Place(program, str(folder)) for program, folder in places)
    return Catalogue(dirs=tuple(map(str, dirs)), rules=(), defaults=PLAIN, places=found)


async def test_files_of_hugging_faces_cache_are_named_after_repository_and_quantisation(
    tmp_path: Path,
) -> None:
    cached(tmp_path, "Tiny-Q4_K_M.gguf")
    cached(tmp_path, "Tiny-Q8_0.gguf", gguf(pairs={"general.name": "new"}))
    cached(tmp_path, "Tiny-Q8_0.gguf", gguf(pairs={"general.name": "old"}), revision=OLD)
    cached(tmp_path, "Tiny-Q2_K.gguf", revision=OLD)
    cached(tmp_path, "mmproj-F16.gguf", gguf("clip"))
    for number, part in enumerate(split_gguf(2), start=1):
        cached(tmp_path, f"F16/Tiny-F16-{number:05}-of-00002.gguf", part)
    models = catalogue((Program.HUGGING_FACE, tmp_path))

    await models.scan()

    assert sorted(models.models) == [
        f"hf.co/org/Tiny-GGUF:{tag}" for tag in ("F16", "Q2_K", "Q4_K_M", "Q8_0")
    ]
    usual, q8 = models.resolve("hf.co/org/tiny-gguf"), models.resolve("hf.co/org/Tiny-GGUF:q8_0")
    assert usual is not None
    assert usual.model_id == "hf.co/org/Tiny-GGUF:Q4_K_M"
    assert usual.settings.mmproj_path is not None
    assert q8 is not None
    assert q8.info.name == "new"
    split = models.resolve("hf.co/org/Tiny-GGUF:F16")
    assert split is not None
    assert split.info.n_layer == 2
    assert models.broken == ()


async def test_lm_studios_and_llama_cpps_files_are_named_alike(tmp_path: Path) -> None:
    studio, cache = tmp_path / "studio", tmp_path / "cache"
    put(studio, "org/Tiny-GGUF/Tiny-Q4_0.gguf")
    put(studio, "loose.gguf", gguf(pairs={"general.name": "loose"}))
    put(cache, "me_my_Big-GGUF_Big-Q6_K.gguf")
    put(cache, "manifest=me=my_Big-GGUF=latest.json", b"{}")
    put(cache, "other.gguf")
    models = catalogue((Program.LM_STUDIO, studio), (Program.LLAMA_CPP, cache))

    await models.scan()

    assert sorted(models.models) == [
        "hf.co/me/my_Big-GGUF:Q6_K", "hf.co/org/Tiny-GGUF:Q4_0", "loose", "other",
    ]  # fmt: skip


async def test_nothing_is_written_and_what_is_broken_is_told(tmp_path: Path) -> None:
    hub, store = tmp_path / "hub", OllamaStore(tmp_path / "ollama")
    link = cached(hub, "Tiny-Q4_K_M.gguf")
    cached(hub, "Tiny-Q5_0.gguf", b"GGUF and no more")
    gone = link.with_name("Tiny-Q6_K.gguf")
    gone.symlink_to("../../blobs/gone")
    store.add("registry.ollama.ai/library/tiny/1")
    before, times = as_it_lies(tmp_path), _times(tmp_path)
    models = catalogue((Program.HUGGING_FACE, hub), (Program.OLLAMA, store.folder))

    await models.scan()
    await models.look_again()

    assert sorted(models.models) == ["hf.co/org/Tiny-GGUF:Q4_K_M", "tiny:1"]
    assert {Path(file.path).name for file in models.broken} == {"Tiny-Q5_0.gguf", gone.name}
    assert as_it_lies(tmp_path) == before
    assert _times(tmp_path) == times


async def test_links_that_lead_upwards_have_no_file_twice(tmp_path: Path) -> None:
    link = cached(tmp_path, "Tiny-Q4_K_M.gguf")
    other = tmp_path / "models--org--Other-GGUF" / "snapshots" / NEW
    other.mkdir(parents=True)
    for folder in (link.parent, other):
        (folder / "all").symlink_to(tmp_path)
        (folder / "here").symlink_to(".")
        (folder / "itself").symlink_to("itself")
    models = catalogue((Program.HUGGING_FACE, tmp_path))

    await models.scan()

    assert sorted(models.models) == ["hf.co/org/Tiny-GGUF:Q4_K_M"]


async def test_a_pipe_where_a_revision_is_named_is_not_waited_for(tmp_path: Path) -> None:
    link = cached(tmp_path, "Tiny-Q4_K_M.gguf")
    main = link.parents[2] / "refs" / "main"
    main.unlink()
    os.mkfifo(main)
    models = catalogue((Program.HUGGING_FACE, tmp_path))

    async with asyncio.timeout(10):
        await models.scan()

    assert sorted(models.models) == ["hf.co/org/Tiny-GGUF:Q4_K_M"]


def _times(folder: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.lstat().st_mtime_ns, p.lstat().st_mode) for p in folder.rglob("*")}


async def test_a_store_that_appears_later_is_noticed_and_one_that_goes_is_forgotten(
    tmp_path: Path,
) -> None:
    hub, store = tmp_path / "hub", tmp_path / "ollama"
    models = catalogue((Program.HUGGING_FACE, hub), (Program.OLLAMA, store))
    await models.scan()
    assert (dict(models.models), models.broken) == ({}, ())

    link = cached(hub, "Tiny-Q4_K_M.gguf")
    OllamaStore(store).add()
    assert await models.scan()
    assert sorted(models.models) == ["hf.co/org/Tiny-GGUF:Q4_K_M", "tiny:latest"]

    link.unlink()
    assert await models.scan()
    assert sorted(models.models) == ["tiny:latest"]


async def test_folders_of_the_configuration_go_before_and_no_file_is_offered_twice(
    tmp_path: Path,
) -> None:
    hub, store = tmp_path / "hub", OllamaStore(tmp_path / "ollama")
    cached(hub, "Tiny-Q4_K_M.gguf")
    store.add()
    own = put(tmp_path / "own", "hf.co/org/Tiny-GGUF:Q4_K_M.gguf", gguf(pairs={"a.b": 1}))
    places = ((Program.HUGGING_FACE, hub), (Program.OLLAMA, store.folder))
    models = catalogue(*places, dirs=(tmp_path / "own", hub, store.folder))

    await models.scan()

    named = models.resolve("hf.co/org/Tiny-GGUF:Q4_K_M")
    assert named is not None
    assert named.path == str(own)
    assert not any(model.is_elsewhere for model in models.models.values())
    assert len({model.file_key for model in models.models.values()}) == len(models.models) == 3
    assert models.broken == ()
