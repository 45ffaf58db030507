"""One launch of a model's child: where it is reached, and what it says while it loads.

Draws no conclusions: states, leases and second tries are supervisor.instance's.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic, time

from planners.argv import child_argv, child_env
from planners.backends import Engine
from planners.graph.buffers import BufferLine, measured, parse_buffer_line, unmapped_bytes
from planners.lessons.samples import LaunchSample, key_of
from planners.plan import DeviceBytes, LaunchPlan
from supervisor.children.child import Child, SpawnFailed, running
from supervisor.children.llama import EXIT_LINE, client_of, is_healthy, parse_state
from supervisor.children.load_progress import LoadLimits, LoadProgress
from supervisor.children.pulse import kernel_kills, work_of
from supervisor.records.launch_history import anonymous_bytes, with_process

HEALTH_EVERY_S = 0.05  # cadence while loading: /health costs the child nothing
HEALTH_S = 2.0  # /health is answered by the HTTP thread alone, within a millisecond
CUT_OFF = "its socket was removed from the runtime folder, so nobody reaches it"
DEAF = "it stopped listening but did not end, as after a SIGTERM of another process"
MAX_BUFFERS = 1000  # a load logs some ten a device


class Launch:
    """A plan, the engine that carries it out, and what became of it."""

    def __init__(
        self,
        plan: LaunchPlan,
        engine: Engine,
        *,
        socket_path: Path,
        slot_dir: Path,
        on_line: Callable[[str], None],
    ) -> None:
        self.plan = plan
        self.socket_path = str(socket_path)
        self.progress: float | None = None
        """0 to 1 while loading, where the engine tells."""
        self.is_loaded = False
        self.restored_tokens: dict[int, int] = {}
        """What its child read from files of saved slots, by slot."""
        self._engine = engine
        self._socket_path, self._slot_dir = socket_path, slot_dir
        self._on_line = on_line
        self._child: Child | None = None
        self._buffers: list[BufferLine] = []
        self._started_at, self._started_s = time(), monotonic()
        self._kernel_kills = kernel_kills()
        self._load_s: float | None = None
        self._anonymous_bytes: int | None = None
        self._measured: tuple[DeviceBytes, ...] | None = None
        """As far as it is known; None where something came since."""
        self._load_progress = LoadProgress(now_s=monotonic())
        self._told_ready = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """None before the child starts and once it has ended."""
        child = self._child
        return child.pid if child is not None and child.returncode is None else None

    @property
    def slot_dir(self) -> Path:
        """Where the child saves slots to, and restores them from."""
        return self._slot_dir

    @property
    def saves_slots(self) -> bool:
        """Whether its child can save slots, and restore them."""
        return self._engine.saves_slots

    @property
    def is_cut_off(self) -> bool:
        """Whether somebody removed the socket on which a child that once listened is reached."""
        has_told = self._child is not None and self._child.farewell is not None
        return (self.is_loaded or has_told) and not self._socket_path.exists()

    @property
    def is_deaf(self) -> bool:
        """Whether nobody listens any more on the socket of a child that was ready."""
        if not self.is_loaded:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.setblocking(False)
            try:
                asked.connect(self.socket_path)
            except ConnectionRefusedError:
                return True
            except OSError:  # too many ask it, or it is another matter
                return False
        return False

    def log_lines(self, n: int) -> tuple[str, ...]:
        """Up to `n` newest lines of the child's log."""
        return self._child.log.last(n) if self._child is not None else ()

    def kernel_kills(self) -> int | None:
        """Of processes by the kernel, for want of memory, since; None where it does not tell."""
        before, now = self._kernel_kills, kernel_kills()
        return None if before is None or now is None else now - before

    def measured(self) -> tuple[DeviceBytes, ...]:
        """What the child reported while it loaded, and its process took; () where it did not."""
        if self._measured is None:  # asked for by every look at the fleet
            told = measured(self._buffers, self.plan) if self._buffers else ()
            self._measured = with_process(
                told, self._anonymous_bytes, weights=unmapped_bytes(self._buffers)
            )
        return self._measured

    def grown_bytes(self) -> int:
        """By how much its memory grew since it was loaded: saved prompts, as good as all of it."""
        before = self._anonymous_bytes
        now = anonymous_bytes(self.pid) if self.pid else None
        return 0 if before is None or now is None else max(0, now - before)

    def sample(self, outcome: str, *, cause: str | None = None) -> LaunchSample:
        """What became of it, for the history."""
        return LaunchSample(
            launch=f"{self._started_at:.3f}-{self._socket_path.stem}",
            at=self._started_at,
            model_id=self.plan.model_id,
            key=key_of(self.plan),
            context=self.plan.context,
            outcome=outcome,
            predicted=self.plan.predicted,
            measured=self.measured(),
            load_s=self._load_s,
            cause=cause,
        )

    @asynccontextmanager
    async def started(
        self, *, environ: Mapping[str, str], cwd: Path, stop_s: float
    ) -> AsyncIterator[Child]:
        """The child for as long as the block lasts. Raises PlanError, SpawnFailed, Unreapable."""
        self._make_folders(cwd)
        try:
            argv = child_argv(
                self.plan,
                engine=self._engine,
                socket_path=self.socket_path,
                slot_dir=str(self._slot_dir),
            )
            async with running(
                argv,
                env=child_env(self._engine, environ),
                cwd=str(cwd),
                stop_s=stop_s,
                on_stdout=self._heard,
                on_stderr=self._logged,
            ) as child:
                self._child = child
                yield child
        finally:
            self._socket_path.unlink(missing_ok=True)
            with suppress(OSError):  # a slot file in it: the migration that wrote it removes both
                self._slot_dir.rmdir()

    def _make_folders(self, cwd: Path) -> None:
        """The child's folders, and those above that somebody removed. Raises SpawnFailed.

        A logout takes /run/user/UID along, a tidy-up what lies in /tmp.
        """
        try:
            self._slot_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            cwd.mkdir(mode=0o500, exist_ok=True)
            self._slot_dir.mkdir(mode=0o700, exist_ok=True)
        except OSError as exc:
            why = f"its folder {self._slot_dir} cannot be made: {exc.strerror}"
            raise SpawnFailed(path=self._engine.path, why=why) from exc

    async def until_loaded(self, limits: LoadLimits) -> str | None:
        """Return once the child is healthy; why it will not be, once that is clear."""
        async with client_of(self.socket_path, timeout_s=HEALTH_S) as client:
            while (why := self._why_stalled(limits)) is None:
                if await is_healthy(client):
                    self.is_loaded = True
                    self._load_s = monotonic() - self._started_s
                    self._anonymous_bytes = anonymous_bytes(self.pid) if self.pid else None
                    self._measured = None
                    return None
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEALTH_EVERY_S):
                        await self._told_ready.wait()
                self._told_ready.clear()
            return why

    def _why_stalled(self, limits: LoadLimits) -> str | None:
        if self.is_cut_off:
            return CUT_OFF
        return self._load_progress.why_stalled(limits, reads=self._bytes_read, now_s=monotonic())

    def _bytes_read(self) -> int | None:
        """A count that grows with whatever it reads; None where nobody tells."""
        work = None if self.pid is None else work_of(self.pid)
        return None if work is None else work.disk_reads + work.bytes_read

    def _heard(self, line: str) -> None:
        """Take a stdout line: the child protocol's states."""
        if (state := parse_state(line)) is None:
            return
        self._load_progress.stepped(state.state, state.progress, now_s=monotonic())
        self.progress = state.progress
        if state.state == "ready" and self._child is not None:
            self._child.farewell = EXIT_LINE
            self._told_ready.set()

    def _logged(self, line: str) -> None:
        """Take a stderr line: a new one is progress, some tell buffers."""
        if not self.is_loaded:
            self._load_progress.logged(line, now_s=monotonic())
        self._on_line(line)
        if len(self._buffers) >= MAX_BUFFERS:
            return
        if buffer := parse_buffer_line(line):
            self._buffers.append(buffer)
            self._measured = None
