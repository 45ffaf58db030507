"""One model's presence on the machine: its launches, its state. Drawing: planners.reconcile.

The instance's task is the one writer of its state. It launches, watches and reaps; whether and
with which plan to launch again is decided by reconcile and told through `resume`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic, time

import structlog

from planners.backends import Engine
from planners.errors import PlanError
from planners.exits import Cause, ExitKind, classify
from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan
from planners.restart import GiveUp, next_restart
from planners.settings import FleetSettings
from planners.view import InstanceState, Observed
from supervisor.child import Child, SpawnFailed, Unreapable
from supervisor.journal import Journal
from supervisor.launch import Launch
from supervisor.lease import LeaseBook, Opening, Usage

TELLING_LINES = 200  # lines of log that are searched for a cause
CAUSE_LINES = 20  # of which a cause keeps the last
HOPELESS = {  # exits that the same plan and file will only repeat
    ExitKind.BAD_MODEL,
    ExitKind.BAD_FLAG,
    ExitKind.ILLEGAL_INSTRUCTION,
    ExitKind.MISSING_LIBRARY,
    ExitKind.BUG,
}
OUT_OF_MEMORY = {ExitKind.DEVICE_OOM, ExitKind.HOST_OOM}
OOM_RETRY_S = 30.0  # a model that did not fit is tried again on demand, memory may be back
RATE_WEIGHT = 0.3  # of the newest exchange in the moving average of tokens/s

_EVENT = {
    InstanceState.LOADING: "instance.resumed",
    InstanceState.READY: "instance.loaded",
    InstanceState.DRAINING: "instance.drained",
    InstanceState.STOPPING: "instance.stopped",
    InstanceState.BACKOFF: "instance.ended",
    InstanceState.FAILED: "instance.failed",
}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shop:
    """What every instance works with."""

    book: LeaseBook
    journal: Journal
    settings: Callable[[], FleetSettings]
    environ: Mapping[str, str]
    run_dir: Path
    """0700; sockets and slot files of all children."""
    cwd: Path
    """Where children stand: a folder that they cannot write and nobody puts a library into."""
    leaving: Callable[[str], None]
    """Called with the socket path of a child before it is stopped, and when it is gone."""
    changed: Callable[[], None]
    """Wakes the fleet's loop."""
    device_lost: Callable[[str], None]
    """Called with what a child said of the device that it lost."""


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
        self.serves_context = 0
        """Tokens that callers may ask for though the plan has fewer; 0 where it has them."""
        self._plan, self._engine, self._launch_key = plan, engine, launch_key
        self._shop = shop
        self._state = InstanceState.LOADING
        self._launch: Launch | None = None
        self._launches = 0
        self._deaths: list[float] = []
        self._last_used_s = monotonic()
        self._loaded_at: float | None = None
        self._ready_since_s: float | None = None
        self._load_s: float | None = None
        self._decode_rate: float | None = None
        self._prompt_rate: float | None = None
        self._cause: Cause | None = None
        self._retry_at_s: float | None = None
        self._drain_until_s = inf
        self._stop_asked = asyncio.Event()
        self._hurried = asyncio.Event()
        self._resumed = asyncio.Event()

    async def run(self) -> None:
        """Launch, serve, and launch again as told, until stopped; the child is reaped on return."""
        try:
            while not self._stop_asked.is_set():
                cause = await self._outcome()
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
        self._hurried.set()
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
        return self._launch.log_lines(n) if self._launch else ()

    def observe(self) -> Observed:
        """This instance as it is now, for reconcile and for people."""
        book, launch = self._shop.book, self._launch
        is_loading = self._state is InstanceState.LOADING
        is_ready = self._state is InstanceState.READY
        idle_since_s = book.idle_since_s(self.instance_id) if is_ready else None
        return Observed(
            instance_id=self.instance_id,
            model_id=self.model_id,
            state=self._state,
            plan=self._plan,
            launch_key=self._launch_key,
            pid=launch.pid if launch else None,
            running=book.running(self.instance_id),
            waiting=book.waiting(self.model_id),
            keep_alive_s=self.keep_alive_s,
            last_used_s=max(self._last_used_s, idle_since_s or 0.0),
            idle_since_s=idle_since_s,
            expires_at=self._expires_at(idle_since_s),
            loaded_at=self._loaded_at,
            load_s=self._load_s,
            load_progress=launch.progress if launch and is_loading else None,
            measured=launch.measured() if launch else (),
            decode_tokens_per_s=self._decode_rate,
            prompt_tokens_per_s=self._prompt_rate,
            restarts=max(0, self._launches - 1),
            cause=self._cause,
            retry_at_s=self._retry_at_s,
            ready_since_s=self._ready_since_s if is_ready else None,
        )

    def _expires_at(self, idle_since_s: float | None) -> float | None:
        if idle_since_s is None:
            return None
        return time() + self.keep_alive_s - (monotonic() - idle_since_s)

    async def _outcome(self) -> Cause | None:
        """Of one launch. The boundary that keeps an instance's bugs from its siblings."""
        try:
            return await self._launch_once()
        except Exception:
            log.exception("instance.broke", model_id=self.model_id, instance_id=self.instance_id)
            summary = "a bug in inferenceosd ended it; the daemon's log has the traceback"
            return Cause(ExitKind.BUG, summary, None, ())

    async def _launch_once(self) -> Cause | None:
        """One child from exec to reaped; the cause of its end, None when it was wanted."""
        self._launches += 1
        shop = self._shop
        launch = self._launch = Launch(
            self._plan,
            self._engine,
            socket_path=shop.run_dir / f"{self.instance_id}-{self._launches}.sock",
            slot_dir=shop.run_dir / f"{self.instance_id}.slots",
        )
        try:
            async with launch.started(
                environ=shop.environ, cwd=shop.cwd, stop_s=shop.settings().stop_s
            ) as child:
                self._record("instance.started", pid=child.pid, plan=self._plan.digest)
                return await self._serve(launch, child)
        except PlanError as exc:
            return Cause(ExitKind.BAD_FLAG, str(exc), None, ())
        except (SpawnFailed, Unreapable) as exc:
            return Cause(ExitKind.CRASH, str(exc), None, ())
        finally:
            self._let_go(launch)

    async def _serve(self, launch: Launch, child: Child) -> Cause | None:
        """Load, be ready, and end: of itself, hung, or as asked."""
        started_s = monotonic()
        cause = await self._load(launch, child)
        if cause is not None or self._stop_asked.is_set():
            return cause
        ready_s = self._ready_since_s = monotonic()
        self._load_s, self._loaded_at = ready_s - started_s, time()
        self._enter(InstanceState.READY, load_s=round(self._load_s, 3))
        self._shop.book.open(self._opening(launch), now_s=ready_s)
        await _first(child.wait(), self._stop_asked.wait())
        if child.returncode is not None:
            return await _cause(child)
        await self._drain(child)
        self._enter(InstanceState.STOPPING)
        self._shop.leaving(launch.socket_path)
        return None

    async def _load(self, launch: Launch, child: Child) -> Cause | None:
        """Wait for health; a cause when the child ends, or makes no progress for load_s."""
        load_s = self._shop.settings().load_s
        loaded = launch.until_loaded(stall_s=load_s)
        await _first(loaded, child.wait(), self._stop_asked.wait())
        if child.returncode is not None:
            return await _cause(child)
        if launch.is_loaded or self._stop_asked.is_set():
            return None
        summary = f"it made no progress while loading for {load_s:.0f} s"
        return Cause(ExitKind.HUNG, summary, None, child.log.last(CAUSE_LINES))

    async def _drain(self, child: Child) -> None:
        """Let the running requests end, until the time stop() set, be it anew meanwhile."""
        book = self._shop.book
        while (left_s := self._drain_until_s - monotonic()) > 0:
            if child.returncode is not None or not book.running(self.instance_id):
                return
            self._hurried.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    idle = book.until_idle(self.instance_id)
                    await _first(idle, child.wait(), self._hurried.wait())

    def _fall_back(self, cause: Cause) -> None:
        """After an unwanted end: BACKOFF, or FAILED when trying again is hopeless."""
        now_s, settings = monotonic(), self._shop.settings()
        self._cause = replace(cause, log_tail=cause.log_tail[-CAUSE_LINES:])
        self._deaths = [at_s for at_s in self._deaths if at_s > now_s - settings.restart_window_s]
        self._deaths.append(now_s)
        if cause.kind is ExitKind.DEVICE_LOST:
            self._shop.device_lost(cause.summary)
        verdict = next_restart(
            self._deaths,
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

    def _opening(self, launch: Launch) -> Opening:
        plan = launch.plan
        return Opening(
            instance_id=self.instance_id,
            model_id=self.model_id,
            socket_path=launch.socket_path,
            n_slots=plan.n_parallel,
            context=plan.context,
            embedding=plan.embedding,
            serves=self.serves_context,
        )

    def _let_go(self, launch: Launch) -> None:
        """The child is gone: its leases are void."""
        book = self._shop.book
        busy = book.running(self.instance_id)
        used_s = monotonic() if busy else book.idle_since_s(self.instance_id)
        self._last_used_s = max(self._last_used_s, used_s or 0.0)
        book.close(self.instance_id)
        self._shop.leaving(launch.socket_path)

    def _enter(self, state: InstanceState, *, reason: str = "", **facts: float) -> None:
        self._state = state
        self._record(_EVENT[state], reason=reason, **facts)
        self._shop.changed()

    def _record(self, kind: str, *, reason: str = "", **facts: str | float) -> None:
        write = log.warning if self._state.is_down else log.info
        write(kind, model_id=self.model_id, instance_id=self.instance_id, reason=reason, **facts)
        self._shop.journal.record(
            kind, model_id=self.model_id, instance_id=self.instance_id, reason=reason, **facts
        )


def _averaged(average: float | None, newest: float) -> float:
    return newest if average is None else average + RATE_WEIGHT * (newest - average)


async def _cause(child: Child) -> Cause:
    """Why a child ended that was not asked to, once its last words are read."""
    await child.wait()
    return classify(child.returncode, child.log.last(TELLING_LINES), wanted=False)


async def _first(*waits: Coroutine[object, object, object]) -> None:
    """Return once one of the waits is over, or raise what it raised; the others are cancelled."""
    # Not a TaskGroup: it has no way to be left once the first is done, but by an exception.
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
