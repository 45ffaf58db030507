"""One model's presence on the machine: its launches, its state. Drawing: planners.reconcile.

The instance's task is the one writer of its state. It launches, watches and reaps; whether and
with which plan to launch again is decided by reconcile and told through `resume`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic, time

import structlog
from msgspec import Struct
from msgspec.structs import replace

from planners.backends import Engine
from planners.errors import PlanError
from planners.hardware import DeviceId
from planners.instances.actions import Departure
from planners.instances.exits import Cause, ExitKind, classify
from planners.instances.progress import HangLimits, Hung, hang_limits
from planners.instances.restart import Death, RestartRules
from planners.lessons.usage import Usage
from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan
from planners.settings import FleetSettings
from planners.view import InstanceState, Observed
from supervisor.children.child import Child, ProgramMissing, SpawnFailed, Unreapable
from supervisor.children.child_logs import ChildLog
from supervisor.children.hang_watch import HangWatch
from supervisor.children.launch import Launch
from supervisor.children.load_progress import LoadLimits
from supervisor.children.setbacks import CAUSE_LINES, Setbacks
from supervisor.leases.lease_book import Heir, LeaseBook, Opening
from supervisor.moving.kept_slots import KeptSlots
from supervisor.race import first, found_first
from supervisor.records.journal import Journal
from supervisor.records.launch_history import LaunchHistory

TELLING_LINES = 200  # lines of log that are searched for a cause
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


class Shop(Struct, frozen=True):
    """What every instance works with."""

    book: LeaseBook
    journal: Journal
    history: LaunchHistory
    settings: Callable[[], FleetSettings]
    environ: Mapping[str, str]
    run_dir: Path
    """0700; sockets of all children."""
    slots_dir: Path
    """0700; a folder of slot files for each."""
    cwd: Path
    """Where children stand: a folder that they cannot write and nobody puts a library into."""
    leaving: Callable[[str], None]
    """Called with the socket path of a child before it is stopped, and when it is gone."""
    heard_bytes: Callable[[str], int]
    """What the child behind a socket path has replied so far."""
    kept_slots: KeptSlots
    """What children of a model leave to the next one."""
    changed: Callable[[], None]
    """Wakes the fleet's loop."""
    device_lost: Callable[[str], None]
    """Called with what a child said of the device that it lost."""
    is_pinned: Callable[[ModelId], bool]
    """Whether the operator wants a model to stay loaded."""
    room_bytes: Callable[[LaunchPlan], Mapping[DeviceId, int]]
    """What a plan may take, on each of its devices and on HOST, by what counts as free."""


class Trial(Struct, frozen=True):
    """The first launch of an instance that takes another one's place."""

    arrive: Callable[[Launch], Coroutine[object, object, tuple[Heir, ...]]]
    """Called once its child has loaded, before it serves; gives who finds what in its slots."""
    is_last: bool = True
    """Whether it is not launched again where that fails: the other one goes on."""


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
        child_log: ChildLog,
        trial: Trial | None = None,
    ) -> None:
        self.instance_id = instance_id
        self.model_id: ModelId = plan.model_id
        self.keep_alive_s = keep_alive_s
        self.serves_context = 0
        """Tokens that callers may ask for though the plan has fewer; 0 where it has them."""
        self.launch_key = launch_key
        """What it was planned from, or what since then came to the same launch."""
        self._plan, self._engine = plan, engine
        self._shop, self._child_log = shop, child_log
        self._state = InstanceState.LOADING
        self._launch: Launch | None = None
        self._watch: HangWatch | None = None
        self._launches = 0
        self._setbacks = Setbacks(shop.history.rung_of(plan))
        self._ready_s: float | None = None
        self._served = 0  # leases held as the last child ended
        self._has_answered = False
        self._last_end: tuple[str, Cause] | None = None
        self._last_used_s = monotonic()
        self._loaded_at: float | None = None
        self._load_s: float | None = None
        self._decode_rate: float | None = None
        self._prompt_rate: float | None = None
        self._cause: Cause | None = None
        self._retry_at_s: float | None = None
        self._drain_until_s = inf
        self._departure: Departure | None = None
        self._stop_asked = asyncio.Event()
        self._hurried = asyncio.Event()
        self._resumed = asyncio.Event()
        self._trial, self._heirs = trial, tuple[Heir, ...]()
        self._settled, self._over = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Launch, serve, and launch again as told, until stopped; the child is reaped on return."""
        try:
            while not self._stop_asked.is_set():
                cause = await self._outcome()
                if cause is not None and self._launch is not None:
                    self._last_end = (self._launch.socket_path, cause)
                self._note("stopped" if cause is None else "died", cause)
                if cause is None or self._stop_asked.is_set():
                    break
                if self._trial is not None and self._trial.is_last:
                    self._cause = cause
                    self._record("instance.ended", reason=cause.summary)
                    break
                self._fall_back(cause)
                self._settled.set()
                await first(self._stop_asked.wait(), self._resumed.wait())
                self._resumed.clear()
        finally:
            self._shop.book.close(self.instance_id)
            self._settled.set()
            self._over.set()

    async def until_settled(self) -> bool:
        """Whether its first launch came to serve, once that is known."""
        await self._settled.wait()
        return self._state is InstanceState.READY

    async def until_over(self) -> None:
        """Return once it was stopped, and its child reaped."""
        await self._over.wait()

    @property
    def plan(self) -> LaunchPlan:
        """Of its present launch."""
        return self._plan

    @property
    def engine(self) -> Engine:
        """That runs its children, be it still there or not."""
        return self._engine

    @property
    def socket_path(self) -> str:
        """Of its present child; "" where there is none."""
        return self._launch.socket_path if self._launch else ""

    @property
    def slot_dir(self) -> Path:
        """Where its children save slots to."""
        return self._shop.slots_dir / f"{self.instance_id}.slots"

    @property
    def restored_tokens(self) -> Mapping[int, int]:
        """What its present child read from files of saved slots, by slot."""
        return self._launch.restored_tokens if self._launch else {}

    @property
    def is_serving(self) -> bool:
        """Whether its child is there, ready, and to stay."""
        is_ready = self._state is InstanceState.READY
        return is_ready and self._launch is not None and self._launch.pid is not None

    def grown_bytes(self) -> int:
        """By how much its present child's memory grew since it was loaded."""
        return self._launch.grown_bytes() if self._launch else 0

    def reopen(self, heirs: tuple[Heir, ...]) -> None:
        """Grant slots again, to these callers first: nobody took its place after all."""
        if self._launch is not None and self.is_serving:
            self._heirs = heirs
            self._shop.book.open(self._opening(self._launch), now_s=monotonic())

    def why_ended_for_good(self) -> str:
        """Why its one launch did not come to serve."""
        return self._cause.summary if self._cause is not None else "it was told to stop"

    def resume(self, plan: LaunchPlan, engine: Engine, *, reason: str) -> None:
        """Launch again, by this plan. Only from BACKOFF or FAILED."""
        if plan.engine_id != self._plan.engine_id:
            self._setbacks.rung = self._shop.history.rung_of(plan)
        self._plan, self._engine = plan, engine
        self._retry_at_s = None
        why = {} if self._cause is None else {"why": self._cause.kind.value}
        self._enter(InstanceState.LOADING, reason=reason, **why)
        self._resumed.set()

    def stop(self, reason: str, departure: Departure, *, drain_s: float) -> None:
        """Drain for `drain_s` at most, stop the child, end. The shortest drain asked for counts."""
        self._drain_until_s = min(self._drain_until_s, monotonic() + drain_s)
        self._departure = departure
        self._hurried.set()
        if self._stop_asked.is_set():
            return
        self._shop.book.shut(self.instance_id)
        ready = self._state is InstanceState.READY
        state = InstanceState.DRAINING if ready else InstanceState.STOPPING
        self._enter(state, reason=reason, why=departure.value)
        self._stop_asked.set()

    def served(self, usage: Usage) -> None:
        """Take one exchange into the moving averages of tokens/s."""
        if usage.decode_s > 0 and usage.decode_tokens > 1:
            self._decode_rate = _averaged(self._decode_rate, usage.decode_tokens / usage.decode_s)
        if usage.prompt_s > 0 and usage.prompt_tokens > 0:
            self._prompt_rate = _averaged(self._prompt_rate, usage.prompt_tokens / usage.prompt_s)

    def answered(self, socket_path: str) -> None:
        """A request was answered by the child behind `socket_path`, where that still runs."""
        if self._launch is not None and self._launch.socket_path == socket_path:
            self._has_answered = True
            self._setbacks.answered()

    def missed(self, socket_path: str) -> None:
        """A caller could not reach the child behind `socket_path`."""
        launch, watch = self._launch, self._watch
        if launch is not None and watch is not None and launch.socket_path == socket_path:
            watch.missed()

    def why_ended(self, socket_path: str) -> str | None:
        """Why the child behind `socket_path` ended unasked; None where it is not the last one."""
        cause = self._cause_of(socket_path)
        return None if cause is None else cause.summary

    def crashed_alone(self, socket_path: str) -> bool:
        """Whether the child behind `socket_path` crashed while one lease was held on it."""
        cause = self._cause_of(socket_path)
        return cause is not None and cause.kind is ExitKind.CRASH and self._served == 1

    def _cause_of(self, socket_path: str) -> Cause | None:
        if self._last_end is None or self._last_end[0] != socket_path:
            return None
        return self._last_end[1]

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
            launch_key=self.launch_key,
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
            rung=self._setbacks.rung if self._state.is_down else None,
            openings=self._setbacks.openings,
            ready_since_s=self._ready_s if is_ready or self._state.is_down else None,
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
        self._ready_s, self._has_answered = None, False
        shop = self._shop
        launch = self._launch = Launch(
            self._plan,
            self._engine,
            socket_path=shop.run_dir / f"{self.instance_id}-{self._launches}.sock",
            slot_dir=self.slot_dir,
            on_line=self._child_log.write,
        )
        self._child_log.begin(
            f"launch {self._launches} of {self.instance_id}", has_stamps=self._engine.log.has_stamps
        )
        try:
            async with launch.started(
                environ=shop.environ, cwd=shop.cwd, stop_s=shop.settings().stop_s
            ) as child:
                self._record("instance.started", pid=child.pid, plan=self._plan.digest)
                return await self._serve(launch, child)
        except PlanError as exc:
            return Cause(ExitKind.BAD_FLAG, str(exc), None, ())
        except ProgramMissing as exc:
            return Cause(ExitKind.MISSING_ENGINE, str(exc), None, ())
        except (SpawnFailed, Unreapable) as exc:
            return Cause(ExitKind.CRASH, str(exc), None, ())
        finally:
            self._let_go(launch)

    async def _serve(self, launch: Launch, child: Child) -> Cause | None:
        """Load, be ready, and end: of itself, hung, or as asked."""
        started_s = monotonic()
        cause = await self._load(launch, child)
        if cause is None and not self._stop_asked.is_set():
            cause = await self._arrive(launch, child)
        if cause is not None or self._stop_asked.is_set():
            return cause
        ready_s = self._ready_s = monotonic()
        self._load_s, self._loaded_at = ready_s - started_s, time()
        self._enter(InstanceState.READY, load_s=round(self._load_s, 3))
        self._setbacks.got_ready()
        self._note("ready", None)
        self._shop.book.open(self._opening(launch), now_s=ready_s)
        self._heirs = ()
        self._settled.set()
        watch = self._watch = self._hang_watch(launch)
        hung = await found_first(watch.until_hung(), child.wait(), self._stop_asked.wait())
        if child.returncode is not None:
            return await _cause(child, launch)
        if hung is not None:
            return self._put_down(child, hung)
        if (hung := await self._drain(child, watch)) is not None:
            self._put_down(child, hung)
        elif not self._shop.book.running(self.instance_id):
            await self._keep_slots(launch, child)
        self._enter(InstanceState.STOPPING)
        self._shop.leaving(launch.socket_path)
        return None

    async def _load(self, launch: Launch, child: Child) -> Cause | None:
        """Wait for health; a cause when the child ends, or will not get ready in time."""
        settings = self._shop.settings()
        limits = LoadLimits(stall_s=settings.load_s, total_s=settings.load_limit_s)
        loaded = launch.until_loaded(limits)
        stalled = await found_first(loaded, child.wait(), self._stop_asked.wait())
        if child.returncode is not None:
            return await _cause(child, launch)
        if stalled is None:
            return None
        return self._put_down(child, Hung(stalled))

    async def _arrive(self, launch: Launch, child: Child) -> Cause | None:
        """Take over what another child knew; a cause when this one ends meanwhile."""
        arrival = self._kept(launch) if self._trial is None else self._trial.arrive(launch)
        heirs = await found_first(arrival, child.wait(), self._stop_asked.wait())
        if child.returncode is not None:
            return await _cause(child, launch)
        self._heirs, self._trial = heirs or (), None
        return None

    async def _kept(self, launch: Launch) -> tuple[Heir, ...]:
        """Nobody waits for a conversation that was idle."""
        await self._shop.kept_slots.restore(launch)
        return ()

    async def _keep_slots(self, launch: Launch, child: Child) -> None:
        """For the model's next child, unless this one is to end at once."""
        if self._departure is None or child.returncode is not None:
            return
        self._hurried.clear()
        keeping = self._shop.kept_slots.keep(launch, self._departure)
        await first(keeping, child.wait(), self._hurried.wait())

    def _hang_watch(self, launch: Launch) -> HangWatch:
        def limits() -> HangLimits:
            return hang_limits(launch.plan, hang_s=self._shop.settings().hang_s)

        return HangWatch(
            launch,
            self.instance_id,
            book=self._shop.book,
            heard_bytes=self._shop.heard_bytes,
            limits=limits,
        )

    def _put_down(self, child: Child, hung: Hung) -> Cause:
        """Kill a child that hangs; asking it to end would only take longer."""
        self._record("instance.hung", reason=hung.reason, pid=child.pid)
        child.kill()
        return Cause(ExitKind.HUNG, f"it hung: {hung.reason}", None, child.log.last(CAUSE_LINES))

    async def _drain(self, child: Child, watch: HangWatch) -> Hung | None:
        """Let the running requests end, until the time stop() set, be it anew meanwhile."""
        book = self._shop.book
        while (left_s := self._drain_until_s - monotonic()) > 0:
            if child.returncode is not None or not book.running(self.instance_id):
                return None
            self._hurried.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    idle = book.until_idle(self.instance_id)
                    hung = await found_first(
                        watch.until_hung(), idle, child.wait(), self._hurried.wait()
                    )
                    if hung is not None:
                        return hung
        return None

    def _fall_back(self, cause: Cause) -> None:
        """After an unwanted end: BACKOFF, or FAILED."""
        now_s, settings = monotonic(), self._shop.settings()
        if cause.kind is ExitKind.DEVICE_LOST:
            self._shop.device_lost(cause.summary)
        death = Death(
            at_s=now_s,
            lived_s=None if self._ready_s is None else now_s - self._ready_s,
            was_serving=self._served > 0,
            had_answered=self._has_answered,
        )
        setback = self._setbacks.after(
            cause,
            death,
            plan=self._plan,
            room_bytes=self._shop.room_bytes(self._plan),
            rules=RestartRules(
                settings.restart_window_s, settings.restart_limit, settings.cooldown_s
            ),
            is_pinned=self._shop.is_pinned(self.model_id),
        )
        self._cause, self._retry_at_s = setback.cause, setback.retry_at_s
        facts = {} if setback.deaths is None else {"deaths": setback.deaths}
        self._enter(setback.state, reason=setback.reason, **facts)

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
            plan=plan,
            heirs=self._heirs,
        )

    def _let_go(self, launch: Launch) -> None:
        """The child is gone: its leases are void."""
        book = self._shop.book
        busy = book.running(self.instance_id)
        used_s = monotonic() if busy else book.idle_since_s(self.instance_id)
        self._last_used_s = max(self._last_used_s, used_s or 0.0)
        self._served = busy
        book.close(self.instance_id)
        self._shop.leaving(launch.socket_path)

    def _note(self, outcome: str, cause: Cause | None) -> None:
        """Keep what became of the present launch."""
        if self._launch is not None:
            why = None if cause is None else cause.summary
            # Remembered is what a launch got ready on; where one died the next is only a guess.
            rung = (self._setbacks.rung.text() or None) if self._ready_s is not None else None
            sample = replace(self._launch.sample(outcome, cause=why), rung=rung)
            self._shop.history.launched(sample)

    def _enter(self, state: InstanceState, *, reason: str = "", **facts: str | float) -> None:
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


async def _cause(child: Child, launch: Launch) -> Cause:
    """Why a child ended that was not asked to, once its last words are read."""
    await child.wait()
    return classify(
        child.returncode,
        child.log.last(TELLING_LINES),
        wanted=False,
        kernel_kills=launch.kernel_kills(),
    )
