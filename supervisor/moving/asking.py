"""Who asks for migrations, and what they are asked for with: the fleet's part of them.

An operator names what is to change; the plan comes of that, off the loop, and the move follows.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic

import structlog

from planners.hardware import DeviceId
from planners.instances.actions import Departure, Move, Start
from planners.instances.room import room_beside
from planners.instances.taken import taken
from planners.model import ModelId, ServedModel
from planners.moving.by_hand import ByHand, moved_by_hand
from planners.moving.changes import rest_s
from planners.plan import LaunchPlan
from planners.view import Observed
from supervisor.desired import Desired
from supervisor.instance import Instance, Trial
from supervisor.leases.lease import Lease
from supervisor.machine import Machine
from supervisor.moving.carrying import Migrations
from supervisor.moving.move import Moved, MoveFailed, MoveSeen, Stage
from supervisor.moving.slots import SlotShelf
from supervisor.planner import Planner
from supervisor.shop import Shop

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
        self._asked: set[ModelId] = set()
        self._rests_until_s: dict[ModelId, float] = {}
        self.unmoved: dict[ModelId, str] = {}
        """Launch keys of running models whose launch as wanted did not come to serve."""
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
        """Those that move, or are about to."""
        return self._migrations.moving | self._asked

    def seen(self) -> tuple[MoveSeen, ...]:
        """Each move under way."""
        return self._migrations.seen()

    def why_left(self, lease: Lease) -> str | None:
        """Why the child behind a lease made way; None where it did not."""
        return self._migrations.why_left(lease)

    def end(self, model_id: ModelId, departure: Departure, *, reason: str, drain_s: float) -> bool:
        """Has a model that moves end once it is there; False where it does not move."""
        return self._migrations.end(model_id, departure, reason=reason, drain_s=drain_s)

    async def by_hand(self, model_id: ModelId, told: ByHand, *, reason: str) -> Moved:
        """Moves what runs as an operator spells it out. Raises MoveFailed, BadMove, HostUnread.

        It goes on where who asked for it leaves.
        """
        source = next((i for i in self._of(model_id) if i.is_serving), None)
        served = self._served(model_id) if source is None else self._served(source.model_id)
        if source is None or served is None:
            raise MoveFailed(model_id=model_id, reason="it is not loaded and ready; load it first")
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
        done = self._begun(source, plan, launch_key=source.launch_key, reason=reason)
        return await asyncio.shield(done)

    def begin(self, source: Instance, move: Move) -> None:
        """Moves it to the launch that is wanted now; what comes of it, the events say.

        Where that is the one that runs, it only goes by what is wanted now.
        """
        if move.plan.digest == source.plan.digest:
            source.launch_key = move.launch_key
            return
        model_id, key, began_s = source.model_id, move.launch_key, monotonic()

        def note(done: asyncio.Future[Moved]) -> None:
            now_s = monotonic()
            self._rests_until_s[model_id] = now_s + rest_s(now_s - began_s)
            if done.cancelled() or done.exception() is not None:
                self.unmoved[model_id] = key

        self._begun(source, move.plan, launch_key=key, reason=move.reason).add_done_callback(note)

    def forget(self, model_id: ModelId) -> None:
        """Nothing of the model runs any more: its next launch is as it is wanted."""
        self.unmoved.pop(model_id, None)
        self._rests_until_s.pop(model_id, None)

    def resting(self, now_s: float) -> frozenset[ModelId]:
        """Models that moved just now to what was wanted."""
        return frozenset(m for m, until_s in self._rests_until_s.items() if now_s < until_s)

    def _begun(
        self, source: Instance, plan: LaunchPlan, *, launch_key: str, reason: str
    ) -> asyncio.Future[Moved]:
        if self._tasks is None:
            raise MoveFailed(model_id=source.model_id, reason="the daemon is not running")
        done: asyncio.Future[Moved] = asyncio.get_running_loop().create_future()
        moved = self._moved(source, plan, launch_key, reason, done)
        self._tasks.create_task(moved, name=f"migration {source.instance_id}")
        self._asked.add(source.model_id)
        return done

    async def moved(self, source: Instance, plan: LaunchPlan, reason: str) -> bool:
        """Whether it was moved; the events say why not."""
        with suppress(MoveFailed):
            await self.move(source, plan, reason=reason)
            return True
        return False

    async def _moved(
        self,
        source: Instance,
        plan: LaunchPlan,
        launch_key: str,
        reason: str,
        done: asyncio.Future[Moved],
    ) -> None:
        model_id = source.model_id
        self._asked.discard(model_id)
        try:
            moving = self._migrations.move(source, plan, launch_key=launch_key, reason=reason)
            done.set_result(await moving)
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

    def _launch(
        self, plan: LaunchPlan, launch_key: str, source: Instance, trial: Trial, reason: str
    ) -> Instance:
        start = Start(plan, launch_key, reason, source.serves_context)
        engine = source.engine if plan.engine_id == source.plan.engine_id else None
        launched: Instance = self._launcher(
            start, self._tasks, keep_alive_s=source.keep_alive_s, trial=trial, engine=engine
        )
        return launched
