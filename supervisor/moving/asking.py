"""Who asks for migrations, and what they are asked for with: the fleet's part of them.

An operator names what is to change; the plan comes of that, off the loop, and the move follows.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

import structlog

from planners.hardware import DeviceId
from planners.instances.actions import Start
from planners.instances.room import room_beside
from planners.instances.taken import taken
from planners.model import ModelId, ServedModel
from planners.moving.by_hand import ByHand, moved_by_hand
from planners.plan import LaunchPlan
from planners.reconcile import launch_key
from planners.view import Observed
from supervisor.desired import Desired
from supervisor.instance import Instance, Shop, Trial
from supervisor.leases.lease import Lease
from supervisor.machine import Machine
from supervisor.moving.carrying import Migrations, Moved, MoveFailed, MoveSeen, Stage
from supervisor.moving.slots import SlotShelf
from supervisor.planner import Planner

log = structlog.get_logger(__name__)

Launcher = Callable[..., Instance]


class Moving:
    """The fleet's migrations."""

    def __init__(
        self,
        shop: Shop,
        shelf: SlotShelf,
        *,
        machine: Machine,
        planner: Planner,
        desired: Callable[[], Desired],
        running: Callable[[], Iterable[Observed]],
        of: Callable[[ModelId], list[Instance]],
        served: Callable[[ModelId], ServedModel | None],
        launch: Launcher,
        stopping: asyncio.Event,
    ) -> None:
        self._shop, self._machine, self._planner = shop, machine, planner
        self._desired, self._running, self._of = desired, running, of
        self._served, self._launcher = served, launch
        self._tasks: asyncio.TaskGroup | None = None
        self._migrations = Migrations(
            Stage(
                book=shop.book,
                journal=shop.journal,
                shelf=shelf,
                settings=shop.settings,
                served=served,
                free=self._free,
                launch=self._launch,
                park=shop.leaving,
                stopping=stopping,
            )
        )

    def born_in(self, tasks: asyncio.TaskGroup) -> None:
        """Has moves be tasks of this group, the fleet's."""
        self._tasks = tasks

    @property
    def models(self) -> frozenset[ModelId]:
        """Those that move."""
        return self._migrations.moving

    def seen(self) -> tuple[MoveSeen, ...]:
        """Each move under way."""
        return self._migrations.seen()

    def why_left(self, lease: Lease) -> str | None:
        """Why the child behind a lease made way; None where it did not."""
        return self._migrations.why_left(lease)

    async def by_hand(self, model_id: ModelId, told: ByHand, *, reason: str) -> Moved:
        """Moves what runs as an operator spells it out. Raises MoveFailed, BadMove, HostUnread.

        It goes on where who asked for it leaves.
        """
        source = next((i for i in self._of(model_id) if i.is_serving), None)
        served = self._served(model_id) if source is None else self._served(source.model_id)
        if source is None or served is None:
            raise MoveFailed(model_id=model_id, reason="it is not loaded and ready")
        hardware = await self._machine.fresh()
        others = [seen for seen in self._running() if seen.instance_id != source.instance_id]
        ours = taken(hardware, others)
        desired = self._desired()
        plan = await self._planner.thought(
            partial(
                moved_by_hand,
                source.plan,
                told,
                served,
                hardware=hardware,
                engines=desired.engines or (),
                order=desired.rules.backends,
                promised=ours.promised,
                held=ours.held,
                learned=self._shop.history.learned,
            ),
            model_id,
        )
        if plan.digest == source.plan.digest:
            raise MoveFailed(model_id=model_id, reason="it runs like that already")
        return await self.move(source, plan, reason=reason)

    async def move(self, source: Instance, plan: LaunchPlan, *, reason: str) -> Moved:
        """Moves it to `plan`. Raises MoveFailed."""
        if self._tasks is None:
            raise MoveFailed(model_id=source.model_id, reason="the daemon is not running")
        done: asyncio.Future[Moved] = asyncio.get_running_loop().create_future()
        self._tasks.create_task(
            self._moved(source, plan, reason, done), name=f"migration {source.instance_id}"
        )
        return await asyncio.shield(done)

    async def moved(self, source: Instance, plan: LaunchPlan, reason: str) -> bool:
        """Whether it was moved; the events say why not."""
        with suppress(MoveFailed):
            await self.move(source, plan, reason=reason)
            return True
        return False

    async def _moved(
        self, source: Instance, plan: LaunchPlan, reason: str, done: asyncio.Future[Moved]
    ) -> None:
        model_id = source.model_id
        try:
            done.set_result(await self._migrations.move(source, plan, reason=reason))
        except MoveFailed as exc:
            done.set_exception(exc)
        except Exception:
            # A boundary, as an instance's task is one: what runs goes on, or is launched anew.
            log.exception("migration.broke", model_id=model_id, reason=reason)
            why = "a bug in inferenceosd ended it; the daemon's log has the traceback"
            done.set_exception(MoveFailed(model_id=model_id, reason=why))
        finally:
            if not done.cancel():
                done.exception()  # who asked may have left
            self._shop.changed()

    async def _free(self, plan: LaunchPlan) -> Mapping[DeviceId, int]:
        await self._machine.read(max_age_s=0.0)
        if self._machine.last is None:
            return {}
        return room_beside(plan, self._machine.last, self._running())

    def _launch(self, plan: LaunchPlan, source: Instance, trial: Trial, reason: str) -> Instance:
        served = self._served(source.model_id)
        key = source.launch_key if served is None else launch_key(served, self._desired().rules)
        start = Start(plan, key, reason, source.serves_context)
        launched: Instance = self._launcher(
            start, self._tasks, keep_alive_s=source.keep_alive_s, trial=trial
        )
        return launched
