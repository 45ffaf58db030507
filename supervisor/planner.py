"""The one thread in which plans are thought out, so that the loop serves every stream meanwhile.

It takes and gives frozen values only. A thread cannot be ended from outside: planners bound the
work of one plan, and only one client's plan is ever in line before a launch.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Self, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from planners.errors import PlanBug
from planners.hardware import HardwareProfile
from planners.instances.actions import Action
from planners.instances.present import still_true
from planners.launch_key import launch_key
from planners.layout.outlook import Outlook, Surroundings, outlook, outlooks
from planners.model import ModelId, ServedModel
from planners.reconcile import awaits_launch, reconcile
from planners.view import View
from supervisor.errors import SupervisorError
from supervisor.leases.lease import Stopping
from supervisor.records.journal import Journal

T = TypeVar("T")

OUTLOOK_S = 10.0  # a client's plan takes a second at most; others may be asked for at once
FAILED_S = 60.0  # a model whose planning failed is planned again by then: the machine has changed

log = structlog.get_logger(__name__)


class PlanTookTooLong(SupervisorError):
    """A client's plan did not come about in time."""

    def __init__(self, *, model_ids: Sequence[ModelId], limit_s: float) -> None:
        self.model_ids, self.limit_s = tuple(model_ids), limit_s
        super().__init__(
            f"no plan for {', '.join(model_ids)} within {limit_s:g} s: others are being planned; "
            "ask again"
        )


class _Failure(Struct, frozen=True):
    """Planning one model failed: why, what was planned, and until when it counts."""

    reason: str
    launch_key: str
    until_s: float


class Planner:
    """Decides and plans off the loop. Owned by the fleet, and over with it.

    A bug that shows in planning one model is that model's: it is told, and left out for a while.
    """

    def __init__(
        self,
        *,
        changed: Callable[[], None],
        journal: Journal | None = None,
        outlook_s: float = OUTLOOK_S,
    ) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="planner")
        self._changed, self._journal, self._outlook_s = changed, journal, outlook_s
        self._failures: dict[ModelId, _Failure] = {}
        self._one_at_a_time = asyncio.Lock()
        self._is_over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # What is being thought about ends by itself within a second, and nobody waits for it.
        self._is_over = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def decided(self, look: Callable[[], View]) -> tuple[Action, ...]:
        """What the view calls for, less what is true no more once that is thought out.

        What is dropped calls for another look. At once where nothing has to be planned.
        """
        view, now_s = self._plannable(look()), monotonic()
        if not awaits_launch(view, now_s=now_s):
            return reconcile(view, now_s=now_s)
        think = partial(reconcile, view, now_s=now_s)
        try:
            actions = await asyncio.get_running_loop().run_in_executor(self._thread, think)
        except PlanBug as bug:
            self._failed(bug, view)
            self._changed()
            return ()  # the next look is without that model
        now = self._plannable(look())
        kept = still_true(actions, decided_on=view, view=now, now_s=monotonic())
        if len(kept) < len(actions):
            self._changed()
        return kept

    def _plannable(self, view: View) -> View:
        """`view`, told of the models whose planning failed and that did not change since."""
        if not self._failures:
            return view
        keys = {m: launch_key(s, view.rules) for m in self._failures if (s := view.models.get(m))}
        now_s = monotonic()
        known = {
            model_id: failure.reason
            for model_id, failure in self._failures.items()
            if now_s < failure.until_s and keys.get(model_id) == failure.launch_key
        }
        return replace(view, unplannable=known)

    def _failed(self, bug: PlanBug, view: View) -> None:
        model_id, reason = bug.model_id, str(bug)
        last = self._failures.get(model_id)
        key = launch_key(view.models[model_id], view.rules)
        self._failures[model_id] = _Failure(reason, key, until_s=monotonic() + FAILED_S)
        if last is None or (last.reason, last.launch_key) != (reason, key):  # else it is known
            log.error("plan.failed", model_id=model_id, reason=reason, exc_info=bug)
            if self._journal is not None:
                self._journal.record("plan.failed", model_id=model_id, reason=reason)

    async def outlook(
        self, served: ServedModel, hardware: HardwareProfile, around: Surroundings
    ) -> Outlook:
        """As planners.layout.outlook, in turn. Raises PlanTookTooLong, Stopping, PlanError."""
        think = partial(outlook, served, hardware, around)
        return await self._one_by_one(think, [served.model_id])

    async def outlooks(
        self, models: Sequence[ServedModel], hardware: HardwareProfile, around: Surroundings
    ) -> tuple[Outlook, ...]:
        """Likewise for several models beside each other."""
        think = partial(outlooks, models, hardware, around)
        return await self._one_by_one(think, [served.model_id for served in models])

    async def thought(self, think: Callable[[], T], model_id: ModelId) -> T:
        """What a client's question comes to. Raises PlanTookTooLong, Stopping, what it raises."""
        return await self._one_by_one(think, [model_id])

    async def _one_by_one(self, think: Callable[[], T], model_ids: Sequence[ModelId]) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._outlook_s), self._one_at_a_time:
                if self._is_over:
                    raise Stopping
                return await loop.run_in_executor(self._thread, think)
        except TimeoutError as exc:
            raise PlanTookTooLong(model_ids=model_ids, limit_s=self._outlook_s) from exc
