"""supervisor.models.catalogue: from folders and rules to models by name, and changes noticed."""

import asyncio
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from planners.model import BrokenKind, ModelId, ModelSettings, ServedModel
from planners.settings import ModelRule
from supervisor.models.catalogue import Catalogue
from tests.fakes.gguf_writer import gguf, put, split_gguf
from tests.fakes.machines import PLAIN

PINNED = replace(PLAIN, pin=True)


def rule(
    name: str,
    path: Path | None = None,
    *,
    aliases: tuple[str, ...] = (),
    settings: ModelSettings = PLAIN,
) -> ModelRule:
    return ModelRule(ModelId(name), None if path is None else str(path), aliases, settings)


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    """Of one folder, without rules, not scanned yet."""
    return Catalogue(dirs=(str(tmp_path),), rules=(), defaults=PLAIN)


async def scanned(*dirs: Path, rules: tuple[ModelRule, ...] = ()) -> Catalogue:
    catalogue = Catalogue(dirs=tuple(map(str, dirs)), rules=rules, defaults=PLAIN)
    async with asyncio.timeout(10):
        await catalogue.scan()
    return catalogue


def reasons(catalogue: Catalogue) -> dict[str, str]:
    return {Path(broken.path).name: broken.reason for broken in catalogue.broken}


def found(catalogue: Catalogue, name: str) -> ServedModel:
    model = catalogue.resolve(name)
    assert model is not None, f"{name} is not among {list(catalogue.models)}"
    return model


async def test_a_gguf_file_is_served_under_its_path(tmp_path: Path) -> None:
    path = put(tmp_path, "org/Tiny.gguf")

    catalogue = await scanned(tmp_path)

    model = catalogue.models[ModelId("org/Tiny")]
    assert (model.path, model.settings, model.aliases) == (str(path), PLAIN, ())
    assert model.size_bytes == path.stat().st_size
    assert model.modified_at == pytest.approx(path.stat().st_mtime)
    assert model.info.architecture == "llama"


async def test_names_are_found_without_case_and_with_latest(tmp_path: Path) -> None:
    put(tmp_path, "Tiny.gguf")
    catalogue = await scanned(tmp_path, rules=(rule("tiny", aliases=("Small",)),))

    for name in ("Tiny", "tiny", "TINY:latest", "small", "SMALL:latest"):
        assert found(catalogue, name).model_id == "Tiny"
    assert catalogue.resolve("tin") is None
    assert catalogue.resolve("") is None


async def test_names_that_differ_in_case_alone_stay_apart(tmp_path: Path) -> None:
    put(tmp_path, "a.gguf")
    put(tmp_path, "A.gguf")

    catalogue = await scanned(tmp_path)

    assert found(catalogue, "a").model_id == "a"
    assert found(catalogue, "A").model_id == "A"


async def test_a_model_before_an_alias(tmp_path: Path) -> None:
    put(tmp_path, "a.gguf")
    put(tmp_path, "b.gguf")

    catalogue = await scanned(tmp_path, rules=(rule("b", aliases=("a",)),))

    assert found(catalogue, "a").model_id == "a"


async def test_the_first_folder_wins_a_name_and_the_other_is_reported(tmp_path: Path) -> None:
    first = put(tmp_path / "one", "m.gguf")
    put(tmp_path / "two", "m.gguf")

    catalogue = await scanned(tmp_path / "one", tmp_path / "two")

    assert found(catalogue, "m").path == str(first)
    assert reasons(catalogue) == {"m.gguf": f"hidden by {first}: both are named m"}


async def test_a_rule_by_name_gives_its_settings(tmp_path: Path) -> None:
    put(tmp_path, "Tiny.gguf")

    catalogue = await scanned(
        tmp_path, rules=(rule("tiny", settings=replace(PLAIN, context=512, pin=True)),)
    )

    settings = found(catalogue, "Tiny").settings
    assert (settings.context, settings.pin, settings.keep_alive_s) == (512, True, 300.0)


async def test_a_rule_with_a_path_serves_that_file_under_its_own_name_only(tmp_path: Path) -> None:
    path = put(tmp_path, "Tiny.gguf")
    elsewhere = put(tmp_path / "elsewhere", "x.bin")

    catalogue = await scanned(tmp_path, rules=(rule("mine", path), rule("other", elsewhere)))

    assert sorted(catalogue.models) == ["mine", "other"]
    assert catalogue.broken == ()


async def test_two_rules_may_serve_one_file(tmp_path: Path) -> None:
    path = put(tmp_path, "Tiny.gguf")

    catalogue = await scanned(
        tmp_path, rules=(rule("a", path), rule("b", path, settings=replace(PLAIN, context=64)))
    )

    assert {name: m.path for name, m in catalogue.models.items()} == {
        "a": str(path),
        "b": str(path),
    }


async def test_a_rule_whose_file_is_missing_is_reported(tmp_path: Path) -> None:
    lost = tmp_path / "lost.gguf"
    rules = (rule("lost", lost), rule("unknown"))

    catalogue = await scanned(tmp_path, rules=rules)

    assert catalogue.models == {}
    assert reasons(catalogue) == {
        "lost.gguf": f"its file {lost}: no such file or directory",
        "unknown": "a rule without a file: none of that name is in the model folders",
    }
    assert [broken.kind for broken in catalogue.broken] == [BrokenKind.ABSENT, BrokenKind.RULE]
    assert catalogue.broken[-1].names == ("unknown",)


async def test_a_rule_for_a_broken_file_is_not_reported_a_second_time(tmp_path: Path) -> None:
    put(tmp_path, "bad.gguf", b"nonsense")

    catalogue = await scanned(tmp_path, rules=(rule("bad"),))

    assert list(reasons(catalogue)) == ["bad.gguf"]


@pytest.mark.parametrize(
    "needing",
    [
        pytest.param(lambda path: replace(PLAIN, draft_path=path), id="draft model"),
        pytest.param(lambda path: replace(PLAIN, mmproj_path=path), id="projector"),
        pytest.param(lambda path: replace(PLAIN, lora_paths=(path,)), id="LoRA adapter"),
    ],
)
async def test_a_model_whose_companion_is_missing_is_reported_with_its_name(
    tmp_path: Path, needing: Callable[[str], ModelSettings]
) -> None:
    path = put(tmp_path, "m.gguf")
    missing = str(tmp_path / "missing")

    catalogue = await scanned(tmp_path, rules=(rule("m", path, settings=needing(missing)),))

    assert catalogue.models == {}
    assert f"{missing}: no such file or directory" in reasons(catalogue)["m.gguf"]


async def test_a_projector_is_paired_with_the_model_beside_it(tmp_path: Path) -> None:
    model = put(tmp_path, "gemma/gemma-3-4b-it-Q4_K_M.gguf")
    eyes = put(tmp_path, "gemma/mmproj-F16.gguf", gguf("clip"))
    put(tmp_path, "blind.gguf")

    catalogue = await scanned(tmp_path)

    assert sorted(catalogue.models) == ["blind", "gemma/gemma-3-4b-it-Q4_K_M"]
    seeing = found(catalogue, "gemma/gemma-3-4b-it-Q4_K_M")
    assert seeing.settings.mmproj_path == str(eyes)
    assert seeing.size_bytes == model.stat().st_size + eyes.stat().st_size
    assert found(catalogue, "blind").settings.mmproj_path is None


async def test_a_projector_is_known_by_its_architecture_too(tmp_path: Path) -> None:
    put(tmp_path, "m.gguf")
    eyes = put(tmp_path, "m-vision.gguf", gguf("clip"))

    catalogue = await scanned(tmp_path)

    assert list(catalogue.models) == ["m"]
    assert found(catalogue, "m").settings.mmproj_path == str(eyes)


async def test_an_explicit_projector_wins(tmp_path: Path) -> None:
    put(tmp_path, "m.gguf")
    put(tmp_path, "mmproj-F16.gguf", gguf("clip"))
    own = put(tmp_path, "other/eyes.gguf", gguf("clip"))

    catalogue = await scanned(
        tmp_path, rules=(rule("m", settings=replace(PLAIN, mmproj_path=str(own))),)
    )

    assert found(catalogue, "m").settings.mmproj_path == str(own)


async def test_a_broken_projector_is_reported_and_the_model_served_without(tmp_path: Path) -> None:
    put(tmp_path, "m.gguf")
    put(tmp_path, "mmproj-F16.gguf", b"nonsense")

    catalogue = await scanned(tmp_path)

    assert found(catalogue, "m").settings.mmproj_path is None
    assert list(reasons(catalogue)) == ["mmproj-F16.gguf"]


async def test_an_adapter_is_no_model_and_no_fault_where_a_rule_uses_it(tmp_path: Path) -> None:
    put(tmp_path, "m.gguf")
    used = put(tmp_path, "used.gguf", gguf(pairs={"general.type": "adapter"}))
    put(tmp_path, "stray.gguf", gguf(pairs={"general.type": "adapter"}))

    catalogue = await scanned(
        tmp_path, rules=(rule("m", settings=replace(PLAIN, lora_paths=(str(used),))),)
    )

    assert list(catalogue.models) == ["m"]
    assert reasons(catalogue) == {
        "stray.gguf": "a LoRA adapter, not a model: name it as lora of one"
    }


async def test_a_draft_that_is_a_model_stays_on_offer(tmp_path: Path) -> None:
    put(tmp_path, "big.gguf")
    small = put(tmp_path, "small.gguf")

    catalogue = await scanned(
        tmp_path, rules=(rule("big", settings=replace(PLAIN, draft_path=str(small))),)
    )

    assert sorted(catalogue.models) == ["big", "small"]


async def test_a_draft_is_read_for_its_own_facts(tmp_path: Path) -> None:
    put(tmp_path / "offered", "big.gguf")
    small = put(tmp_path / "elsewhere", "small.gguf")
    broken = put(tmp_path / "elsewhere", "broken.gguf", b"no model")

    read = await scanned(
        tmp_path / "offered", rules=(rule("big", settings=replace(PLAIN, draft_path=str(small))),)
    )
    unread = await scanned(
        tmp_path / "offered", rules=(rule("big", settings=replace(PLAIN, draft_path=str(broken))),)
    )

    draft = read.models[ModelId("big")].draft
    assert draft is not None
    assert draft.architecture == "llama"
    assert unread.models[ModelId("big")].draft is None


async def test_a_rule_cannot_make_a_projector_a_model(tmp_path: Path) -> None:
    eyes = put(tmp_path, "eyes.gguf", gguf("clip"))

    catalogue = await scanned(tmp_path, rules=(rule("eyes", eyes),))

    assert catalogue.models == {}
    assert "a projector, not a model" in reasons(catalogue)["eyes.gguf"]


async def test_a_split_model_counts_all_its_parts(tmp_path: Path) -> None:
    parts = split_gguf(2)
    for number, part in enumerate(parts, start=1):
        put(tmp_path, f"big-{number:05}-of-00002.gguf", part)

    catalogue = await scanned(tmp_path)

    assert found(catalogue, "big").size_bytes == sum(map(len, parts))
    assert found(catalogue, "big").info.n_layer == 2


async def test_a_scan_says_whether_anything_changed(catalogue: Catalogue, tmp_path: Path) -> None:
    assert await catalogue.scan() is False  # nothing there, as before

    path = put(tmp_path, "m.gguf")
    assert await catalogue.scan() is True
    assert await catalogue.scan() is False

    path.unlink()
    assert await catalogue.scan() is True
    assert catalogue.models == {}


async def test_a_changed_file_has_another_key_and_is_read_again(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    path = put(tmp_path, "m.gguf")
    await catalogue.scan()
    before = found(catalogue, "m")

    path.write_bytes(gguf("qwen2"))
    assert await catalogue.scan() is True

    after = found(catalogue, "m")
    assert after.info.architecture == "qwen2"
    assert after.file_key != before.file_key


async def test_a_changed_projector_changes_the_models_key(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    put(tmp_path, "m.gguf")
    put(tmp_path, "mmproj.gguf", gguf("clip"))
    await catalogue.scan()
    before = found(catalogue, "m").file_key

    put(tmp_path, "mmproj.gguf", gguf("clip", pairs={"x": 1}))
    await catalogue.scan()

    assert found(catalogue, "m").file_key != before


async def test_an_unchanged_file_is_not_opened_again(catalogue: Catalogue, tmp_path: Path) -> None:
    path = put(tmp_path, "m.gguf")
    await catalogue.scan()
    read_at_ns = path.stat().st_mtime_ns
    path.write_bytes(b"x" * path.stat().st_size)
    os.utime(path, ns=(read_at_ns, read_at_ns))  # the same to stat: only a read would tell

    assert await catalogue.scan() is False
    assert found(catalogue, "m").info.architecture == "llama"


async def test_a_file_that_is_still_being_written_is_served_once_it_is_whole(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    whole = gguf()
    path = put(tmp_path, "m.gguf", whole[:-100])
    await catalogue.scan()
    assert "may still grow" in reasons(catalogue)["m.gguf"]

    path.write_bytes(whole)
    assert await catalogue.scan() is True

    assert list(catalogue.models) == ["m"]
    assert catalogue.broken == ()


async def test_an_old_truncated_file_is_just_broken(catalogue: Catalogue, tmp_path: Path) -> None:
    path = put(tmp_path, "m.gguf", gguf()[:-100])
    os.utime(path, (1, 1))

    await catalogue.scan()

    assert "truncated" in reasons(catalogue)["m.gguf"]
    assert "may still grow" not in reasons(catalogue)["m.gguf"]
    assert [broken.kind for broken in catalogue.broken] == [BrokenKind.INCOMPLETE]


async def test_reconfiguring_takes_effect_with_the_next_scan(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    put(tmp_path, "m.gguf")
    await catalogue.scan()

    catalogue.reconfigure(dirs=(str(tmp_path),), rules=(), defaults=PINNED)
    assert found(catalogue, "m").settings == PLAIN
    assert await catalogue.scan() is True

    assert found(catalogue, "m").settings == PINNED


async def test_scans_at_once_agree(catalogue: Catalogue, tmp_path: Path) -> None:
    put(tmp_path, "m.gguf")

    changed = await asyncio.gather(*(catalogue.scan() for _ in range(5)))

    assert changed.count(True) == 1
    assert list(catalogue.models) == ["m"]


async def test_folders_that_do_not_answer_are_told_of_once(tmp_path: Path) -> None:
    hung = Catalogue(dirs=(str(tmp_path),), rules=(), defaults=PLAIN, scan_s=0)
    with capture_logs() as said:
        changed = [await hung.scan() for _ in range(3)]

    assert changed == [False] * 3
    assert [line["event"] for line in said] == ["catalogue.stalled"]


async def test_a_scan_that_is_cancelled_leaves_the_catalogue_usable(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    put(tmp_path, "m.gguf")
    scan = asyncio.create_task(catalogue.scan())
    await asyncio.sleep(0)

    scan.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scan

    assert await catalogue.scan() is True
    assert list(catalogue.models) == ["m"]


async def test_a_thousand_hostile_files_cost_a_moment(catalogue: Catalogue, tmp_path: Path) -> None:
    for number in range(1000):
        put(tmp_path, f"{number}.gguf", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64)
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    await catalogue.scan()

    assert len(catalogue.broken) == 1000
    assert loop.time() - began_s < 10


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """As after a flood of connections: whatever opens a file fails."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))  # those open already stay open
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_what_was_offered_stays_while_nobody_can_look(tmp_path: Path) -> None:
    put(tmp_path, "Tiny.gguf")
    catalogue = await scanned(tmp_path)

    with no_descriptors_left():
        assert not await catalogue.scan()

    assert ModelId("Tiny") in catalogue.models
    assert catalogue.broken == ()


def disk_fails_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a network disk whose server is gone: whatever is asked of it fails."""

    def failing(asked: Callable[..., Any]) -> Callable[..., Any]:
        def ask(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path).startswith(str(folder)):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return asked(path, *args, **kwargs)

        return ask

    monkeypatch.setattr(os, "scandir", failing(os.scandir))
    monkeypatch.setattr(os, "stat", failing(os.stat))


async def test_what_a_disk_held_that_fails_stays_on_offer_and_others_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    put(far, "m.gguf")
    path = put(far, "named.gguf")
    put(near, "m.gguf")
    adapted = rule("adapted", path, settings=replace(PLAIN, lora_paths=(str(path),)))
    catalogue = Catalogue(dirs=(str(far), str(near)), rules=(adapted,), defaults=PLAIN)
    await catalogue.scan()
    before = dict(catalogue.models)
    disk_fails_below(far, monkeypatch)
    put(near, "new.gguf")

    assert await catalogue.scan()

    new = found(catalogue, "new")
    assert catalogue.models == before | {new.model_id: new}
    assert "input/output error" in reasons(catalogue)["far"]


async def test_a_disk_that_fails_from_the_start_costs_the_models_on_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    path = put(far, "named.gguf")
    put(near, "m.gguf")
    disk_fails_below(far, monkeypatch)
    catalogue = Catalogue(dirs=(str(far), str(near)), rules=(rule("named", path),), defaults=PLAIN)

    await catalogue.scan()

    assert list(catalogue.models) == ["m"]
    assert "input/output error" in reasons(catalogue)["named.gguf"]


async def test_a_file_that_cannot_be_read_to_its_end_costs_no_other_one(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    put(tmp_path, "m.gguf")
    (tmp_path / "bad.gguf").symlink_to("/proc/self/mem")  # EIO, as of a bad sector

    await catalogue.scan()

    assert list(catalogue.models) == ["m"]
    assert reasons(catalogue)["bad.gguf"] == "cannot be read: Input/output error"
    assert [broken.kind for broken in catalogue.broken] == [BrokenKind.FILE]


async def test_a_file_that_is_not_ours_to_read_is_told_from_a_spoilt_one(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    (tmp_path / "theirs.gguf").symlink_to("/proc/sys/vm/drop_caches")  # EACCES, for root too

    await catalogue.scan()

    assert reasons(catalogue)["theirs.gguf"] == "cannot be read: Permission denied"
    assert [broken.kind for broken in catalogue.broken] == [BrokenKind.UNREADABLE]


async def test_a_folder_whose_name_is_no_utf8_hides_only_its_own_models(tmp_path: Path) -> None:
    put(tmp_path, "Good.gguf")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/Mod\xe8les"))
    odd.mkdir()
    (odd / "Tiny.gguf").write_bytes(gguf())
    (odd / "bad.gguf").write_text("not a model")

    catalogue = await scanned(tmp_path)

    assert list(catalogue.models) == [ModelId("Good")]
    assert all(broken.path.isascii() for broken in catalogue.broken)
    assert len(catalogue.broken) == 2
