"""The journal's file: its tables and their bounds. All of it runs in the journal's thread.

A file that is corrupt or of a schema that cannot be carried on is set aside, one that was deleted
is begun anew, and a disk that takes nothing costs rows; each is said, in the log and in the next
file that can be written.
"""

import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from supervisor.errors import SupervisorError
from supervisor.printable import printable

if TYPE_CHECKING:
    from sqlite_utils import Database

VERSION = 2  # user_version of the file; 1 never was written, 0 had events alone
MAX_BYTES = 64 << 20  # of pages in use; the oldest events make way
WAL_BYTES = 4 << 20
PRUNE_EVERY = 1_000  # rows written between two looks at the bounds
MOST_ASIDE = 2  # files set aside that are kept
BUSY_S = 5.0  # a wait for whoever else has the file open, such as a backup
EVENTS, LAUNCHES, RATES, CONTEXTS = "events", "launches", "rates", "contexts"
PER_KEY = 32  # rates kept of one launch key: a median needs no more
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)  # the latter of a limit on files

Cell = str | int | float | bool | None
Row = Mapping[str, Cell]
log = structlog.get_logger(__name__)


class Table(Struct, frozen=True):
    """A table's shape and bound."""

    columns: Mapping[str, type]
    pk: str
    most_rows: int
    index: tuple[str, ...]


_KEY = {"engine_id": str, "model_digest": str, "devices": str, "flags": str}
TABLES: Mapping[str, Table] = {
    EVENTS: Table(
        {
            "id": int, "at": float, "kind": str, "model_id": str,
            "instance_id": str, "reason": str, "facts": str,
        },
        pk="id",
        most_rows=100_000,  # at a thousand events a day that is three months
        index=("model_id", "at"),
    ),
    LAUNCHES: Table(
        {
            "launch": str, "at": float, "model_id": str, **_KEY, "context": int, "rung": str,
            "outcome": str, "cause": str, "load_s": float,
            "predicted": str, "measured": str,
        },
        pk="launch",
        most_rows=5_000,
        index=("model_digest", "at"),
    ),
    RATES: Table(
        {
            "id": int, "at": float, "model_id": str, **_KEY, "decode_tokens_per_s": float,
            "prompt_tokens_per_s": float, "owner": str, "bytes_per_s": float, "flops": float,
        },
        pk="id",
        most_rows=20_000,
        index=("model_digest", "at"),
    ),
    CONTEXTS: Table(
        {"model_id": str, "at": float, "context": int},
        pk="model_id",
        most_rows=10_000,
        index=("at",),
    ),
}  # fmt: skip


class JournalFile:
    """The tables on disk, opened when they are first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: Database | None = None
        self._inode = -1
        self._written = 0
        self._lost = 0
        self._owed: list[tuple[str, Row]] = []
        """Events about the file itself, for the next one that can be written."""

    def insert(self, batch: Sequence[tuple[str, Row]]) -> None:
        """Write rows by table; those that the disk does not take are lost."""
        try:
            try:
                self._insert(batch)
            except sqlite3.DatabaseError as exc:
                if not _is_corrupt(exc):
                    raise
                self._set_aside(str(exc))
                self._insert(batch)
        except (sqlite3.Error, OSError) as exc:
            if not self._lost:
                log.warning("journal.lost", rows=len(batch), error=str(exc))
            self._lost += len(batch)
            if not _is_full(exc):
                self.close()

    def select(self, table: str, *, where: str, told: Row, limit: int) -> list[dict[str, Cell]]:
        """The newest `limit` rows where the condition holds, oldest first.

        Raises JournalUnreadable.
        """
        try:
            rows = list(
                self._opened()
                .table(table)
                .rows_where(where, dict(told), order_by="rowid desc", limit=limit)
            )
        except (sqlite3.Error, OSError) as exc:
            self._note_unreadable(exc)
            raise JournalUnreadable(path=self._path, why=str(exc)) from exc
        return rows[::-1]

    def delete(self, table: str, equal: Mapping[str, str]) -> None:
        """Drop the rows whose columns have these values; all of them without any."""
        where = " and ".join(f"[{name}] = :{name}" for name in equal) or "1"
        try:
            db = self._opened()
            with db.conn:
                db.execute(f"delete from [{table}] where {where}", dict(equal))
        except (sqlite3.Error, OSError) as exc:
            self._note_unreadable(exc)

    def close(self) -> None:
        """Let go of the file; the next use opens it again."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _insert(self, batch: Sequence[tuple[str, Row]]) -> None:
        db = self._opened()
        by_table: dict[str, list[dict[str, Cell]]] = {}
        for table, row in (*self._owed, *batch):
            by_table.setdefault(table, []).append(dict(row))
        for table, rows in by_table.items():
            if (pk := TABLES[table].pk) != "id":
                newest = {row[pk]: row for row in rows}
                db.table(table).upsert_all(list(newest.values()), pk=pk)
            else:
                db.table(table).insert_all(rows)
        self._owed.clear()
        if self._lost:
            lost, self._lost = self._lost, 0
            self._record("journal.recovered", f"{lost} rows were lost before the disk took more")
        self._written += len(batch)
        if self._written >= PRUNE_EVERY:
            self._written = 0
            prune(db)

    def _note_unreadable(self, exc: Exception) -> None:
        log.warning("journal.unreadable", error=str(exc))
        self.close()

    def _record(self, kind: str, reason: str) -> None:
        """Tell of the file itself, to the log and, once it can be written, to the file."""
        log.warning(kind, path=str(self._path), reason=reason)
        event: Row = {"at": time.time(), "kind": kind, "reason": reason, "facts": "{}"}
        self._owed.append((EVENTS, {"model_id": None, "instance_id": None, **event}))

    def _opened(self) -> "Database":
        if self._db is not None and _inode(self._path) != self._inode:
            self.close()
            self._record("journal.vanished", "the file was deleted or replaced; a new one is begun")
        if self._db is None:
            self._db = self._prepared()
            self._inode = _inode(self._path)
        return self._db

    def _prepared(self) -> "Database":
        try:
            return _opened_with_tables(self._path)
        except sqlite3.DatabaseError as exc:
            if not _is_corrupt(exc):  # locked, full, no permission: not the file's fault
                raise
            self._set_aside(str(exc))
            return _opened_with_tables(self._path)

    def _set_aside(self, why: str) -> None:
        """Move the file and what SQLite keeps beside it out of the way. Raises OSError."""
        self.close()
        aside = self._path.with_suffix(f".corrupt-{int(time.time())}")
        self._path.replace(aside)
        for suffix in ("-wal", "-shm"):
            beside = Path(f"{self._path}{suffix}")
            if beside.exists():
                beside.replace(f"{aside}{suffix}")
        self._record("journal.set_aside", f"{why}; kept as {aside.name}")
        _forget_oldest_aside(self._path)


class JournalUnreadable(SupervisorError):
    """What was recorded cannot be told just now."""

    def __init__(self, *, path: Path, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"the journal, {printable(str(path))}, cannot be read just now: {why}")


class WrongSchema(sqlite3.DatabaseError):
    """A file whose tables are not those of this version, nor of one that can be carried on."""


def prune(db: "Database") -> None:
    """Hold every table within its rows, a key within its samples, and the file within MAX_BYTES."""
    with db.conn:
        for name, table in TABLES.items():
            newest = f"select max(rowid) from [{name}]"
            db.execute(f"delete from [{name}] where rowid <= ({newest}) - ?", [table.most_rows])
        db.execute(
            f"delete from {RATES} where rowid in (select rowid from (select rowid, row_number() "
            f"over (partition by {', '.join(_KEY)} order by rowid desc) as n from {RATES}) "
            "where n > ?)",
            [PER_KEY],
        )
    quarter = f"select count(*) / 4 + 1 from {EVENTS}"
    oldest = f"select rowid from {EVENTS} order by rowid limit ({quarter})"
    while _used_bytes(db) > MAX_BYTES:
        with db.conn:
            if not db.execute(f"delete from {EVENTS} where rowid in ({oldest})").rowcount:
                return


def _used_bytes(db: "Database") -> int:
    def pragma(name: str) -> int:
        return int(db.execute(f"pragma {name}").fetchone()[0])

    return (pragma("page_count") - pragma("freelist_count")) * pragma("page_size")


def _is_corrupt(exc: sqlite3.DatabaseError) -> bool:
    # The subclasses tell of the disk, a lock or a statement; SQLITE_CORRUPT and _NOTADB have none.
    return type(exc) in (sqlite3.DatabaseError, WrongSchema)


def _is_full(exc: Exception) -> bool:
    """Whether the disk takes no more: what is open can still be read, and not opened anew."""
    return getattr(exc, "sqlite_errorcode", None) in _FULL


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1


def _opened_with_tables(path: Path) -> "Database":
    # Late, for the daemon's first answer needs none of it, and by the journal's own thread.
    from sqlite_utils import Database

    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite's files beside it get its mode
    with ExitStack() as undone:
        db = Database(sqlite3.connect(path, timeout=BUSY_S), execute_plugins=False)
        undone.callback(db.close)
        # A text that was damaged on disk costs no other row.
        db.conn.text_factory = lambda raw: raw.decode(errors="replace")
        db.enable_wal()
        db.execute(f"pragma journal_size_limit = {WAL_BYTES}")
        _migrate(db)
        prune(db)
        undone.pop_all()
        return db


def _migrate(db: "Database") -> None:
    """Bring the tables to this version. Raises WrongSchema where they are of another kind."""
    version = int(db.execute("pragma user_version").fetchone()[0])
    if version > VERSION:
        raise WrongSchema(f"it is of schema {version}, and this inferenceosd knows {VERSION}")
    _refuse_strange_objects(db)
    for name, table in TABLES.items():
        there = db.table(name)
        if there.exists() and (strange := _strangeness(db, name, table)):
            raise WrongSchema(f"its table {name} {strange}")
        there.create(dict(table.columns), pk=table.pk, if_not_exists=True)
        there.create_index(list(table.index), if_not_exists=True)
    db.execute(f"pragma user_version = {VERSION}")


def _refuse_strange_objects(db: "Database") -> None:
    """Raise WrongSchema where a name of ours is no table's, or a trigger would act on our rows."""
    for kind, name in db.execute("select type, name from sqlite_master").fetchall():
        if kind == "trigger" or (name in TABLES and kind != "table"):
            raise WrongSchema(f"its {kind} {name} is not ours")


def _strangeness(db: "Database", name: str, table: Table) -> str | None:
    """What keeps our rows from being written to a table that is there, or read back by age."""
    there = db.table(name)
    for column in table.columns:
        if column not in there.columns_dict:
            return f"has no column {column}"
    if there.pks != [table.pk]:
        return f"has another key than {table.pk}"
    for found in there.columns:
        if found.notnull and found.name not in table.columns:
            return f"wants a column {found.name}"
    try:
        db.execute(f"select rowid from [{name}] limit 0")
    except sqlite3.OperationalError:
        return "has no rowid"
    return None


def _forget_oldest_aside(path: Path) -> None:
    found = path.parent.glob(f"{path.stem}.corrupt-*")
    files = sorted(each for each in found if not each.name.endswith(("-wal", "-shm")))
    for old in files[:-MOST_ASIDE]:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{old}{suffix}").unlink(missing_ok=True)
