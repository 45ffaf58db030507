"""What happened and why: events in SQLite, written by one thread, read through the same.

The daemon goes on whatever the disk does: a corrupt file is set aside, a full disk costs events,
and both are said.
"""

import asyncio
import json
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog
from sqlite_utils import Database

from planners.model import ModelId
from planners.plan import InstanceId
from supervisor.printable import printable

FLUSH_S = 0.1  # cadence of the writer: one transaction a batch, an insert alone costs 0.36 ms
MAX_PENDING = 10_000  # events held while the disk is slow; beyond it the oldest are dropped
MAX_EVENTS = 100_000  # rows kept; at a thousand events a day that is three months
PRUNE_EVERY = 1_000  # writes between two looks at the row count
BUSY_S = 5.0  # a wait for whoever else has the file open, such as a backup

Fact = str | int | float | bool | None
T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    at: float
    """UTC seconds."""
    kind: str
    """Dotted, past tense: "instance.ready"."""
    model_id: ModelId | None
    instance_id: InstanceId | None
    reason: str
    """Why, as a sentence with its numbers; "" where the kind says it all."""
    facts: Mapping[str, Fact] = field(default_factory=dict)


class Journal:
    """The event table. `record` never waits and never fails."""

    def __init__(self, path: Path, *, thread: ThreadPoolExecutor) -> None:
        self._path = path
        self._thread = thread
        self._pending: deque[Event] = deque(maxlen=MAX_PENDING)
        self._wake = asyncio.Event()
        self._dropped = 0
        self._db: Database | None = None
        self._written = 0
        self._failing = False

    def record(
        self,
        kind: str,
        *,
        model_id: ModelId | None = None,
        instance_id: InstanceId | None = None,
        reason: str = "",
        **facts: Fact,
    ) -> None:
        """Note an event; it is on disk within about FLUSH_S."""
        self._dropped += len(self._pending) == MAX_PENDING
        told = {k: printable(v) if isinstance(v, str) else v for k, v in facts.items()}
        event = Event(time.time(), kind, model_id, instance_id, printable(reason), told)
        self._pending.append(event)
        self._wake.set()

    async def events(
        self, *, model_id: ModelId | None, since: float, limit: int
    ) -> tuple[Event, ...]:
        """The newest `limit` events after `since` (UTC seconds), oldest first."""
        await self._flush()
        return await self._call(lambda: self._select(model_id, since, limit))

    async def write_forever(self) -> None:
        """Carry events to disk until cancelled; open_journal flushes once more at its end."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush()
            await asyncio.sleep(FLUSH_S)

    async def _flush(self) -> None:
        if batch := self._taken():
            await self._call(lambda: self._insert(batch))

    async def _call(self, work: Callable[[], T]) -> T:
        # Shielded: cancelled before its turn, the work would be dropped, and the batch in it.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, work))

    def _taken(self) -> list[Event]:
        """What is pending; says how much was dropped before it."""
        batch = list(self._pending)
        self._pending.clear()
        if self._dropped:
            log.warning("journal.overrun", events=self._dropped)
            self._dropped = 0
        return batch

    def finish(self) -> None:
        """Have the thread write what is pending and close; its own end waits for both."""
        if batch := self._taken():
            self._thread.submit(self._insert, batch)
        self._thread.submit(self._close)

    # What follows runs in the writer's thread alone.

    def _open(self) -> Database:
        if self._db is None:
            self._db = _open_or_set_aside(self._path)
        return self._db

    def _insert(self, batch: list[Event]) -> None:
        try:
            self._open().table("events").insert_all(map(_row, batch), alter=True)
            self._prune(len(batch))
        except sqlite3.Error as exc:
            if not self._failing:
                log.warning("journal.lost", events=len(batch), error=str(exc))
            self._failing = True
            self._close()
        else:
            self._failing = False

    def _prune(self, written: int) -> None:
        self._written += written
        if self._written < PRUNE_EVERY:
            return
        self._written = 0
        self._open().execute(
            "delete from events where id <= (select max(id) from events) - ?", [MAX_EVENTS]
        )
        self._open().conn.commit()

    def _select(self, model_id: ModelId | None, since: float, limit: int) -> tuple[Event, ...]:
        where = "at > :since" + (" and model_id = :model_id" if model_id is not None else "")
        wanted = {"since": since, "model_id": model_id}
        try:
            rows = list(
                self._open()
                .table("events")
                .rows_where(where, wanted, order_by="id desc", limit=limit)
            )
        except sqlite3.Error as exc:
            log.warning("journal.unreadable", error=str(exc))
            self._close()
            return ()
        return tuple(map(_event, reversed(rows)))

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


@asynccontextmanager
async def open_journal(path: Path) -> AsyncIterator[Journal]:
    """A journal with its thread; leaving the block writes what is left. Run write_forever in it."""
    with ThreadPoolExecutor(1, thread_name_prefix="journal") as thread:
        journal = Journal(path, thread=thread)
        try:
            yield journal
        finally:
            journal.finish()


def _open_or_set_aside(path: Path) -> Database:
    try:
        return _prepared(path)
    except sqlite3.DatabaseError as exc:
        if isinstance(exc, sqlite3.OperationalError):  # locked, full, no permission: not its fault
            raise
        aside = path.with_suffix(f".corrupt-{int(time.time())}")
        path.replace(aside)
        log.warning("journal.set_aside", path=str(path), kept_as=str(aside), error=str(exc))
        return _prepared(path)


def _prepared(path: Path) -> Database:
    with ExitStack() as undone:
        db = Database(sqlite3.connect(path, timeout=BUSY_S))
        undone.callback(db.close)
        db.enable_wal()
        columns = {
            "id": int, "at": float, "kind": str, "model_id": str,
            "instance_id": str, "reason": str, "facts": str,
        }  # fmt: skip
        events = db.table("events")
        events.create(columns, pk="id", if_not_exists=True)
        events.create_index(["model_id", "at"], if_not_exists=True)
        undone.pop_all()
        return db


def _row(event: Event) -> dict[str, Fact]:
    return {
        "at": event.at,
        "kind": event.kind,
        "model_id": event.model_id,
        "instance_id": event.instance_id,
        "reason": event.reason,
        "facts": json.dumps(dict(event.facts)),
    }


def _event(row: Mapping[str, str | float | None]) -> Event:
    return Event(
        at=float(row["at"] or 0.0),
        kind=str(row["kind"]),
        model_id=ModelId(str(row["model_id"])) if row["model_id"] is not None else None,
        instance_id=InstanceId(str(row["instance_id"])) if row["instance_id"] is not None else None,
        reason=str(row["reason"]),
        facts=json.loads(str(row["facts"])),
    )
