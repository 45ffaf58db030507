"""What happened and why, in SQLite: written and read by one thread, and followed live.

The daemon goes on whatever the disk does: a corrupt, vanished or foreign file makes way for a new
one, a full disk costs rows, and each is said.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import structlog

from planners.model import ModelId
from planners.plan import InstanceId
from supervisor.printable import printable
from supervisor.records.event_counts import EventCounts
from supervisor.records.follower import Follower
from supervisor.records.journal_file import EVENTS, Cell, JournalFile, JournalUnreadable, Row

FLUSH_S = 0.1  # cadence of the writer: one transaction a batch, an insert alone costs 0.36 ms
MAX_PENDING = 10_000  # rows held while the disk is slow; beyond it the oldest are dropped
MAX_REASON = 2_000  # characters; a plan's reasons are some 600
MAX_FACT = 1_000
END_OF_TIME = 253402300800.0  # UTC seconds of the year 10000: no calendar goes on

Fact = Cell
T = TypeVar("T")
log = structlog.get_logger(__name__)


class Event(msgspec.Struct, frozen=True):
    """One thing that happened."""

    at: float
    """UTC seconds."""
    kind: str
    """Dotted, past tense: "instance.ready"."""
    model_id: ModelId | None
    instance_id: InstanceId | None
    reason: str
    """Why, as a sentence with its numbers; "" where the kind says it all."""
    facts: Mapping[str, Fact] = msgspec.field(default_factory=dict)


class Journal:
    """The tables of what happened. What writes never waits and never fails."""

    def __init__(self, path: Path, *, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._file = JournalFile(path)
        self._pending: deque[tuple[str, Row]] = deque(maxlen=MAX_PENDING)
        self._wake = asyncio.Event()
        self._dropped = 0
        self.counts = EventCounts()
        self._followers: dict[Follower[Event], ModelId | None] = {}

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
        told = {k: _clipped(v, MAX_FACT) if isinstance(v, str) else v for k, v in facts.items()}
        event = Event(time.time(), kind, model_id, instance_id, _clipped(reason, MAX_REASON), told)
        self.write(EVENTS, _row(event))
        self.counts.take(kind, model_id, facts)
        for follower, wanted in self._followers.items():
            if wanted in (None, model_id):
                follower.tell(event)

    def write(self, table: str, row: Row) -> None:
        """Note a row of one of the tables of supervisor.records.journal_file."""
        self._dropped += len(self._pending) == MAX_PENDING
        self._pending.append((table, row))
        self._wake.set()

    async def events(
        self, *, model_id: ModelId | None, since: float, limit: int
    ) -> tuple[Event, ...]:
        """The newest `limit` events after `since` (UTC seconds), oldest first.

        Raises JournalUnreadable.
        """
        where = "at > :since" + (" and model_id = :model_id" if model_id is not None else "")
        told = {"since": since, "model_id": model_id}
        rows = await self._after_pending(
            lambda: self._file.select(EVENTS, where=where, told=told, limit=limit)
        )
        return tuple(event for row in rows if (event := _event(row)) is not None)

    @contextmanager
    def following(self, model_id: ModelId | None) -> Iterator[Follower[Event]]:
        """A follower of all that is recorded from now on.

        `events` called at once in the block, without an await before it, gives all that came
        before, and nothing that the follower will be told.
        """
        follower = Follower[Event]()
        self._followers[follower] = model_id
        try:
            yield follower
        finally:
            del self._followers[follower]

    def end_following(self) -> None:
        """Followers read what they have not read yet, and are told that it was the last."""
        for follower in self._followers:
            follower.end()

    async def rows(self, table: str, *, limit: int) -> tuple[Row, ...]:
        """The newest `limit` rows of a table, oldest first; none of a file that is unreadable."""
        try:
            return await self._after_pending(
                lambda: tuple(self._file.select(table, where="1", told={}, limit=limit))
            )
        except JournalUnreadable:  # told in the log
            return ()

    async def delete(self, table: str, **equal: str) -> None:
        """Drop the rows of a table whose columns have these values; all of them without any."""
        await self._after_pending(lambda: self._file.delete(table, equal))

    async def write_forever(self) -> None:
        """Carry rows to disk until cancelled; open_journal flushes once more at its end."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._after_pending(lambda: None)
            await asyncio.sleep(FLUSH_S)

    async def _after_pending(self, work: Callable[[], T]) -> T:
        """Do `work` in the thread, after all that was written before this call and nothing else."""
        batch = self._taken()

        def work_after_batch() -> T:
            if batch:
                self._file.insert(batch)
            return work()

        # Shielded: cancelled before it ran, the work would be dropped, and the batch in it.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, work_after_batch))

    def _taken(self) -> list[tuple[str, Row]]:
        """What is pending; says how much was dropped before it."""
        batch = list(self._pending)
        self._pending.clear()
        if self._dropped:
            log.warning("journal.overrun", rows=self._dropped)
            self._dropped = 0
        return batch

    def finish(self) -> None:
        """Have the thread write what is pending and close; its own end waits for both."""
        if batch := self._taken():
            self._thread.submit(self._file.insert, batch)
        self._thread.submit(self._file.close)


@asynccontextmanager
async def open_journal(path: Path) -> AsyncIterator[Journal]:
    """A journal with its thread; leaving the block writes what is left. Run write_forever in it."""
    with ThreadPoolExecutor(1, thread_name_prefix="journal") as thread:
        journal = Journal(path, thread=thread)
        try:
            yield journal
        finally:
            journal.finish()


def _clipped(text: str, most: int) -> str:
    told = printable(text)
    return told if len(told) <= most else f"{told[:most]}… ({len(told) - most} characters more)"


def _row(event: Event) -> Row:
    return {
        "at": event.at,
        "kind": event.kind,
        "model_id": event.model_id,
        "instance_id": event.instance_id,
        "reason": event.reason,
        "facts": json.dumps(dict(event.facts)),
    }


class _EventRow(msgspec.Struct):
    at: Annotated[float, msgspec.Meta(ge=0.0, lt=END_OF_TIME)]
    kind: str
    reason: str
    facts: str
    model_id: str | None = None
    instance_id: str | None = None


def _event(row: Row) -> Event | None:
    """What a row tells; None of one that was damaged on disk, which costs no other one."""
    try:
        told = msgspec.convert(row, _EventRow)
        facts = msgspec.json.decode(told.facts, type=dict[str, Fact])
    except msgspec.MsgspecError:
        return None
    return Event(
        at=told.at,
        kind=told.kind,
        model_id=None if told.model_id is None else ModelId(told.model_id),
        instance_id=None if told.instance_id is None else InstanceId(told.instance_id),
        reason=told.reason,
        facts=facts,
    )
