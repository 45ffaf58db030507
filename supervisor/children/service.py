"""One launch in service, from exec to reaped: it loads, serves, drains, or hangs and is killed.

Knows of no launch before or after it: what its end means is supervisor.instance's to say.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Protocol

from planners.errors import PlanError
from planners.instances.exits import Cause, ExitKind, classify
from planners.instances.progress import HangLimits, Hung, hang_limits
from planners.plan import InstanceId
from supervisor.children.child import Child, ProgramMissing, SpawnFailed, Unreapable
from supervisor.children.ending import Ending
from supervisor.children.hang_watch import HangWatch
from supervisor.children.launch import Launch
from supervisor.children.load_progress import LoadLimits
from supervisor.children.setbacks import CAUSE_LINES
from supervisor.leases.desk import Heir
from supervisor.race import first, found_first
from supervisor.shop import Shop

TELLING_LINES = 200  # lines of log that are searched for a cause

Arrival = Callable[[Launch], Coroutine[object, object, tuple[Heir, ...]]]
"""Called once a child has loaded, before it serves; gives who finds what in its slots."""


class Record(Protocol):
    """Writes down what happened to an instance."""

    def __call__(self, kind: str, *, reason: str = "", **facts: str | float) -> None: ...


class Service:
    """One child of an instance, and what is remembered of it once it is gone."""

    def __init__(
        self,
        launch: Launch,
        instance_id: InstanceId,
        *,
        shop: Shop,
        ending: Ending,
        arrival: Arrival | None,
        ready: Callable[["Service", float], None],
        stopping: Callable[[], None],
        record: Record,
    ) -> None:
        """`ready` is called before it serves, with monotonic seconds, `stopping` before it ends."""
        self.launch = launch
        self.ready_s: float | None = None
        """Monotonic; None where it never served."""
        self.load_s = 0.0
        self.heirs: tuple[Heir, ...] = ()
        self.has_answered = False
        self._instance_id, self._shop, self._ending = instance_id, shop, ending
        self._arrival, self._ready, self._stopping = arrival, ready, stopping
        self._record = record
        self._watch: HangWatch | None = None

    def missed(self) -> None:
        """A caller could not reach the child."""
        if self._watch is not None:
            self._watch.missed()

    async def run(self) -> Cause | None:
        """All of it; the cause of the child's end, None when that was wanted."""
        shop = self._shop
        try:
            async with self.launch.started(
                environ=shop.environ, cwd=shop.cwd, stop_s=shop.settings().stop_s
            ) as child:
                self._record("instance.started", pid=child.pid, plan=self.launch.plan.digest)
                return await self._serve(child)
        except PlanError as exc:
            return Cause(ExitKind.BAD_FLAG, str(exc), None, ())
        except ProgramMissing as exc:
            return Cause(ExitKind.MISSING_ENGINE, str(exc), None, ())
        except (SpawnFailed, Unreapable) as exc:
            return Cause(ExitKind.CRASH, str(exc), None, ())

    async def _serve(self, child: Child) -> Cause | None:
        """Load, be ready, and end: of itself, hung, or as asked."""
        started_s = monotonic()
        cause = await self._load(child)
        if cause is None and not self._ending.is_asked:
            cause = await self._arrive(child)
        if cause is not None or self._ending.is_asked:
            return cause
        ready_s = self.ready_s = monotonic()
        self.load_s = ready_s - started_s
        self._ready(self, ready_s)
        watch = self._watch = self._hang_watch()
        hung = await found_first(watch.until_hung(), child.wait(), self._ending.asked.wait())
        if child.returncode is not None:
            return await self._cause(child)
        if hung is not None:
            return self._put_down(child, hung)
        if (hung := await self._drain(child, watch)) is not None:
            self._put_down(child, hung)
        elif not self._shop.book.running(self._instance_id):
            await self._keep_slots(child)
        self._stopping()
        self._shop.leaving(self.launch.socket_path)
        return None

    async def _load(self, child: Child) -> Cause | None:
        """Wait for health; a cause when the child ends, or will not get ready in time."""
        settings = self._shop.settings()
        limits = LoadLimits(stall_s=settings.load_s, total_s=settings.load_limit_s)
        loaded = self.launch.until_loaded(limits)
        stalled = await found_first(loaded, child.wait(), self._ending.asked.wait())
        if child.returncode is not None:
            return await self._cause(child)
        if stalled is None:
            return None
        return self._put_down(child, Hung(stalled))

    async def _arrive(self, child: Child) -> Cause | None:
        """Take over what another child knew; a cause when this one ends meanwhile."""
        arrival = (self._arrival or self._kept)(self.launch)
        heirs = await found_first(arrival, child.wait(), self._ending.asked.wait())
        if child.returncode is not None:
            return await self._cause(child)
        self.heirs = heirs or ()
        return None

    async def _kept(self, launch: Launch) -> tuple[Heir, ...]:
        """Nobody waits for a conversation that was idle."""
        await self._shop.kept_slots.restore(launch)
        return ()

    async def _keep_slots(self, child: Child) -> None:
        """For the model's next child, unless this one is to end at once."""
        if self._ending.departure is None or child.returncode is not None:
            return
        self._ending.hurried.clear()
        keeping = self._shop.kept_slots.keep(self.launch, self._ending.departure)
        await first(keeping, child.wait(), self._ending.hurried.wait())

    def _hang_watch(self) -> HangWatch:
        def limits() -> HangLimits:
            return hang_limits(self.launch.plan, hang_s=self._shop.settings().hang_s)

        return HangWatch(
            self.launch,
            self._instance_id,
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
        """Let the running requests end, for as long as they may; that can become less meanwhile."""
        book = self._shop.book
        while (left_s := self._ending.left_s(now_s=monotonic())) > 0:
            if child.returncode is not None or not book.running(self._instance_id):
                return None
            self._ending.hurried.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    idle = book.until_idle(self._instance_id)
                    hung = await found_first(
                        watch.until_hung(), idle, child.wait(), self._ending.hurried.wait()
                    )
                    if hung is not None:
                        return hung
        return None

    async def _cause(self, child: Child) -> Cause:
        """Why the child ended that was not asked to, once its last words are read."""
        await child.wait()
        return classify(
            child.returncode,
            child.log.last(TELLING_LINES),
            wanted=False,
            kernel_kills=self.launch.kernel_kills(),
        )
