"""The only constructor calls, and one tree of tasks.

run ─ state folder locked, sockets open ─ loop ┬ fleet ─ instance … each with its child
                                               ├ public door, admin door
                                               ├ records, folder watch, watchdog, reloads
                                               └ engines, once
"""

import asyncio
import gc
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import structlog
import uvloop

from inferenceosd import __version__, signals
from inferenceosd.admin_door import AdminDoor
from inferenceosd.control import Control
from inferenceosd.descriptors import granted
from inferenceosd.front import Front
from inferenceosd.in_force import InForce, Parts
from inferenceosd.lean_imports import lean_imports, settle, trim
from inferenceosd.logs import configure_logging, note_served
from inferenceosd.platform_folders import own_store_dir
from inferenceosd.premises import CANNOT_START, Doors, premises
from inferenceosd.service_manager import ServiceManager
from inferenceosd.settings.config import Config
from inferenceosd.settings.error import ConfigError
from inferenceosd.traces import open_traces
from planners.model import ModelId
from planners.settings import MAX_SLOTS
from proxy.admin.service import ReloadRefused
from proxy.app import PARTING_S, ROUTES, ASGIApp, build_app
from proxy.child.upstream import UpstreamPools
from proxy.door import DoorSettings
from proxy.edge.crowd import Crowd
from proxy.edge.protocol import Patience
from proxy.edge.server import serve
from proxy.telemetry.metrics import Metrics
from supervisor.children.leftovers import mark_of, remove_leftovers
from supervisor.desired import Desired, Ground
from supervisor.fleet import Fleet
from supervisor.leases.desk import QUESTIONS
from supervisor.models.catalogue import Catalogue
from supervisor.probe import HardwareProbe
from supervisor.race import found_first
from supervisor.records.journal import Journal
from supervisor.records.kept import Records, open_records
from supervisor.store.hubs import hub_of
from supervisor.store.keeper import StoreKeeper
from supervisor.store.names import StoreName

SCAN_S = 2.0  # cadence of looking for new and changed model files: a sweep of stat calls
REMOVED_S = 5.0  # for leftovers to be gone: what is stuck in the kernel is not waited for
CONNECTIONS_PER_CHILD = MAX_SLOTS + QUESTIONS  # a slot each, and what takes none
FOLLOWERS_S = 2.0  # for those who follow events to read the last ones
YOUNG_OBJECTS = 5_000  # until the collector looks at them; Python's 700 are ten requests

log = structlog.get_logger(__name__)


def run(config: Config, *, reload: Callable[[], Config]) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit status."""
    configure_logging(config.log.format, config.log.level)
    manager = ServiceManager(os.environ)
    with ExitStack() as held:
        try:
            doors, ground = premises(config, manager, held)
        except CANNOT_START as exc:
            print(f"inferenceosd: {exc}", file=sys.stderr)
            return 1
        except ConfigError as exc:
            print(f"inferenceosd: {exc}", file=sys.stderr)
            return 2
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_Daemon(config, doors, ground, manager, reload, held).serve())
        signals.ignore()
    return 0


def _store(config: Config, catalogue: Catalogue, fleet: Fleet, journal: Journal) -> StoreKeeper:
    """The daemon's own store; what changes in it is offered at once, and is an event."""

    async def changed() -> None:
        await catalogue.look_again()
        fleet.look()

    def record(kind: str, name: StoreName, reason: str) -> None:
        log.info(kind, model_id=name.short, reason=reason)
        journal.record(kind, model_id=ModelId(name.short), reason=reason)

    return StoreKeeper(
        own_store_dir(config.state_dir),
        offered=catalogue.resolve,
        changed=changed,
        record=record,
        hub=hub_of(os.environ),
    )


def _remove_leftovers(state: Path, journal: Journal) -> None:
    """End what an earlier daemon of this folder left; blocks, and runs before all else."""
    for left in remove_leftovers(mark_of(state), within_s=REMOVED_S):
        reason = f"a daemon that was killed left it: {left.name}, process {left.pid}"
        log.warning("child.removed", reason=reason, pid=left.pid)
        journal.record("child.removed", reason=reason, pid=left.pid, started_at=left.started_at)


def _spare_the_collector() -> None:
    """What is there by now stays: looked through again and again, it would cost every request."""
    settle()
    gc.set_threshold(YOUNG_OBJECTS)


async def _find_engines(in_force: InForce) -> None:
    await in_force.find_engines()
    trim()  # of trials and of what they were the first to import


class _Daemon:
    """One run: composition, tasks, signals."""

    def __init__(
        self,
        config: Config,
        doors: Doors,
        ground: Ground,
        manager: ServiceManager,
        reread: Callable[[], Config],
        held: ExitStack,
    ) -> None:
        self._config, self._doors, self._ground = config, doors, ground
        self._manager, self._reread, self._held = manager, reread, held
        self._signals = signals.Signals()

    async def serve(self) -> None:
        """Everything, from the first task to the last child reaped."""
        with self._signals.heeded():
            await self._serve()

    async def _serve(self) -> None:
        config = self._config
        for warning in config.warnings:
            log.warning("config.ignored", reason=warning)
        if self._doors.lock.report().is_open:
            log.warning("door.open", listen=self._doors.listen, reason="told by --insecure")
        state = Path(config.state_dir)
        async with AsyncExitStack() as held:
            records = await held.enter_async_context(open_records(state))
            _remove_leftovers(state, records.journal)
            pools = UpstreamPools(connections_per_child=CONNECTIONS_PER_CHILD)
            await held.enter_async_context(pools)
            catalogue = Catalogue(
                dirs=config.model_dirs,
                rules=config.models,
                defaults=config.model_defaults,
                own_store=own_store_dir(config.state_dir),
                places=config.places,
            )
            await self._run_all(records, catalogue, pools)

    def _composed(
        self, records: Records, catalogue: Catalogue, pools: UpstreamPools
    ) -> tuple[InForce, Control, Front]:
        """The parts that only together make a daemon; nothing runs yet."""
        config = self._config
        probe = HardwareProbe((), config.placement, folders=config.model_dirs)
        fleet = Fleet(
            Desired(None, config.placement, config.fleet),
            catalogue=catalogue,
            probe=probe,
            records=records,
            ground=self._ground,
            leaving=pools.forget,
            heard_bytes=pools.heard_bytes,
        )
        store = _store(config, catalogue, fleet, records.journal)
        metrics = Metrics(fleet, records.journal.counts, version=__version__, routes=ROUTES)
        traces = open_traces(os.environ, fleet, metrics, self._held)

        def app(config: Config, *, is_parting: bool = False) -> ASGIApp:
            settings = self._door_settings(config)
            return build_app(
                fleet, pools, settings, metrics, store=store, traces=traces, note=note_served,
                is_parting=is_parting,
            )  # fmt: skip

        front = Front(app(config), parting=app(config, is_parting=True))

        def reconfigure(changed: Config) -> None:
            front.app = app(changed)

        lock = self._doors.lock
        parts = Parts(fleet, catalogue, probe, records, metrics, lock, store, reconfigure)
        in_force = InForce(config, parts, reread=self._reread)
        return in_force, Control(in_force, listen=self._doors.listen), front

    async def _run_all(self, records: Records, catalogue: Catalogue, pools: UpstreamPools) -> None:
        in_force, control, front = self._composed(records, catalogue, pools)
        fleet = in_force.parts.fleet
        async with in_force.parts.store.opened(), asyncio.TaskGroup() as tasks:
            closing = asyncio.Event()
            public = await self._open_door(tasks, front, in_force, closing)
            with lean_imports():  # by the journal's thread, which opens its file only now
                await records.load()
            background = self._background(tasks, in_force)
            running = tasks.create_task(fleet.run(), name="fleet")
            await self._look_at_models(catalogue, front)
            fleet.look()
            door = AdminDoor(Path(self._config.admin_socket), self._doors.admin, control)
            admin = await door.open(tasks, closing=closing)
            self._note_started(records.journal)
            _spare_the_collector()
            await self._signals.stop.wait()
            self._manager.tell("STOPPING=1")
            log.info("daemon.stop_asked")
            closing.set()
            fleet.stop()
            hurrying = tasks.create_task(self._hurry_when_asked(fleet, public), name="hurry")
            await running
            hurrying.cancel()
            log.info("daemon.stopped")
            records.journal.record("daemon.stopped")
            records.end_following()
            await asyncio.wait([admin], timeout=FOLLOWERS_S)
            for task in (admin, *background):
                task.cancel()

    def _background(self, tasks: asyncio.TaskGroup, in_force: InForce) -> list[asyncio.Task[None]]:
        """What goes on beside the fleet until that has ended."""
        parts = in_force.parts
        return [
            tasks.create_task(parts.records.write_forever(), name="records"),
            tasks.create_task(self._watch_folders(parts.catalogue, parts.fleet), name="folders"),
            tasks.create_task(self._reload_when_asked(in_force), name="reloads"),
            tasks.create_task(self._pet_watchdog(), name="watchdog"),
            tasks.create_task(in_force.follow_lock(), name="lock"),
            tasks.create_task(_find_engines(in_force), name="engines"),
            tasks.create_task(in_force.retry_engines(), name="engines of late cards"),
            tasks.create_task(in_force.follow_engines(), name="engines switched"),
        ]

    async def _look_at_models(self, catalogue: Catalogue, front: Front) -> None:
        """The first time; callers who wait for that are let in, or told that the daemon stops."""
        await found_first(catalogue.scan(), self._signals.stop.wait())
        if self._signals.stop.is_set():
            front.part()
        else:
            front.has_looked.set()

    def _note_started(self, journal: Journal) -> None:
        listen = self._doors.listen
        log.info("daemon.started", version=__version__, pid=os.getpid(), listen=listen)
        journal.record("daemon.started", version=__version__, pid=os.getpid())
        self._manager.tell("READY=1", f"STATUS=listening on {', '.join(listen)}")

    async def _open_door(
        self, tasks: asyncio.TaskGroup, front: Front, in_force: InForce, closing: asyncio.Event
    ) -> asyncio.Task[None]:
        """Accept callers; the door's task."""

        def drain_s() -> float:
            # Sooner than the children, so that callers hear of the stop and not of a lost child.
            return max(0.0, in_force.config.fleet.drain_s - PARTING_S)

        opened = asyncio.Event()
        public = serve(
            front,
            self._doors.public,
            stop=closing,
            started=opened,
            drain_s=drain_s,
            patience=Patience(stall_s=self._config.stall_s),
            crowd=Crowd(granted(self._config.crowd)),
            tls=self._doors.lock.context,
        )
        public_door = tasks.create_task(public, name="public door")
        await opened.wait()
        return public_door

    def _door_settings(self, config: Config) -> DoorSettings:
        return DoorSettings(
            max_body_bytes=config.max_body_bytes,
            origins=config.origins,
            ui=config.ui,
            ollama_strict=config.ollama_strict,
            listen_is_loopback=self._doors.lock.is_local,
            version=config.ollama_version,
            serves_metrics=config.serves_metrics,
            gate=self._doors.lock.gate(config.management, has_pages=config.ui),
            keep_alive_comments_s=config.keep_alive_comments_s,
        )

    async def _hurry_when_asked(self, fleet: Fleet, public: asyncio.Task[None]) -> None:
        """Asked a second time to stop: no reply is waited for, and its caller told so."""
        await self._signals.hurry.wait()
        log.warning("daemon.hurried", reason="it was asked to stop a second time")
        public.cancel()
        fleet.hurry(within_s=PARTING_S)

    async def _reload_when_asked(self, in_force: InForce) -> None:
        while True:
            await self._signals.until_reload()
            self._manager.tell("RELOADING=1")
            with suppress(ReloadRefused):  # said and recorded where it was found
                await in_force.reload()
            self._manager.tell("READY=1")

    async def _watch_folders(self, catalogue: Catalogue, fleet: Fleet) -> None:
        while True:
            await asyncio.sleep(SCAN_S)
            if await catalogue.scan():
                fleet.look()

    async def _pet_watchdog(self) -> None:
        while (every_s := self._manager.watchdog_s) is not None:
            self._manager.tell("WATCHDOG=1")
            await asyncio.sleep(every_s)
