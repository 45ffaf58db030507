"""supervisor.store.own_store: manifests and blobs come whole and go together."""

import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.models.gguf_files import CannotLook
from supervisor.store.blobs import KEPT_FREE_BYTES, Incoming, Unwritten, check_room, linked
from supervisor.store.digests import Digest
from supervisor.store.errors import BlobMissing, DigestMismatch, NoRoom, Unwritable
from supervisor.store.manifest import CONFIG_TYPE, MODEL, SYSTEM, Layer, Manifest, digest_of
from supervisor.store.names import parse_name
from supervisor.store.own_store import OwnStore
from supervisor.store.partial import Partial
from tests.fakes.ollama_store import as_it_lies

TINY, OTHER = parse_name("tiny"), parse_name("me/other:1")
OLD_S = 2 * 3600


@pytest.fixture
def store(tmp_path: Path) -> OwnStore:
    store = OwnStore(str(tmp_path / "store"))
    store.open()
    return store


def blobs(store: OwnStore) -> set[bytes]:
    return {path.read_bytes() for path in Path(store.folder, "blobs").iterdir()}


def put(store: OwnStore, name: str, *texts: bytes) -> Manifest:
    """A model of that name whose layers hold `texts`."""
    layers = tuple(store.put_blob(SYSTEM, text) for text in texts)
    manifest = Manifest(store.put_blob(CONFIG_TYPE, b"{}"), layers)
    store.put_manifest(parse_name(name), manifest)
    return manifest


def aged(path: Path, age_s: float = OLD_S) -> Path:
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def test_a_model_is_read_back_as_it_was_put(store: OwnStore) -> None:
    manifest = put(store, "me/other:1", b"one", b"two")

    assert store.manifest(OTHER) == manifest
    assert [name.full for name in store.names()] == [OTHER.full]
    assert store.manifest(TINY) is None


def test_case_does_not_count_and_the_first_spelling_stays(store: OwnStore) -> None:
    put(store, "Tiny", b"one")

    put(store, "TINY:Latest", b"two")

    assert [name.full for name in store.names()] == ["registry.ollama.ai/library/Tiny:latest"]
    assert store.has(TINY)
    assert b"one" not in blobs(store)


def test_nothing_in_a_store_is_anybody_elses_to_read(store: OwnStore) -> None:
    put(store, "tiny", b"one")

    for folder, _, files in os.walk(store.folder):
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600
        if folder != store.folder:
            assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_blobs_go_with_the_last_model_that_needs_them(store: OwnStore) -> None:
    put(store, "tiny", b"shared", b"of tiny")
    put(store, "me/other:1", b"shared", b"of other")

    store.remove(TINY)
    assert blobs(store) == {b"shared", b"of other", b"{}"}
    store.remove(OTHER)

    assert blobs(store) == set()
    assert list(Path(store.folder, "manifests").iterdir()) == []


def test_what_is_held_outlives_its_model(store: OwnStore) -> None:
    manifest = put(store, "tiny", b"held", b"not held")

    with store.hold([manifest.layers[0].digest]):
        store.remove(TINY)

    assert blobs(store) == {b"held"}


def test_to_remove_what_is_not_there_changes_nothing(store: OwnStore) -> None:
    put(store, "tiny", b"one")
    before = as_it_lies(Path(store.folder))

    assert not store.remove(OTHER)

    assert as_it_lies(Path(store.folder)) == before


def test_a_manifest_is_not_written_without_all_of_its_blobs(store: OwnStore) -> None:
    there = store.put_blob(CONFIG_TYPE, b"{}")
    lost = Layer(MODEL, digest_of(b"never came"), 10)

    with pytest.raises(BlobMissing):
        store.put_manifest(TINY, Manifest(there, (lost,)))

    assert list(store.names()) == []


def test_a_copied_manifest_is_the_same_to_the_byte(store: OwnStore) -> None:
    manifest = put(store, "tiny", b"one")
    told = b'{"schemaVersion": 2, "of": "another program",' + (
        b'"config": {"mediaType": "c", "digest": "%b", "size": 2}, "layers": []}'
        % str(manifest.config.digest).encode()
    )
    store.put_manifest(TINY, Manifest(manifest.config, ()), told)

    store.copy_manifest(TINY, OTHER)

    assert Path(store.folder, "manifests", *OTHER.path).read_bytes() == told


def test_a_blob_is_kept_only_if_it_is_what_its_digest_says(store: OwnStore) -> None:
    with Incoming(store.folder) as incoming:
        incoming.write(b"one")
        with pytest.raises(DigestMismatch):
            incoming.keep(digest_of(b"two"))

    assert as_it_lies(Path(store.folder)) == {}


def test_a_blob_that_is_broken_off_leaves_nothing(store: OwnStore) -> None:
    with suppress(KeyboardInterrupt), Incoming(store.folder) as incoming:
        incoming.write(b"one")
        raise KeyboardInterrupt

    assert as_it_lies(Path(store.folder)) == {}


def test_a_file_becomes_a_blob_by_its_content(store: OwnStore, tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"weights" * 1000)
    told: list[int] = []

    with Incoming(store.folder) as incoming:
        incoming.fill(str(source), told=told.append)
        digest = incoming.keep()

    assert digest == digest_of(b"weights" * 1000)
    assert store.has_blob(digest, size_bytes=7000)
    assert told == [7000]
    source.write_bytes(b"changed")
    assert blobs(store) == {b"weights" * 1000}


def test_another_stores_blob_is_shared_where_the_disk_can(store: OwnStore, tmp_path: Path) -> None:
    source = tmp_path / digest_of(b"x").file_name
    source.write_bytes(b"x")

    assert linked(str(source), store.folder, digest_of(b"x"))
    assert not linked(str(tmp_path / "gone"), store.folder, Digest("00" * 32))
    assert blobs(store) == {b"x"}


def test_a_blob_stays_the_same_file_whoever_asks_for_it(store: OwnStore) -> None:
    manifest = put(store, "tiny", b"one")
    (path,) = Path(store.folder, "blobs").glob(f"*{manifest.layers[0].digest.hex}")
    was = aged(path).stat()

    store.has_blob(manifest.layers[0].digest)
    store.put_blob(SYSTEM, b"one")
    store.copy_manifest(TINY, OTHER)

    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (was.st_ino, was.st_mtime_ns)


def test_more_than_the_disk_has_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    with pytest.raises(NoRoom) as refused:
        check_room(str(tmp_path), 1 << 60)

    assert refused.value.needed_bytes == 1 << 60
    assert KEPT_FREE_BYTES > 0
    check_room(str(tmp_path), 1)


def test_a_disk_that_runs_full_in_the_middle_is_told_as_that() -> None:
    with (
        pytest.raises(NoRoom, match=r"^the disk of /dev ran full meanwhile; remove models"),
        Unwritten("/dev/full"),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        full.write(b"a part of a blob")


def _incoming(blobs: Path, _: Path) -> Path:
    path = blobs / ".incoming-0123"
    path.write_bytes(b"half of a blob")
    return path


def _manifest(_: Path, manifests: Path) -> Path:
    path = manifests / "registry.ollama.ai/library/new/.incoming-1"
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"half of a manif')
    return path


def _unused(blobs: Path, _: Path) -> Path:
    path = blobs / digest_of(b"unused").file_name
    path.write_bytes(b"unused")
    return aged(path)


def _forsaken(blobs: Path, _: Path) -> Path:
    path = blobs / f"{digest_of(b'x').file_name}-partial"
    path.write_bytes(b"half")
    return aged(path, 8 * 24 * 3600)


@pytest.mark.parametrize("left", [_incoming, _manifest, _unused, _forsaken])
def test_the_start_clears_what_a_killed_daemon_left_and_nothing_else(
    store: OwnStore, left: Callable[[Path, Path], Path]
) -> None:
    put(store, "tiny", b"one")
    for path in Path(store.folder, "blobs").iterdir():
        aged(path)
    before = as_it_lies(Path(store.folder))
    path = left(Path(store.folder, "blobs"), Path(store.folder, "manifests"))
    assert path.exists()

    OwnStore(store.folder).open()

    assert as_it_lies(Path(store.folder)) == before
    assert path.parent.name != "new" or not path.parent.exists()


def test_what_may_be_in_use_is_not_cleared(store: OwnStore) -> None:
    young = store.put_blob(SYSTEM, b"uploaded just now")
    partial = Path(store.folder, "blobs", f"{digest_of(b'x').file_name}-partial")
    strange = Path(store.folder, "blobs", "README")
    for path in (partial, strange):
        path.write_bytes(b"x")
        aged(path)

    OwnStore(store.folder).open()

    assert store.has_blob(young.digest)
    assert partial.exists()
    assert strange.exists()


def test_beside_a_manifest_that_cannot_be_read_no_blob_is_taken_for_unused(
    store: OwnStore,
) -> None:
    put(store, "tiny", b"one")
    Path(store.folder, "manifests", *TINY.path).write_bytes(b"{")
    for path in Path(store.folder, "blobs").iterdir():
        aged(path)

    OwnStore(store.folder).open()

    assert blobs(store) == {b"one", b"{}"}


def test_a_store_that_somebody_removed_has_no_models(store: OwnStore) -> None:
    put(store, "tiny", b"one")
    shutil.rmtree(store.folder)

    assert (store.has(TINY), store.manifest(TINY), store.remove(TINY)) == (False, None, False)
    with pytest.raises(Unwritable):
        put(store, "tiny", b"one")


def test_a_store_that_cannot_be_searched_says_so(store: OwnStore) -> None:
    Path(store.folder, "manifests").rmdir()
    Path(store.folder, "manifests").write_text("no folder")

    with pytest.raises(CannotLook):
        store.has(TINY)


@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_what_lies_where_a_manifest_is_written_first_is_not_written_to(
    store: OwnStore, tmp_path: Path, kind: str
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    aside = Path(store.folder, "manifests", *TINY.path[:3], f".incoming-{TINY.tag}")
    aside.parent.mkdir(parents=True)
    if kind == "a link":
        aside.symlink_to(outside)
    else:
        os.mkfifo(aside)

    manifest = put(store, "tiny", b"one")

    assert store.manifest(TINY) == manifest
    assert outside.read_text() == "mine"


def test_an_unfinished_download_that_leads_elsewhere_is_not_written_to(
    store: OwnStore, tmp_path: Path
) -> None:
    outside, digest = tmp_path / "outside", digest_of(b"one")
    outside.write_text("mine")
    partial = Partial(store.folder, digest, size_bytes=4, part_bytes=4)
    partial.open()
    partial.note()
    partial.close()
    path = Path(store.folder, "blobs", f"{digest.file_name}-partial")
    path.unlink()
    path.symlink_to(outside)

    with pytest.raises(Unwritable):
        Partial(store.folder, digest, size_bytes=4, part_bytes=4).open()
    assert outside.read_text() == "mine"
