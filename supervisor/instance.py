"""One model's presence on the machine: its launches, its state. Drawing: planners.reconcile.

The instance's task is the one writer of its state. It launches, watches and reaps; whether and
with which plan to launch again is decided by reconcile and told through `resume`.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, time

import structlog
from msgspec import Struct
from msgspec.structs import replace

from planners.backends import Engine
from planners.instances.actions import Departure
from planners.instances.exits import Cause, ExitKind
from planners.instances.restart import Death, RestartRules
from planners.lessons.usage import Usage
from planners.model import ModelId
from planners.plan import InstanceId, LaunchPlan
from planners.view import InstanceState, Observed
from supervisor.children.child_logs import ChildLog
from supervisor.children.ending import Ending
from supervisor.children.launch import Launch
from supervisor.children.pace import Pace
from supervisor.children.service import Arrival, Service
from supervisor.children.setbacks import Setbacks
from supervisor.leases.desk import Heir, Opening
from supervisor.race import first
from supervisor.shop import Shop

_EVENT = {
    InstanceState.LOADING: "instance.resumed",
    InstanceState.READY: "instance.loaded",
    InstanceState.DRAINING: "instance.drained",
    InstanceState.STOPPING: "instance.stopped",
    InstanceState.BACKOFF: "instance.ended",
    InstanceState.FAILED: "instance.failed",
}

log = structlog.get_logger(__name__)


class Trial(Struct, frozen=True):
    """The first launch of an instance that takes another one's place."""

    arrive: Arrival
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
        self._service: Service | None = None
        """The present launch, or the last one."""
        self._launches = 0
        self._setbacks = Setbacks(shop.history.rung_of(plan))
        self._served = 0  # leases held as the last child ended
        self._last_end: tuple[str, Cause] | None = None
        self._last_used_s = monotonic()
        self._loaded_at: float | None = None
        self._load_s: float | None = None
        self._pace = Pace()
        self._cause: Cause | None = None
        self._retry_at_s: float | None = None
        self._ending = Ending()
        self._resumed = asyncio.Event()
        self._trial = trial
        self._settled, self._over = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Launch, serve, and launch again as told, until stopped; the child is reaped on return."""
        try:
            while not self._ending.is_asked:
                cause = await self._outcome()
                if cause is not None and self._launch is not None:
                    self._last_end = (self._launch.socket_path, cause)
                self._note("stopped" if cause is None else "died", cause)
                if cause is None or self._ending.is_asked:
                    break
                if self._trial is not None and self._trial.is_last:
                    self._cause = cause
                    self._record("instance.ended", reason=cause.summary)
                    break
                self._fall_back(cause)
                self._settled.set()
                await first(self._ending.asked.wait(), self._resumed.wait())
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
    def _launch(self) -> Launch | None:
        return self._service.launch if self._service is not None else None

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
            self._shop.book.open(self._opening(self._launch, heirs), now_s=monotonic())

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
        if not self._ending.ask(departure, drain_s=drain_s, now_s=monotonic()):
            return
        self._shop.book.shut(self.instance_id)
        ready = self._state is InstanceState.READY
        state = InstanceState.DRAINING if ready else InstanceState.STOPPING
        self._enter(state, reason=reason, why=departure.value)

    def served(self, usage: Usage) -> None:
        """Take one exchange into the moving averages of tokens/s."""
        self._pace.served(usage)

    def answered(self, socket_path: str) -> None:
        """A request was answered by the child behind `socket_path`, where that still runs."""
        if (service := self._service_behind(socket_path)) is not None:
            service.has_answered = True
            self._setbacks.answered()

    def missed(self, socket_path: str) -> None:
        """A caller could not reach the child behind `socket_path`."""
        if (service := self._service_behind(socket_path)) is not None:
            service.missed()

    def _service_behind(self, socket_path: str) -> Service | None:
        is_it = self._launch is not None and self._launch.socket_path == socket_path
        return self._service if is_it else None

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
            decode_tokens_per_s=self._pace.decode_tokens_per_s,
            prompt_tokens_per_s=self._pace.prompt_tokens_per_s,
            restarts=max(0, self._launches - 1),
            cause=self._cause,
            retry_at_s=self._retry_at_s,
            rung=self._setbacks.rung if self._state.is_down else None,
            openings=self._setbacks.openings,
            ready_since_s=self._ready_s if is_ready or self._state.is_down else None,
        )

    @property
    def _ready_s(self) -> float | None:
        return self._service.ready_s if self._service is not None else None

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
        launch = Launch(
            self._plan,
            self._engine,
            socket_path=self._shop.run_dir / f"{self.instance_id}-{self._launches}.sock",
            slot_dir=self.slot_dir,
            on_line=self._child_log.write,
        )
        self._service = Service(
            launch,
            self.instance_id,
            shop=self._shop,
            ending=self._ending,
            arrival=None if self._trial is None else self._trial.arrive,
            ready=self._got_ready,
            stopping=lambda: self._enter(InstanceState.STOPPING),
            record=self._record,
        )
        self._child_log.begin(
            f"launch {self._launches} of {self.instance_id}", has_stamps=self._engine.log.has_stamps
        )
        try:
            return await self._service.run()
        finally:
            self._let_go(launch)

    def _got_ready(self, service: Service, now_s: float) -> None:
        """Its child serves from here on."""
        self._trial = None
        self._load_s, self._loaded_at = service.load_s, time()
        self._enter(InstanceState.READY, load_s=round(self._load_s, 3))
        self._setbacks.got_ready()
        self._note("ready", None)
        self._shop.book.open(self._opening(service.launch, service.heirs), now_s=now_s)
        self._settled.set()

    def _fall_back(self, cause: Cause) -> None:
        """After an unwanted end: BACKOFF, or FAILED."""
        now_s, settings = monotonic(), self._shop.settings()
        if cause.kind is ExitKind.DEVICE_LOST:
            self._shop.device_lost(cause.summary)
        death = Death(
            at_s=now_s,
            lived_s=None if self._ready_s is None else now_s - self._ready_s,
            was_serving=self._served > 0,
            had_answered=self._service is not None and self._service.has_answered,
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

    def _opening(self, launch: Launch, heirs: tuple[Heir, ...]) -> Opening:
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
            heirs=heirs,
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
