"""One operating-system process, from exec to reaped. It cannot outlive the block that runs it.

Knows nothing of llama-server: lines in, a return code out.
"""

import asyncio
import errno
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import cache
from time import monotonic
from typing import cast

from supervisor.children.log_tail import LogTail
from supervisor.errors import SupervisorError

OnLine = Callable[[str], None]
KILLED_S = 5.0  # from SIGKILL to reaped: only a process stuck in the kernel takes longer
SPAWN_DESCRIPTORS = 12  # three socket pairs, a pipe for exec's error, and what threads open
FLOOD_BYTES = 1 << 18  # read of one pipe at a time; a load at -lv 4 writes 40 KiB in all
FLOOD_PAUSE_S = 0.05  # then the pipe fills, and the child waits, not everybody else
LAST_WORDS_S = 0.2  # from its end to the end of its output, where a grandchild holds the pipes


class SpawnFailed(SupervisorError):
    """The kernel would not start a program."""

    def __init__(self, *, path: str, why: str) -> None:
        self.path = path
        super().__init__(f"cannot start {path}: {why}")


class ProgramMissing(SpawnFailed):
    """There is no such program, or it may not be executed."""


class Unreapable(SupervisorError):
    """A process survived SIGKILL: it is stuck in the kernel, most often in a device driver."""

    def __init__(self, *, pid: int) -> None:
        self.pid = pid
        super().__init__(f"process {pid} is stuck in the kernel and cannot be killed")


class Child(asyncio.SubprocessProtocol):
    """A running process: its pid, the tail of its log, and when it ended."""

    def __init__(self, *, on_stdout: OnLine, on_stderr: OnLine) -> None:
        loop = asyncio.get_running_loop()
        self.log = LogTail()
        self.farewell: bytes | None = None
        """What asks it over stdin to end; None while SIGTERM does."""
        self._said = LogTail(max_lines=1)
        self._on_stdout, self._on_stderr = on_stdout, on_stderr
        self._budget_bytes = {1: FLOOD_BYTES, 2: FLOOD_BYTES}
        self._budget_until_s = {1: 0.0, 2: 0.0}
        self._stemmed: set[int] = set()  # Python 3.11.2's pipes cannot tell whether they are read
        self._exited: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.SubprocessTransport | None = None

    @property
    def pid(self) -> int:
        """The process id; ours until the block that runs the child is left."""
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._transport.get_returncode() if self._transport else None

    async def wait(self) -> None:
        """Return once the process has ended and its last output was read."""
        await asyncio.shield(self._exited)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await asyncio.shield(self._closed)

    def say(self, data: bytes) -> None:
        """Write to its stdin, without waiting; lost where it no longer reads."""
        assert self._transport is not None
        stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        if not stdin.is_closing():
            stdin.write(data)

    def kill(self) -> None:
        """SIGKILL its whole group, where it runs; the block that runs it reaps it."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill_rest(self) -> None:
        """SIGKILL what it started in its group and left, as a script does that wraps an engine.

        While one of them lives no other process can have the group's number.
        """
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        raw = data.encode() if isinstance(data, str) else data
        self._stem(fd, len(raw))
        tail, on_line = (self._said, self._on_stdout) if fd == 1 else (self.log, self._on_stderr)
        for line in tail.feed(raw, now_s=monotonic()):
            on_line(line)

    def _stem(self, fd: int, n_bytes: int) -> None:
        """Leave a pipe alone for a moment that brought too much in one: a flood takes the loop's
        time from every stream.
        """
        now_s = monotonic()
        if now_s >= self._budget_until_s[fd]:
            self._budget_until_s[fd] = now_s + FLOOD_PAUSE_S
            self._budget_bytes[fd] = FLOOD_BYTES
        self._budget_bytes[fd] -= n_bytes
        if self._budget_bytes[fd] <= 0 and not (self._exited.done() or fd in self._stemmed):
            self._stemmed.add(fd)
            self._pipe(fd).pause_reading()
            asyncio.get_running_loop().call_later(FLOOD_PAUSE_S, self._go_on, fd)

    def _go_on(self, fd: int) -> None:
        if fd not in self._stemmed:
            return
        self._stemmed.remove(fd)
        if not self._pipe(fd).is_closing():
            self._pipe(fd).resume_reading()

    def _pipe(self, fd: int) -> asyncio.ReadTransport:
        assert self._transport is not None
        return cast(asyncio.ReadTransport, self._transport.get_pipe_transport(fd))

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)
            for fd in (1, 2):
                self._go_on(fd)  # its last words are no more than a pipe holds

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


@asynccontextmanager
async def running(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    stop_s: float,
    on_stdout: OnLine,
    on_stderr: OnLine,
) -> AsyncIterator[Child]:
    """A child for as long as the block lasts: asked to end, `stop_s`, SIGKILL of its group, reaped.

    It also dies with the daemon: by parent-death signal on Linux, by end of file on its stdin
    everywhere. Must be entered on the main thread, since the kernel ties that signal to the
    thread that forks. Raises SpawnFailed.
    """
    _check_executable(argv[0])
    _check_descriptors(argv[0])
    loop = asyncio.get_running_loop()
    try:
        transport, child = await loop.subprocess_exec(
            lambda: Child(on_stdout=on_stdout, on_stderr=on_stderr),
            *_dying_with_us(),
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as exc:
        raise SpawnFailed(path=argv[0], why=exc.strerror or str(exc)) from exc
    try:
        yield child
    finally:
        try:
            await _stop(child, stop_s=stop_s)
        finally:
            child.kill_rest()
            transport.close()


def _check_executable(path: str) -> None:
    """Raise ProgramMissing where exec would fail; setpriv would say so too, but less clearly."""
    if not os.access(path, os.X_OK):
        why = "not executable" if os.path.exists(path) else os.strerror(errno.ENOENT)
        raise ProgramMissing(path=path, why=why)


def _check_descriptors(path: str) -> None:
    """Raise SpawnFailed where descriptors are short: uvloop would say -1, and leak what it had."""
    with ExitStack() as opened:
        try:
            for _ in range(SPAWN_DESCRIPTORS):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as exc:
            raise SpawnFailed(path=path, why=exc.strerror or str(exc)) from exc


async def _stop(child: Child, *, stop_s: float) -> None:
    """Ask once, wait; then kill the whole group, whatever interrupts us, and reap."""
    try:
        if child.returncode is None:
            _ask_to_end(child)
            with suppress(TimeoutError):
                async with asyncio.timeout(stop_s):
                    await child.wait()
    finally:
        if child.returncode is None:
            await _kill(child)


def _ask_to_end(child: Child) -> None:
    if child.farewell is not None:
        child.say(child.farewell)
        return
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGTERM)


async def _kill(child: Child) -> None:
    child.kill()
    try:
        async with asyncio.timeout(KILLED_S):
            await child.wait()
    except TimeoutError as exc:
        raise Unreapable(pid=child.pid) from exc


@cache
def _dying_with_us() -> tuple[str, ...]:
    """The prefix that has the kernel kill a child when we end; () where there is none.

    util-linux's setpriv sets it between fork and exec, which preexec_fn cannot do safely.
    """
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()
