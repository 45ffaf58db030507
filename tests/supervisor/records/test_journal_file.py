import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlite_utils import Database

from supervisor.records import journal_file
from supervisor.records.journal_file import (
    EVENTS,
    LAUNCHES,
    MAX_BYTES,
    PER_KEY,
    RATES,
    JournalFile,
    Row,
)

EVENT: Row = {
    "at": 1.0, "kind": "k", "model_id": None, "instance_id": None, "reason": "", "facts": "{}",
}  # fmt: skip
RATE: Row = {
    "at": 1.0, "model_id": "m", "engine_id": "e", "model_digest": "d", "devices": "host",
    "flags": "f", "decode_tokens_per_s": 9.0, "prompt_tokens_per_s": None, "owner": "host",
    "bytes_per_s": 1e9, "flops": None,
}  # fmt: skip
LAUNCH: Row = {
    "launch": "1", "at": 1.0, "model_id": "m", "engine_id": "e", "model_digest": "d",
    "devices": "host", "flags": "f", "context": 4096, "rung": None, "outcome": "loading",
    "cause": None, "load_s": None, "predicted": "[]", "measured": "[]",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> JournalFile:
    return JournalFile(tmp_path / "journal.db")


def count(file: JournalFile, table: str) -> int:
    return len(file.select(table, where="1", told={}, limit=1_000_000))


def test_a_launch_is_one_row_whatever_becomes_of_it(file: JournalFile) -> None:
    file.insert([(LAUNCHES, LAUNCH)])
    file.insert([(LAUNCHES, {**LAUNCH, "outcome": "ready"})])
    file.insert([(LAUNCHES, {**LAUNCH, "outcome": "died"}), (LAUNCHES, {**LAUNCH, "launch": "2"})])

    rows = file.select(LAUNCHES, where="1", told={}, limit=10)

    assert [(row["launch"], row["outcome"]) for row in rows] == [("1", "died"), ("2", "loading")]


def test_a_launch_key_keeps_its_newest_rates_alone(file: JournalFile) -> None:
    for n in range(1100):
        file.insert([(RATES, {**RATE, "decode_tokens_per_s": float(n)})])
    file.close()

    rows = file.select(RATES, where="1", told={}, limit=10_000)

    assert [row["decode_tokens_per_s"] for row in rows][-2:] == [1098.0, 1099.0]
    assert len(rows) == PER_KEY


def test_the_oldest_events_make_way_when_the_file_is_too_large(file: JournalFile) -> None:
    large = {**EVENT, "reason": "x" * 60_000}
    for n in range(0, 1400, 100):
        file.insert([(EVENTS, {**large, "at": float(n + i)}) for i in range(100)])
    file.close()

    rows = file.select(EVENTS, where="1", told={}, limit=1)

    assert rows[0]["at"] == 1399.0
    assert sum(60_000 for _ in range(count(file, EVENTS))) < MAX_BYTES


def test_no_table_grows_beyond_its_rows(file: JournalFile) -> None:
    most = journal_file.TABLES[EVENTS].most_rows
    for _ in range(2):
        file.insert([(EVENTS, EVENT)] * (most // 2 + 1_000))

    assert count(file, EVENTS) == most


def test_rows_are_dropped_by_what_they_hold(file: JournalFile) -> None:
    file.insert([(RATES, RATE), (RATES, {**RATE, "model_id": "other"})])

    file.delete(RATES, {"model_id": "m"})
    assert count(file, RATES) == 1

    file.delete(RATES, {})
    assert count(file, RATES) == 0


def test_only_the_owner_may_read_it(file: JournalFile, tmp_path: Path) -> None:
    file.insert([(EVENTS, EVENT)])

    assert (tmp_path / "journal.db").stat().st_mode & 0o777 == 0o600


def test_few_files_are_kept_that_were_set_aside(file: JournalFile, tmp_path: Path) -> None:
    for n in range(5):
        (tmp_path / f"journal.corrupt-{n}").write_bytes(b"old")
    (tmp_path / "journal.db").write_bytes(b"this is no database, " * 1000)

    file.insert([(EVENTS, EVENT)])

    assert len(list(tmp_path.glob("journal.corrupt-*"))) == 2


def test_the_write_ahead_log_is_used(file: JournalFile, tmp_path: Path) -> None:
    file.insert([(EVENTS, EVENT)])

    db = Database(tmp_path / "journal.db")
    assert db.journal_mode == "wal"
    db.close()


def test_plugins_of_sqlite_utils_that_others_installed_do_not_run_in_the_daemon(
    tmp_path: Path,
) -> None:
    about = tmp_path / "a_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sqlite_utils]\na_plugin = a_plugin\n")
    (tmp_path / "a_plugin.py").write_text("print('it ran')\n")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from sqlite_utils import Database\n"
        "from supervisor.records.journal_file import EVENTS, JournalFile\n"
        "file = JournalFile(Path(sys.argv[1]) / 'journal.db')\n"
        "print(len(file.select(EVENTS, where='1', told={}, limit=1)), flush=True)\n"
        "Database(memory=True)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split("\n")[:2] == ["0", "it ran"]
