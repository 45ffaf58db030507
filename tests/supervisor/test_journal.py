import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from structlog.testing import capture_logs

from planners.model import ModelId
from planners.plan import InstanceId
from supervisor.journal import MAX_PENDING, Journal, open_journal

M = ModelId("m")


async def kinds(
    journal: Journal, model_id: ModelId | None = None, *, limit: int = 100
) -> list[str]:
    return [e.kind for e in await journal.events(model_id=model_id, since=0.0, limit=limit)]


async def test_an_event_is_read_back_whole(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        journal.record(
            "instance.loaded", model_id=M, instance_id=InstanceId("i1"), reason="why", load_s=0.5
        )
        (event,) = await journal.events(model_id=None, since=0.0, limit=10)

    assert (event.kind, event.model_id, event.instance_id) == ("instance.loaded", M, "i1")
    assert (event.reason, event.facts) == ("why", {"load_s": 0.5})


async def test_leaving_the_block_writes_what_is_pending(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        journal.record("daemon.stopped")

    async with open_journal(tmp_path / "journal.db") as again:
        assert await kinds(again) == ["daemon.stopped"]


async def test_the_newest_events_come_oldest_first(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        for n in range(5):
            journal.record(f"event.{n}")

        assert await kinds(journal, limit=2) == ["event.3", "event.4"]


async def test_events_of_one_model_can_be_asked_for(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        journal.record("a", model_id=M)
        journal.record("b", model_id=ModelId("other"))

        assert await kinds(journal, M) == ["a"]


async def test_the_writer_carries_events_to_disk_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal, asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(journal.write_forever())
        journal.record("a")
        async with asyncio.timeout(5):
            while not _rows(path):
                await asyncio.sleep(0.02)
        writer.cancel()


async def test_a_corrupt_file_is_set_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"this is no database, " * 1000)

    async with open_journal(path) as journal:
        journal.record("a")
        assert await kinds(journal) == ["a"]

    assert [p.read_bytes()[:7] for p in tmp_path.glob("*.corrupt-*")] == [b"this is"]


async def test_a_writer_that_is_cancelled_while_the_thread_is_busy_loses_nothing(
    tmp_path: Path,
) -> None:
    path, let_go = tmp_path / "journal.db", threading.Event()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(let_go.wait, 30)
        journal = Journal(path, thread=thread)
        writer = asyncio.create_task(journal.write_forever())
        journal.record("daemon.stopped")
        await asyncio.sleep(0)  # the writer's turn: it hands the event to the thread

        writer.cancel()
        await asyncio.wait([writer])
        journal.finish()
        let_go.set()

    assert _rows(path) == 1


async def test_a_folder_that_cannot_be_written_costs_events_not_the_daemon(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "missing" / "journal.db") as journal:
        journal.record("a")
        assert await kinds(journal) == []

        (tmp_path / "missing").mkdir()
        journal.record("b")
        assert await kinds(journal) == ["b"]


def _rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        try:
            count: int = db.execute("select count(*) from events").fetchone()[0]
        except sqlite3.OperationalError:
            return 0
    return count


async def test_what_is_no_utf8_is_kept_in_escapes(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        journal.record("a", reason="/models/Mod\udce8les", path="/\udce8")
        (event,) = await journal.events(model_id=None, since=0.0, limit=1)

    assert (event.reason, event.facts) == ("/models/Mod\\udce8les", {"path": "/\\udce8"})


async def test_a_flood_drops_the_oldest_events_and_says_how_many(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        with capture_logs() as logs:
            for n in range(MAX_PENDING + 5):
                journal.record("event", n=n)
            events = await journal.events(model_id=None, since=0.0, limit=MAX_PENDING + 5)

    assert [event.facts for event in events[:1]] == [{"n": 5}]
    assert logs == [{"event": "journal.overrun", "log_level": "warning", "events": 5}]
