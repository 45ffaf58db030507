import asyncio
import os
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from planners.graph.kv_cache import LaunchShape
from planners.moving.migration import is_carried
from planners.moving.slot_file import SlotFileError, SlotMemory, slot_file_bytes, slot_memory
from supervisor.children.llama import client_of
from supervisor.moving.slots import (
    NoRoomForSlot,
    SavedSlot,
    SlotDoor,
    SlotError,
    SlotNotRestored,
    SlotNotSaved,
    SlotShelf,
    erase,
    remove_left_files,
)
from tests.fakes.real_child import RealChild, info_of_file, real_child
from tests.fakes.real_engine import quickstart_model
from tests.fakes.tiny_models import tiny_models, write

PROMPT = "The history of the lighthouse begins with a fire on a hill, "
PLAIN = SlotMemory(n_caches=1, has_v=True, has_state=False)
ROOM_BYTES = 64 << 20
THREAD = ThreadPoolExecutor(1, "slots")
SOON_S = 20.0


def shelf(*, quota_bytes: int = ROOM_BYTES) -> SlotShelf:
    return SlotShelf(quota_bytes=quota_bytes, thread=THREAD, keep_free_bytes=0)


Reply = dict[str, Any]


async def told(child: RealChild, prompt: str | list[int], *, slot: int, n: int = 8) -> Reply:
    body = {
        "prompt": prompt,
        "n_predict": n,
        "id_slot": slot,
        "temperature": 0,
        "seed": 1,
        "return_tokens": True,
    }
    reply: Reply = await child.ask("/completion", body)
    return reply


async def ids_of(child: RealChild, text: str) -> list[int]:
    told = {"content": text, "add_special": True}
    found: list[int] = (await child.ask("/tokenize", told))["tokens"]
    return found


async def saved(child: RealChild, slot: int, *, on: SlotShelf) -> SavedSlot:
    return await on.save(child.door, slot, expected_bytes=8 << 20, within_s=SOON_S)


@pytest.mark.llama
async def test_a_conversation_goes_on_in_another_process_without_its_prompt_computed_again(
    short_dir: Path,
) -> None:
    kept = shelf()
    async with real_child(short_dir) as first:
        began = await told(first, PROMPT, slot=0)
        file = await saved(first, 0, on=kept)
        whole = await told(first, PROMPT, slot=0, n=16)
    async with real_child(short_dir) as second:
        file = kept.moved(file, second.folder)
        await kept.restore(second.door, 0, file, within_s=SOON_S)
        went_on = await told(second, PROMPT + began["content"], slot=0)

    assert began["content"] + went_on["content"] == whole["content"]
    assert went_on["timings"]["prompt_n"] == 1
    assert went_on["timings"]["cache_n"] == file.n_tokens


@pytest.mark.llama
@pytest.mark.parametrize(
    ("n_before", "slot", "n_after", "into"),
    [(1, 0, 2, 1), (2, 1, 1, 0), (4, 2, 3, 1)],
    ids=["1 to 2", "2 to 1", "4 to 3"],
)
async def test_a_slot_is_carried_to_a_child_of_another_slot_count(
    short_dir: Path, n_before: int, slot: int, n_after: int, into: int
) -> None:
    kept = shelf()
    async with real_child(short_dir, n_parallel=n_before) as first:
        began = await told(first, PROMPT, slot=slot)
        file = await saved(first, slot, on=kept)
        ids = await kept.ids(file)
        whole = await told(first, PROMPT, slot=slot, n=16)
        prompt = await ids_of(first, PROMPT)
    async with real_child(short_dir, n_parallel=n_after) as second:
        file = kept.moved(file, second.folder)
        with pytest.raises(SlotNotRestored):
            await kept.restore(second.door, into, file, within_s=SOON_S)
        file = await kept.bridge(file, PLAIN, n_stream=n_after, folder=second.folder)
        await kept.restore(second.door, into, file, within_s=SOON_S)
        went_on = await told(second, PROMPT + began["content"], slot=into)

        assert list(second.folder.iterdir()) == [file.path]
    assert began["content"] + went_on["content"] == whole["content"]
    assert went_on["timings"]["prompt_n"] == 1
    assert ids == (*prompt, *began["tokens"][:-1])  # the last one was told, and not yet computed
    assert kept.used_bytes == file.n_bytes


@pytest.mark.llama
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        pytest.param("windows-6", ("--swa-full",), id="sliding windows kept whole"),
        pytest.param("hybrid-2", (), id="attention and a recurrent state"),
        pytest.param("state-2", (), id="a recurrent state alone"),
        pytest.param("delta", (), id="places of three axes"),
    ],
)
async def test_other_memories_are_carried_to_another_slot_count_too(
    short_dir: Path, name: str, flags: tuple[str, ...]
) -> None:
    (tiny,) = (model for model in tiny_models() if model.name == name)
    path = write(tiny, short_dir)
    memory, kept = slot_memory(info_of_file(path)), shelf()
    async with real_child(short_dir, model=path, n_parallel=3, flags=flags) as first:
        began = await told(first, PROMPT, slot=1)
        file = await saved(first, 1, on=kept)
    async with real_child(short_dir, model=path, n_parallel=2, flags=flags) as second:
        file = await kept.bridge(file, memory, n_stream=2, folder=second.folder)
        await kept.restore(second.door, 0, file, within_s=SOON_S)
        prompt = await ids_of(second, PROMPT)
        went_on = await told(second, prompt + began["tokens"], slot=0)

    assert went_on["timings"]["cache_n"] >= file.n_tokens - 1


@pytest.mark.llama
async def test_windows_that_were_not_kept_whole_are_taken_over_and_passed_by(
    short_dir: Path,
) -> None:
    (tiny,) = (model for model in tiny_models() if model.name == "windows-6")
    path, kept = write(tiny, short_dir), shelf()
    async with real_child(short_dir, model=path) as first:
        began = await told(first, PROMPT, slot=0)
        file = await saved(first, 0, on=kept)
    async with real_child(short_dir, model=path) as second:
        file = kept.moved(file, second.folder)
        await kept.restore(second.door, 0, file, within_s=SOON_S)
        prompt = await ids_of(second, PROMPT)
        went_on = await told(second, prompt + began["tokens"], slot=0)

    found = went_on["timings"]
    assert not is_carried(
        restored_tokens=file.n_tokens,
        cached_tokens=found["cache_n"],
        prompt_tokens=found["cache_n"] + found["prompt_n"],
    )


@pytest.mark.llama
async def test_a_file_is_for_our_eyes_only_from_its_first_byte(short_dir: Path) -> None:
    kept, before = shelf(), os.umask(0o022)
    try:
        async with real_child(short_dir) as child:
            await told(child, PROMPT, slot=0)

            file = await saved(child, 0, on=kept)
    finally:
        os.umask(before)

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.n_bytes == file.path.stat().st_size == kept.used_bytes


@pytest.mark.llama
async def test_a_file_takes_no_more_than_was_predicted(short_dir: Path) -> None:
    info, kept = info_of_file(quickstart_model()), shelf()
    shape = LaunchShape(n_ctx=1024, n_parallel=2, n_batch=512, n_ubatch=512)
    async with real_child(short_dir, n_parallel=2) as child:
        await told(child, PROMPT * 10, slot=1)

        file = await saved(child, 1, on=kept)

    predicted = slot_file_bytes(info, shape, n_tokens=file.n_tokens)
    assert 0.99 * predicted < file.n_bytes <= predicted


@pytest.mark.llama
async def test_an_empty_slot_is_not_saved_and_leaves_no_file(short_dir: Path) -> None:
    kept = shelf()
    async with real_child(short_dir) as child:
        with pytest.raises(SlotNotSaved, match="slot 0 was not saved: it is empty"):
            await saved(child, 0, on=kept)

        assert not list(child.folder.iterdir())
    assert kept.used_bytes == 0


@pytest.mark.llama
async def test_an_erased_slot_is_empty(short_dir: Path) -> None:
    kept = shelf()
    async with real_child(short_dir) as child:
        await told(child, PROMPT, slot=0)

        await erase(child.door, 0, within_s=SOON_S)

        with pytest.raises(SlotNotSaved):
            await saved(child, 0, on=kept)


@pytest.mark.llama
async def test_a_file_that_a_child_cannot_use_is_told_and_its_text_is_computed_anew(
    short_dir: Path,
) -> None:
    kept = shelf()
    async with real_child(short_dir) as first:
        before = await told(first, PROMPT, slot=0)
        file = await saved(first, 0, on=kept)
    data = bytearray(file.path.read_bytes())
    data[len(data) // 2 :] = b""
    file.path.write_bytes(data)
    async with real_child(short_dir) as second:
        file = kept.moved(file, second.folder)
        with pytest.raises(SlotNotRestored, match="slot 0 was not restored: "):
            await kept.restore(second.door, 0, file, within_s=SOON_S)

        after = await told(second, PROMPT, slot=0)

    assert after["content"] == before["content"]
    assert after["timings"]["cache_n"] == 0


async def test_what_exceeds_the_quota_is_not_asked_for(tmp_path: Path) -> None:
    kept = shelf(quota_bytes=1000)
    async with client_of("/nowhere/child.sock", timeout_s=1.0) as client:
        with pytest.raises(NoRoomForSlot, match="the quota has 1000 B to spare"):
            await kept.save(SlotDoor(client, tmp_path), 0, expected_bytes=1001, within_s=SOON_S)

    assert not list(tmp_path.iterdir())


async def test_what_would_fill_the_disk_is_not_asked_for(tmp_path: Path) -> None:
    kept = SlotShelf(quota_bytes=1 << 62, thread=THREAD, keep_free_bytes=1 << 61)
    async with client_of("/nowhere/child.sock", timeout_s=1.0) as client:
        with pytest.raises(NoRoomForSlot, match=str(tmp_path)):
            await kept.save(SlotDoor(client, tmp_path), 0, expected_bytes=1, within_s=SOON_S)

    assert kept.used_bytes == 0
    assert not list(tmp_path.iterdir())


@asynccontextmanager
async def answering(folder: Path, reply: bytes, *, writes: bytes = b"") -> AsyncIterator[SlotDoor]:
    """A child that answers any order with `reply`, having written `writes` to each slot file."""
    path = str(folder / "child.sock")
    slots = folder / "1.slots"
    slots.mkdir()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for file in slots.iterdir():
            file.write_bytes(writes)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply) + reply)
        writer.close()

    async with (
        await asyncio.start_unix_server(answer, path),
        client_of(path, timeout_s=5.0) as client,
    ):
        yield SlotDoor(client, slots)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        pytest.param(b'{"n_saved":5,"n_written":99}', "has 9 bytes of the 99", id="cut short"),
        pytest.param(b'{"n_saved":"5"}', "another shape", id="another shape"),
        pytest.param(b"[" * 70_000, "is over", id="an answer without end"),
    ],
)
async def test_a_save_that_went_wrong_leaves_nothing(
    short_dir: Path, reply: bytes, says: str
) -> None:
    kept = shelf()
    async with answering(short_dir, reply, writes=b"123456789") as door:
        with pytest.raises(SlotNotSaved, match=says):
            await kept.save(door, 0, expected_bytes=1, within_s=SOON_S)

        assert not list(door.folder.iterdir())
    assert kept.used_bytes == 0


async def test_a_file_that_grew_beyond_the_quota_is_removed(short_dir: Path) -> None:
    kept = shelf(quota_bytes=8)
    async with answering(short_dir, b'{"n_saved":5,"n_written":9}', writes=b"123456789") as door:
        with pytest.raises(NoRoomForSlot):
            await kept.save(door, 0, expected_bytes=1, within_s=SOON_S)

        assert not list(door.folder.iterdir())


async def test_a_child_that_does_not_answer_is_given_up(short_dir: Path) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    path, kept = str(short_dir / "child.sock"), shelf()
    async with (
        await asyncio.start_unix_server(say_nothing, path),
        client_of(path, timeout_s=5.0) as client,
    ):
        door = SlotDoor(client, short_dir)
        with pytest.raises(SlotNotSaved, match=r"no answer within 0\.1 s"):
            await kept.save(door, 0, expected_bytes=1, within_s=0.1)
        with pytest.raises(SlotError, match="was not erased"):
            await erase(door, 0, within_s=0.1)


async def test_tokens_that_a_child_did_not_take_over_are_told(short_dir: Path) -> None:
    kept = shelf()
    async with answering(short_dir, b'{"n_restored":3,"n_read":9}') as door:
        file = SavedSlot(door.folder / "slot-0-1.bin", n_tokens=5, n_bytes=9)
        with pytest.raises(SlotNotRestored, match="3 of 5 tokens were read"):
            await kept.restore(door, 0, file, within_s=SOON_S)


@pytest.mark.parametrize("name", ["../slot-0-1.bin", "other.bin", "slot-0-1.bin\n", ".."])
async def test_a_name_that_we_did_not_give_is_not_restored(tmp_path: Path, name: str) -> None:
    async with client_of("/nowhere/child.sock", timeout_s=1.0) as client:
        file = SavedSlot(tmp_path / name, n_tokens=5, n_bytes=9)
        with pytest.raises(SlotNotRestored, match="no file of that child's"):
            await shelf().restore(SlotDoor(client, tmp_path), 0, file, within_s=SOON_S)


async def test_a_file_that_is_no_slot_file_is_not_bridged_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "slot-0-1.bin"
    path.write_bytes(b"GGUF and more")

    with pytest.raises(SlotFileError):
        await shelf().bridge(SavedSlot(path, 5, 13), PLAIN, n_stream=2, folder=tmp_path)

    assert list(tmp_path.iterdir()) == [path]


async def test_a_link_in_a_files_place_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "slot-0-1.bin"
    (tmp_path / "secret").write_bytes(b"x")
    path.symlink_to(tmp_path / "secret")

    with pytest.raises(OSError, match="symbolic links"):
        await shelf().bridge(SavedSlot(path, 5, 13), PLAIN, n_stream=2, folder=tmp_path)


def test_a_removed_file_gives_its_room_back_and_may_be_gone_already(tmp_path: Path) -> None:
    file = SavedSlot(tmp_path / "slot-0-1.bin", 5, 9)

    shelf().remove(file)

    assert not file.path.exists()


def test_what_a_dead_daemon_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left, other = tmp_path / "tiny-1.slots", tmp_path / "notes"
    linked = tmp_path / "linked.slots"
    for folder in (left, other):
        folder.mkdir()
        (folder / "slot-0-1.bin").write_bytes(b"123")
    linked.symlink_to(other)

    assert remove_left_files(tmp_path) == 3

    assert not left.exists()
    assert (other / "slot-0-1.bin").exists()


@pytest.mark.llama
async def test_more_conversations_than_slots_are_found_again_though_all_name_the_same_slot(
    short_dir: Path,
) -> None:
    """Requests name the lowest free slot: who talks in turn shares one, and its saved prompts."""
    prompts = [f"{n}. {PROMPT}" for n in range(6)]
    async with real_child(short_dir, n_parallel=4, flags=("-cram", "64")) as child:
        first = [await told(child, prompt, slot=0) for prompt in prompts]
        again = [await told(child, prompt, slot=0) for prompt in prompts]

    assert [each["timings"]["cache_n"] for each in first] == [0] * 6
    assert [each["timings"]["prompt_n"] for each in again] == [1] * 6
