"""supervisor.models.gguf_files: a bounded walk, split models, headers read piece by piece."""

import errno
import os
import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from planners.gguf import GgufError, GgufKind
from planners.model import BrokenFile, BrokenKind
from supervisor.models import gguf_files
from supervisor.models.gguf_files import ModelFile, file_at, read_model, sweep
from tests.fakes.gguf_writer import gguf, pair, put, split_gguf


def names(*folders: Path) -> list[str]:
    return [file.name for file in sweep(map(str, folders)).files]


def reasons(*folders: Path) -> dict[str, str]:
    return {Path(b.path).name: b.reason for b in sweep(map(str, folders)).broken}


def test_names_are_paths_below_the_folder_without_the_suffix(tmp_path: Path) -> None:
    put(tmp_path, "b.gguf")
    put(tmp_path, "a/deep/Model.Q4_K_M.GGUF")
    put(tmp_path, "notes.txt", b"x")

    assert names(tmp_path) == ["b", "a/deep/Model.Q4_K_M"]


def test_hidden_files_and_folders_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path, "._a.gguf", b"AppleDouble")
    put(tmp_path, ".cache/a.gguf")

    assert names(tmp_path) == []
    assert reasons(tmp_path) == {}


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    store = put(tmp_path, "store/blob.gguf").parent
    models = tmp_path / "models"
    models.mkdir()
    (models / "linked.gguf").symlink_to(store / "blob.gguf")
    (models / "self").symlink_to(models)
    (store / "back").symlink_to(models)
    (models / "store").symlink_to(store)
    (models / "nowhere.gguf").symlink_to(tmp_path / "missing")
    (models / "knot.gguf").symlink_to("knot.gguf")

    assert names(models) == ["linked", "store/blob"]
    assert reasons(models)["nowhere.gguf"] == "no such file or directory"
    assert "knot.gguf" in reasons(models)


def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    assert reasons(tmp_path / "none") == {"none": "cannot be searched: no such file or directory"}


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")

    assert names(tmp_path) == []
    assert reasons(tmp_path) == {"pipe.gguf": "not a regular file"}


def test_a_name_that_no_json_can_carry_is_told_readably(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf")).write_bytes(gguf())
    put(tmp_path, "two\nlines.gguf")

    found = sweep([str(tmp_path)])

    assert found.files == ()
    assert all("cannot be printed" in broken.reason for broken in found.broken)
    assert [broken.path.isascii() for broken in found.broken] == [True, True]


def test_the_walk_ends_after_so_many_folders_down(tmp_path: Path) -> None:
    put(tmp_path, "d/" * gguf_files.MAX_DEPTH + "in.gguf")
    put(tmp_path, "d/" * (gguf_files.MAX_DEPTH + 1) + "out.gguf")

    assert [name.rsplit("/", 1)[-1] for name in names(tmp_path)] == ["in"]


def test_the_walk_ends_after_so_many_entries_and_says_so(tmp_path: Path) -> None:
    for number in range(10):
        put(tmp_path, f"{number}.gguf", b"")

    found = sweep([str(tmp_path)], max_entries=5)

    assert len(found.files) < 5
    assert [broken.reason for broken in found.broken] == [
        "more than 5 entries: the rest is not looked at"
    ]


def test_the_parts_of_a_split_model_are_one_model(tmp_path: Path) -> None:
    parts = split_gguf(3)
    for number, part in enumerate(parts, start=1):
        put(tmp_path, f"big-{number:05}-of-00003.gguf", part)

    (file,) = sweep([str(tmp_path)]).files

    assert (file.name, file.stem) == ("big", "big")
    assert file.path == str(tmp_path / "big-00001-of-00003.gguf")
    assert file.size_bytes == sum(map(len, parts))
    info = read_model(file)
    assert info.n_layer == 3
    assert all(layer.weight_bytes > 0 for layer in info.layers)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    put(tmp_path, "big-00001-of-00003.gguf")
    put(tmp_path, "big-00003-of-00003.gguf")

    assert names(tmp_path) == []
    assert reasons(tmp_path) == {
        "big-00001-of-00003.gguf": "part 2 of 3 is missing: big-00002-of-00003.gguf"
    }


def test_a_part_of_absurdly_many_costs_nothing(tmp_path: Path) -> None:
    put(tmp_path, "big-00001-of-99999.gguf")

    assert "part 2 of 99999 is missing" in reasons(tmp_path)["big-00001-of-99999.gguf"]


@pytest.mark.parametrize("name", ["m-00000-of-00000", "m-00000-of-00002", "m-00003-of-00002"])
def test_a_name_with_numbers_that_no_split_gives_is_a_whole_model(
    tmp_path: Path, name: str
) -> None:
    path = put(tmp_path, f"{name}.gguf")

    assert names(tmp_path) == [name]
    assert isinstance(file_at(str(path), name="mine"), ModelFile)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_parts_lie_in_a_folder_each_is_offered_or_told_of(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        name = f"{chance.choice('ab')}-{chance.randrange(4):05}-of-{chance.randrange(4):05}.gguf"
        put(tmp_path, name)

    found = sweep([str(tmp_path)])

    offered = {part.path for file in found.files for part in file.parts}
    told = {re.sub(r"-\d{5}-of", "", broken.path) for broken in found.broken}
    left = {str(path) for path in tmp_path.iterdir()} - offered
    assert {re.sub(r"-\d{5}-of", "", path) for path in left} == told
    for path in tmp_path.iterdir():
        file_at(str(path), name="mine")


def test_a_path_to_the_first_part_stands_for_all(tmp_path: Path) -> None:
    for number, part in enumerate(split_gguf(2), start=1):
        put(tmp_path, f"big-{number:05}-of-00002.gguf", part)

    file = file_at(str(tmp_path / "big-00001-of-00002.gguf"), name="mine")

    assert isinstance(file, ModelFile)
    assert (file.name, len(file.parts)) == ("mine", 2)


def test_a_path_whose_second_part_is_missing_says_so(tmp_path: Path) -> None:
    first = put(tmp_path, "big-00001-of-00002.gguf")

    broken = file_at(str(first), name="mine")

    reason = "part 2 of 2: no such file or directory"
    assert broken == BrokenFile(str(first), reason, kind=BrokenKind.INCOMPLETE)


def test_a_path_to_a_folder_is_no_model(tmp_path: Path) -> None:
    broken = BrokenFile(str(tmp_path), "a folder", kind=BrokenKind.ABSENT)
    assert file_at(str(tmp_path), name="x") == broken


def test_a_file_whose_place_a_pipe_took_is_not_waited_for(tmp_path: Path) -> None:
    path = put(tmp_path, "m.gguf")
    file = file_at(str(path), name="mine")
    assert isinstance(file, ModelFile)
    path.unlink()
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)  # reads would find a pipe that is open, and empty

    try:
        with pytest.raises(GgufError, match="not a regular file"):
            read_model(file)
    finally:
        os.close(writer)


def test_a_file_that_only_waiting_would_fill_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").symlink_to("/proc/kmsg")  # regular to stat(), a queue to read()
    file = file_at(str(tmp_path / "m.gguf"), name="mine")
    assert isinstance(file, ModelFile)

    with pytest.raises((GgufError, PermissionError)):  # who is not root may not open it
        read_model(file)


def test_a_folder_whose_disk_does_not_answer_hides_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "far/m.gguf")
    put(tmp_path, "near/m.gguf")
    scandir = os.scandir

    def failing(folder: str) -> Iterator[os.DirEntry[str]]:
        if folder.endswith("far"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", failing)

    found = sweep([str(tmp_path)])

    assert [file.name for file in found.files] == ["near/m"]
    assert found.unseen == (str(tmp_path / "far"),)
    assert "stale" in found.broken[0].reason


def test_a_header_longer_than_the_first_read_is_read_on(tmp_path: Path) -> None:
    pairs = {"filler": "x" * (3 * gguf_files.FIRST_READ_BYTES)}
    path = put(tmp_path, "long.gguf", gguf(pairs=pairs))
    file = file_at(str(path), name="long")

    assert isinstance(file, ModelFile)
    assert read_model(file).architecture == "llama"


def test_a_header_without_end_is_given_up_at_the_parsers_bound(tmp_path: Path) -> None:
    endless = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair("k", struct.pack("<IQ", 8, 1 << 33))
    path = put(tmp_path, "long.gguf", endless)
    os.truncate(path, 1 << 34)  # a hole: it takes no room on the disk
    file = file_at(str(path), name="long")

    assert isinstance(file, ModelFile)
    with pytest.raises(GgufError) as caught:
        read_model(file)
    assert caught.value.kind is GgufKind.ABSURD


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", GgufKind.EMPTY),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", GgufKind.GIT_LFS),
        (b"lmgg" + bytes(64), GgufKind.OLD_GGML),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), GgufKind.BIG_ENDIAN),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60), GgufKind.ABSURD),
        (gguf()[:200], GgufKind.TRUNCATED),
        (gguf()[:-1], GgufKind.TRUNCATED),
    ],
    ids=["empty", "lfs", "ggml", "big-endian", "absurd", "truncated header", "truncated data"],
)
def test_a_file_that_is_no_gguf_says_which_way(tmp_path: Path, data: bytes, kind: GgufKind) -> None:
    file = file_at(str(put(tmp_path, "x.gguf", data)), name="x")

    assert isinstance(file, ModelFile)
    with pytest.raises(GgufError) as caught:
        read_model(file)
    assert caught.value.kind is kind
