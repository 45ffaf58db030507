"""One model's presence on the machine: its child, its state, its log. Drawing: planners.reconcile.

The instance's task is the one writer of its state. It launches, watches and reaps; whether and
with which plan to launch again is decided by reconcile and told through `resume`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic, time

import structlog

from planners.argv import child_argv, child_env
from planners.backends import Engine
from planners.buffers import BufferLine, measured, parse_buffer_line
from planners.errors import PlanError
from planners.exits import Cause, ExitKind, classify
from planners.model import ModelId
from planners.plan import DeviceBytes, InstanceId, LaunchPlan
from planners.restart import GiveUp, next_restart
from planners.settings import FleetSettings
from planners.view import InstanceState, Observed
from supervisor.child import Child, SpawnFailed, Unreapable, running
from supervisor.journal import Journal
from supervisor.lease import LeaseBook, Opening, Usage
from supervisor.llama import EXIT_LINE, is_healthy, parse_state

HEALTH_EVERY_S = 0.05  # cadence while loading: /health costs the child nothing
DRAIN_LOOK_S = 0.02  # cadence while the last requests of a child end
CAUSE_LINES = 20  # lines of log a cause keeps
HOPELESS = {  # exits that the same plan and file will only repeat
    ExitKind.BAD_MODEL,
    ExitKind.BAD_FLAG,
    ExitKind.ILLEGAL_INSTRUCTION,
    ExitKind.MISSING_LIBRARY,
}
OUT_OF_MEMORY = {ExitKind.DEVICE_OOM, ExitKind.HOST_OOM}
OOM_RETRY_S = 30.0  # a model that did not fit is tried again on demand, memory may be back
RATE_WEIGHT = 0.3  # of the newest exchange in the moving average of tokens/s

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shop:
    """What every instance works with."""

    book: LeaseBook
    journal: Journal
    settings: Callable[[], FleetSettings]
    environ: dict[str, str]
    run_dir: Path
    """0700; sockets and slot files of all children."""
    cwd: Path
    """Where children stand: a folder that they cannot write and nobody puts a library into."""
    leaving: Callable[[str], None]
    """Called with the socket path of a child before it is stopped, and when it is gone."""
    changed: Callable[[], None]
    """Wakes the fleet's loop."""


class Instance:
    """One model, from its first launch until it is stopped."""

    def __init__(
        self,
        instance_id: InstanceId,
        *,
        plan: LaunchPlan,
        engine: Engine,
        launch_key: str,
        keep_alive_s: float,
        shop: Shop,
    ) -> None:
        self.instance_id = instance_id
        self.model_id: ModelId = plan.model_id
        self.keep_alive_s = keep_alive_s
        self.last_used_s = monotonic()
        self._plan, self._engine, self._launch_key = plan, engine, launch_key
        self._shop = shop
        self._state = InstanceState.LOADING
        self._child: Child | None = None
        self._launches = 0
        self._deaths: list[float] = []
        self._buffers: list[BufferLine] = []
        self._progress: float | None = None
        self._progressed_s = monotonic()
        self._told_ready = asyncio.Event()
        self._loaded_at: float | None = None
        self._load_s: float | None = None
        self._decode_rate: float | None = None
        self._prompt_rate: float | None = None
        self._cause: Cause | None = None
        self._retry_at_s: float | None = None
        self._drain_until_s = inf
        self._stop_asked = asyncio.Event()
        self._resumed = asyncio.Event()
        self._log: tuple[str, ...] = ()

    async def run(self) -> None:
        """Launch, serve, and launch again as told, until stopped; the child is reaped on return."""
        try:
            while not self._stop_asked.is_set():
                cause = await self._launch_once()
                if cause is None or self._stop_asked.is_set():
                    break
                self._fall_back(cause)
                await _first(self._stop_asked.wait(), self._resumed.wait())
                self._resumed.clear()
        finally:
            self._shop.book.close(self.instance_id)

    def resume(self, plan: LaunchPlan, engine: Engine) -> None:
        """Launch again, by this plan. Only from BACKOFF or FAILED."""
        self._plan, self._engine = plan, engine
        self._retry_at_s = None
        self._enter(InstanceState.LOADING)
        self._resumed.set()

    def stop(self, reason: str, *, drain_s: float) -> None:
        """Drain for `drain_s` at most, stop the child, end. The shortest drain asked for counts."""
        self._drain_until_s = min(self._drain_until_s, monotonic() + drain_s)
        if self._stop_asked.is_set():
            return
        self._shop.book.shut(self.instance_id)
        ready = self._state is InstanceState.READY
        self._enter(InstanceState.DRAINING if ready else InstanceState.STOPPING, reason=reason)
        self._stop_asked.set()

    def served(self, usage: Usage) -> None:
        """Take one exchange into the moving averages of tokens/s."""
        if usage.decode_s > 0 and usage.decode_tokens > 1:
            self._decode_rate = _averaged(self._decode_rate, usage.decode_tokens / usage.decode_s)
        if usage.prompt_s > 0 and usage.prompt_tokens > 0:
            self._prompt_rate = _averaged(self._prompt_rate, usage.prompt_tokens / usage.prompt_s)

    def log_lines(self, n: int) -> tuple[str, ...]:
        """Up to `n` newest lines of the running child's log, or of the last one's."""
        return self._child.log.last(n) if self._child else self._log[-n:]

    def observe(self) -> Observed:
        """This instance as it is now, for reconcile and for people."""
        book = self._shop.book
        idle_since_s = book.idle_since_s(self.instance_id)
        if self._state is not InstanceState.READY:
            idle_since_s = None
        return Observed(
            instance_id=self.instance_id,
            model_id=self.model_id,
            state=self._state,
            plan=self._plan,
            launch_key=self._launch_key,
            pid=self._child.pid if self._child else None,
            running=book.running(self.instance_id),
            waiting=book.waiting(self.model_id),
            keep_alive_s=self.keep_alive_s,
            last_used_s=max(self.last_used_s, idle_since_s or 0.0),
            idle_since_s=idle_since_s,
            expires_at=self._expires_at(idle_since_s),
            loaded_at=self._loaded_at,
            load_s=self._load_s,
            load_progress=self._progress if self._state is InstanceState.LOADING else None,
            measured=self._measured(),
            decode_tokens_per_s=self._decode_rate,
            prompt_tokens_per_s=self._prompt_rate,
            restarts=self._launches - 1,
            cause=self._cause,
            retry_at_s=self._retry_at_s,
        )

    def _expires_at(self, idle_since_s: float | None) -> float | None:
        if idle_since_s is None:
            return None
        return time() + self.keep_alive_s - (monotonic() - idle_since_s)

    def _measured(self) -> tuple[DeviceBytes, ...]:
        return measured(self._buffers, self._plan) if self._buffers else ()

    async def _launch_once(self) -> Cause | None:
        """One child from exec to reaped; the cause of its end, None when it was wanted."""
        self._launches += 1
        socket_path = self._shop.run_dir / f"{self.instance_id}-{self._launches}.sock"
        slot_dir = self._shop.run_dir / f"{self.instance_id}.slots"
        slot_dir.mkdir(mode=0o700, exist_ok=True)
        self._forget_launch()
        try:
            argv = child_argv(
                self._plan,
                engine=self._engine,
                socket_path=str(socket_path),
                slot_dir=str(slot_dir),
            )
            async with running(
                argv,
                env=child_env(self._engine, self._shop.environ),
                cwd=str(self._shop.cwd),
                stop_s=self._shop.settings().stop_s,
                on_stdout=self._heard,
                on_stderr=self._logged,
            ) as child:
                self._child = child
                self._record("instance.started", pid=child.pid, plan=self._plan.digest)
                cause = await self._serve(child, str(socket_path))
        except PlanError as exc:
            cause = Cause(ExitKind.BAD_FLAG, str(exc), None, ())
        except (SpawnFailed, Unreapable) as exc:
            cause = Cause(ExitKind.CRASH, str(exc), None, ())
        finally:
            self._leave_child(str(socket_path))
            with suppress(FileNotFoundError):
                socket_path.unlink()
            with suppress(OSError):  # a slot file in it: the migration that wrote it removes both
                slot_dir.rmdir()
        return cause

    async def _serve(self, child: Child, socket_path: str) -> Cause | None:
        """Load, be ready, and end: of itself, hung, or as asked."""
        started_s = monotonic()
        cause = await self._load(child, socket_path)
        if cause is not None or self._stop_asked.is_set():
            return cause
        self._load_s, self._loaded_at = monotonic() - started_s, time()
        self._enter(InstanceState.READY, load_s=round(self._load_s, 3))
        self._shop.book.open(self._opening(socket_path), now_s=monotonic())
        await _first(child.wait(), self._stop_asked.wait())
        if child.returncode is not None:
            return self._ended(child)
        await self._drain(child)
        self._enter(InstanceState.STOPPING)
        self._shop.leaving(socket_path)
        return None

    async def _load(self, child: Child, socket_path: str) -> Cause | None:
        """Wait for health; a cause when the child ends, or makes no progress for load_s."""
        load_s = self._shop.settings().load_s
        while not self._stop_asked.is_set():
            if child.returncode is not None:
                await child.wait()
                return self._ended(child)
            if await is_healthy(socket_path):
                return None
            if monotonic() - self._progressed_s > load_s:
                summary = f"it made no progress while loading for {load_s:.0f} s"
                return Cause(ExitKind.HUNG, summary, None, child.log.last(CAUSE_LINES))
            with suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_EVERY_S):
                    await _first(self._stop_asked.wait(), child.wait(), self._told_ready.wait())
            self._told_ready.clear()
        return None

    async def _drain(self, child: Child) -> None:
        """Let the running requests end, until the time stop() set."""
        while self._shop.book.running(self.instance_id) and monotonic() < self._drain_until_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_LOOK_S):
                    await child.wait()
            if child.returncode is not None:
                return

    def _ended(self, child: Child) -> Cause:
        return classify(child.returncode, child.log.last(CAUSE_LINES * 10), wanted=False)

    def _fall_back(self, cause: Cause) -> None:
        """After an unwanted end: BACKOFF, or FAILED when trying again is hopeless."""
        now_s, settings = monotonic(), self._shop.settings()
        self._cause = replace(cause, log_tail=cause.log_tail[-CAUSE_LINES:])
        self._deaths.append(now_s)
        verdict = next_restart(
            tuple(self._deaths),
            now_s=now_s,
            window_s=settings.restart_window_s,
            limit=settings.restart_limit,
        )
        if cause.kind in OUT_OF_MEMORY:
            self._retry_at_s = now_s + OOM_RETRY_S
            self._enter(InstanceState.FAILED, reason=cause.summary)
        elif cause.kind in HOPELESS or isinstance(verdict, GiveUp):
            self._enter(InstanceState.FAILED, reason=cause.summary)
        else:
            self._retry_at_s = verdict.at_s
            self._enter(InstanceState.BACKOFF, reason=cause.summary)

    def _opening(self, socket_path: str) -> Opening:
        return Opening(
            instance_id=self.instance_id,
            model_id=self.model_id,
            socket_path=socket_path,
            n_slots=self._plan.n_parallel,
            context=self._plan.context,
            embedding=self._plan.embedding,
        )

    def _forget_launch(self) -> None:
        self._buffers.clear()
        self._progress = None
        self._progressed_s = monotonic()
        self._told_ready.clear()

    def _leave_child(self, socket_path: str) -> None:
        book = self._shop.book
        busy_s = monotonic() if book.running(self.instance_id) else 0.0
        idle_since_s = book.idle_since_s(self.instance_id) or 0.0
        self.last_used_s = max(self.last_used_s, idle_since_s, busy_s)
        book.close(self.instance_id)
        self._shop.leaving(socket_path)
        if self._child is not None:
            self._log = self._child.log.last(CAUSE_LINES * 50)
            self._child = None

    def _heard(self, line: str) -> None:
        """Take a stdout line: the child protocol's states."""
        if (state := parse_state(line)) is None:
            return
        self._progressed_s = monotonic()
        self._progress = state.progress
        if state.state == "ready" and self._child is not None:
            self._child.farewell = EXIT_LINE
            self._told_ready.set()

    def _logged(self, line: str) -> None:
        """Take a stderr line: any is progress, some tell buffers."""
        self._progressed_s = monotonic()
        if self._state is InstanceState.LOADING and (buffer := parse_buffer_line(line)):
            self._buffers.append(buffer)

    def _enter(self, state: InstanceState, *, reason: str = "", **facts: float) -> None:
        self._state = state
        self._record(_EVENT[state], reason=reason, **facts)
        self._shop.changed()

    def _record(self, kind: str, *, reason: str = "", **facts: str | float) -> None:
        write = log.warning if self._state in _TROUBLE else log.info
        write(kind, model_id=self.model_id, instance_id=self.instance_id, reason=reason, **facts)
        self._shop.journal.record(
            kind, model_id=self.model_id, instance_id=self.instance_id, reason=reason, **facts
        )


_EVENT = {
    InstanceState.LOADING: "instance.resumed",
    InstanceState.READY: "instance.loaded",
    InstanceState.DRAINING: "instance.drained",
    InstanceState.STOPPING: "instance.stopped",
    InstanceState.BACKOFF: "instance.ended",
    InstanceState.FAILED: "instance.failed",
}
_TROUBLE = (InstanceState.BACKOFF, InstanceState.FAILED)


def _averaged(average: float | None, newest: float) -> float:
    return newest if average is None else average + RATE_WEIGHT * (newest - average)


async def _first(*waits: Awaitable[object]) -> None:
    """Return once one of the waits is over; the others are cancelled."""
    tasks: Sequence[asyncio.Future[object]] = [asyncio.ensure_future(w) for w in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
