import asyncio
import resource
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from math import inf
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from planners.model import ModelId
from planners.plan import InstanceId
from supervisor.records.follower import MAX_UNREAD
from supervisor.records.journal import END_OF_TIME, MAX_PENDING, Event, Journal, open_journal
from supervisor.records.journal_file import LAUNCHES, JournalUnreadable

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
        assert await kinds(journal) == ["journal.set_aside", "a"]

    assert [p.read_bytes()[:7] for p in tmp_path.glob("*.corrupt-*")] == [b"this is"]


@pytest.mark.parametrize(
    ("cell", "kept_as"),
    [*((cell, "") for cell in ("{", "[]", None, b"\xff", 1e308, -1, inf)), (b"\xff", "text")],
    ids=repr,
)
@pytest.mark.parametrize("column", ["at", "kind", "facts", "reason"])
async def test_a_damaged_row_costs_no_other_one(
    tmp_path: Path, column: str, cell: object, kept_as: str
) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal:
        for kind in ("a", "damaged", "c"):
            journal.record(kind, model_id=M)
    with closing(sqlite3.connect(path)) as db, db:
        value = f"cast(? as {kept_as})" if kept_as else "?"
        db.execute(f"update events set [{column}] = {value} where kind = 'damaged'", [cell])

    async with open_journal(path) as journal:
        told = await journal.events(model_id=None, since=-inf, limit=10)

    assert [event.kind for event in told if event.kind in ("a", "c")] == ["a", "c"]
    assert all(0 <= event.at < END_OF_TIME for event in told)


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
        with pytest.raises(JournalUnreadable):
            await kinds(journal)

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
    assert logs == [{"event": "journal.overrun", "log_level": "warning", "rows": 5}]


@contextmanager
def full_disk(n_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond `n_bytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_costs_events_and_says_how_many_once_there_is_room(
    tmp_path: Path,
) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        journal.record("before")
        assert await kinds(journal) == ["before"]
        with capture_logs() as logs, full_disk(20_000):
            for n in range(50):
                journal.record("lost", reason="x" * 1000, n=n)
            assert await kinds(journal) == ["before"]

        journal.record("after")
        await kinds(journal)
        journal.record("later")

        assert await kinds(journal) == ["before", "after", "journal.recovered", "later"]
    assert [line["event"] for line in logs][:1] == ["journal.lost"]


async def test_a_file_that_goes_bad_while_it_is_open_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal:
        for n in range(200):
            journal.record("before", reason="x" * 500, n=n)
        await kinds(journal)
        with closing(sqlite3.connect(path)) as db:
            db.execute("pragma wal_checkpoint(truncate)")
        n_bytes = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (n_bytes - 4096))

        journal.record("after")

        assert await kinds(journal) == ["journal.set_aside", "after"]
    assert len(list(tmp_path.glob("*.corrupt-*"))) >= 1


async def test_a_file_that_is_deleted_while_it_is_open_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with open_journal(path) as journal:
        journal.record("before")
        await kinds(journal)
        path.unlink()

        journal.record("after")

        assert await kinds(journal) == ["journal.vanished", "after"]
    assert _rows(path) == 2


async def test_events_of_the_first_schema_are_carried_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "create table events (id integer primary key, at float, kind text, model_id text,"
            " instance_id text, reason text, facts text)"
        )
        db.execute("insert into events values (1, 1.0, 'old', null, null, '', '{}')")
        db.commit()

    async with open_journal(path) as journal:
        journal.record("new")

        assert await kinds(journal) == ["old", "new"]


OF_CONTEXTS = "create table contexts (model_id text primary key, at float, context integer)"
A_TRIGGER = "create trigger t before insert on contexts begin select raise(abort, 'no'); end"


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("pragma user_version = 99", id="of a later inferenceosd"),
        pytest.param("create table events (id integer primary key, what text)", id="of a stranger"),
        pytest.param("create view events as select 1 as id", id="a view of our name"),
        pytest.param("create table x (a); create index rates on x (a)", id="an index of our name"),
        pytest.param(f"{OF_CONTEXTS}; {A_TRIGGER}", id="a trigger that refuses rows"),
        pytest.param(f"{OF_CONTEXTS} without rowid", id="a table without rowid"),
        pytest.param(OF_CONTEXTS.replace(" primary key", ""), id="a table without its key"),
        pytest.param(
            OF_CONTEXTS.replace("at float", "at float, more text not null"),
            id="a table that wants more",
        ),
    ],
)
async def test_a_file_of_another_schema_is_set_aside(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(statement)

    async with open_journal(path) as journal:
        journal.record("a")

        assert await kinds(journal) == ["journal.set_aside", "a"]


async def test_what_is_no_file_at_all_costs_events_not_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.mkdir()
    async with open_journal(path) as journal:
        journal.record("a")

        with pytest.raises(JournalUnreadable, match="cannot be read just now"):
            await kinds(journal)
        assert await journal.rows(LAUNCHES, limit=1) == ()


async def test_one_event_is_bounded_in_bytes(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        journal.record("a", reason="r" * 1_000_000, fact="f" * 1_000_000)
        (event,) = await journal.events(model_id=None, since=0.0, limit=1)

    assert len(event.reason) < 2_100
    assert len(str(event.facts["fact"])) < 1_100


async def read_all(journal: Journal) -> tuple[int, list[Event]]:
    """What a follower of M hears while "m.0", … are recorded; how many he was told he missed."""
    skipped, heard = 0, list[Event]()
    with journal.following(M) as follower:
        heard += await journal.events(model_id=M, since=0.0, limit=100)
        for n in range(3):
            journal.record(f"m.{n}", model_id=M)
            journal.record("other", model_id=ModelId("other"))
        journal.end_following()
        while (news := await follower.unread(within_s=5)) is not None:
            skipped += news[0]
            heard += news[1]
    return skipped, heard


async def test_a_follower_hears_each_event_of_his_model_once_and_then_the_end(
    tmp_path: Path,
) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        journal.record("m.before", model_id=M)

        skipped, heard = await read_all(journal)

    assert [e.kind for e in heard] == ["m.before", "m.0", "m.1", "m.2"]
    assert skipped == 0


async def test_a_slow_follower_is_told_how_many_he_missed(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        with journal.following(None) as follower:
            for n in range(MAX_UNREAD + 7):
                journal.record("event", n=n)
            news = await follower.unread(within_s=5)

    assert news is not None
    assert (news[0], news[1][0].facts, len(news[1])) == (7, {"n": 7}, MAX_UNREAD)


async def test_a_follower_to_whom_nothing_happens_gets_nothing_in_time(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        with journal.following(None) as follower:
            assert await follower.unread(within_s=0.01) == (0, ())
