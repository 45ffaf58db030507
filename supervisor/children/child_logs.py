"""What children write, on disk: two files of bounded size per instance, written by one thread.

Nothing here waits for the disk: lines are queued, bounded, and what does not fit is counted.
"""

import asyncio
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import TypeVar

import structlog

from planners.model import ModelId
from planners.plan import InstanceId
from supervisor.kept_file import read_kept
from supervisor.records.follower import Follower

FILE_BYTES = 1 << 20  # of each of the two files; a load at -lv 4 writes 40 KiB, a request 2
MAX_QUEUED_BYTES = 256 << 10  # of one instance, between two writes
FLUSH_S = 0.2  # cadence of the writer
FOLDER = "logs"
"""Of the state folder's."""
MAX_INSTANCES = 32  # whose files are kept
MAX_AGE_S = 14 * 24 * 3600.0
_LONGEST_NAME = 80  # of a model, in a file's name of 255 bytes at most
# llama-server echoes a grammar that it cannot read, which is the caller's (llama-grammar.cpp).
_ECHO = "parse: error parsing grammar"
STAMPED = re.compile(r"\d{1,6}\.\d\d\.\d{3}\.\d{3} [A-Z] ")
"""Before each message of an engine that writes times: "0.00.123.456 I "."""
_UNSTAMPED = re.compile(
    r"(?:srv|slot|que|res) {1,40}\w{1,40}(?:\(\))?: "
)  # server-common.h, padded names

T = TypeVar("T")
log = structlog.get_logger(__name__)


class ChildLog:
    """One instance's log: lines in, without waiting."""

    def __init__(
        self, path: Path, told: Callable[[str], None], closed: "Callable[[ChildLog], None]"
    ) -> None:
        self.path = path
        self._told, self._closed = told, closed
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._dropped = 0
        self._is_echo = False
        self._line_of_its_own = STAMPED

    def write(self, line: str) -> None:
        """Add a line, but for what it repeats of a request."""
        if self._is_echo and not self._line_of_its_own.match(line):
            return
        self._is_echo = line.startswith(_ECHO)
        if self._is_echo:
            line = f"{_ECHO} [inferenceosd: the caller's grammar is left out]"
        self._told(line)
        raw = line.encode(errors="backslashreplace") + b"\n"
        if self._queued_bytes + len(raw) > MAX_QUEUED_BYTES:
            self._dropped += 1
            return
        self._queued.append(raw)
        self._queued_bytes += len(raw)

    def __enter__(self) -> "ChildLog":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closed(self)

    def begin(self, what: str, *, has_stamps: bool = True) -> None:
        """Mark where a process begins, and whether times precede its messages."""
        self._is_echo = False
        self._line_of_its_own = STAMPED if has_stamps else _UNSTAMPED
        self.write(f"[inferenceosd: {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {what}]")

    def taken(self) -> bytes:
        """What is to be written; says how many lines were dropped after it."""
        data = b"".join(self._queued)
        if self._dropped:
            data += b"[inferenceosd: %d lines came too fast and were dropped]\n" % self._dropped
        self._queued.clear()
        self._queued_bytes = self._dropped = 0
        return data


class ChildLogs:
    """The logs of all instances, running and past, by model."""

    def __init__(self, folder: Path, *, thread: ThreadPoolExecutor) -> None:
        self._folder, self._thread = folder, thread
        self._open: list[ChildLog] = []
        self._followers: dict[ModelId, set[Follower[str]]] = {}
        self._wake = asyncio.Event()
        self._is_failing = False

    def open(self, model_id: ModelId, instance_id: InstanceId) -> ChildLog:
        """The log of a new instance, to be entered for as long as that lasts."""
        name = f"{_safe(model_id)}@{time.time_ns() // 1_000_000:013d}-{instance_id}.log"

        def told(line: str) -> None:
            for follower in self._followers.get(model_id, ()):
                follower.tell(line)
            self._wake.set()

        child_log = ChildLog(self._folder / name, told, self._closed)
        self._open.append(child_log)
        return child_log

    def _closed(self, child_log: ChildLog) -> None:
        self._open.remove(child_log)
        if data := child_log.taken():
            self._thread.submit(self._append, child_log.path, data)

    async def last(self, model_id: ModelId, n: int) -> tuple[str, ...]:
        """Up to `n` newest lines of the model's newest instance, oldest first."""
        return await self._after_queued(lambda: last_lines(self._folder, model_id, n))

    @contextmanager
    def following(self, model_id: ModelId) -> Iterator[Follower[str]]:
        """A follower of all that the model's children write from now on.

        `last` called at once in the block, without an await before it, gives all that came before.
        """
        follower = Follower[str]()
        self._followers.setdefault(model_id, set()).add(follower)
        try:
            yield follower
        finally:
            self._followers[model_id].discard(follower)
            if not self._followers[model_id]:
                del self._followers[model_id]

    def end_following(self) -> None:
        """Followers read what they have not read yet, and are told that it was the last."""
        for follower in [each for some in self._followers.values() for each in some]:
            follower.end()

    async def write_forever(self) -> None:
        """Carry lines to disk until cancelled."""
        await self._after_queued(self._forget_old)
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._after_queued(lambda: None)
            await asyncio.sleep(FLUSH_S)

    async def _after_queued(self, work: Callable[[], T]) -> T:
        batch = [(child_log.path, child_log.taken()) for child_log in self._open]

        def work_after_batch() -> T:
            for path, data in batch:
                if data:
                    self._append(path, data)
            return work()

        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, work_after_batch))

    # What follows runs in the writer's thread alone.

    def _append(self, path: Path, data: bytes) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not path.exists():
                self._forget_old()
            elif path.stat().st_size + len(data) > FILE_BYTES:
                path.replace(_older(path))
            # At once: a pipe in its place would have us wait for a reader.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(path, flags, 0o600), "ab", buffering=0) as file:
                file.write(data)
        except OSError as exc:
            if not self._is_failing:
                log.warning("child_log.lost", path=str(path), error=str(exc))
            self._is_failing = True
        else:
            self._is_failing = False

    def _forget_old(self) -> None:
        """Remove the files of instances that ended long ago, or before the latest ones."""
        found = sorted(self._folder.glob("*@*.log"), key=_stamp)
        running = {child_log.path for child_log in tuple(self._open)}
        oldest = f"{int((time.time() - MAX_AGE_S) * 1000):013d}"
        kept: list[OSError] = []
        for place, path in enumerate(found):
            is_spare = place <= len(found) - MAX_INSTANCES  # one more is about to come
            if path not in running and (is_spare or _stamp(path) < oldest):
                try:
                    path.unlink(missing_ok=True)
                    _older(path).unlink(missing_ok=True)
                except OSError as exc:
                    kept.append(exc)
        if kept:
            log.warning("child_log.kept", error=str(kept[0]), files=len(kept))


@asynccontextmanager
async def open_child_logs(folder: Path) -> AsyncIterator[ChildLogs]:
    """The logs with their thread, which has written all on leaving. Run write_forever in it."""
    with ThreadPoolExecutor(1, thread_name_prefix="child logs") as thread:
        yield ChildLogs(folder, thread=thread)


def last_lines(folder: Path, model_id: ModelId, n: int) -> tuple[str, ...]:
    """Up to `n` newest lines in `folder` of the model's newest instance, oldest first; () where
    there is none. Blocks.
    """
    newest = max(folder.glob(f"{escape(_safe(model_id))}@*.log"), default=None)
    if newest is None or n < 1:
        return ()
    lines: list[str] = []
    for path in (_older(newest), newest):
        try:
            text = read_kept(path, most_bytes=2 * FILE_BYTES).decode(errors="replace")
        except OSError:  # no second file yet, or removed at this moment
            continue
        lines += text.split("\n")[:-1]
    return tuple(lines[-n:])


def _stamp(path: Path) -> str:
    """When its instance began, in a form that sorts."""
    return path.name.rpartition("@")[2]


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _safe(model_id: ModelId) -> str:
    """A file's name for a model: readable, and of no other model."""
    digest = hashlib.sha256(model_id.encode(errors="surrogateescape")).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", model_id).lstrip(".")[:_LONGEST_NAME]
    return f"{readable}-{digest}"
