"""The configuration in force, and the one path by which it changes: settings, keys, engines."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from inferenceosd.door.listening import is_local
from inferenceosd.door.lock import DoorLock, check_lock
from inferenceosd.edits import until_written
from inferenceosd.engine_desk import EngineDesk
from inferenceosd.logs import configure_logging
from inferenceosd.settings.changes import changed_settings, concerned_models, needs_restart
from inferenceosd.settings.config import Config
from inferenceosd.settings.error import ConfigError
from planners.launch_key import launch_key
from proxy.admin.orders import ReloadReport
from proxy.admin.service import ReloadRefused
from proxy.admin.status import LockReport
from proxy.telemetry.metrics import Metrics
from supervisor.desired import Desired
from supervisor.fleet import Fleet
from supervisor.models.catalogue import Catalogue
from supervisor.probe import HardwareProbe
from supervisor.records.kept import Records
from supervisor.store.keeper import StoreKeeper

LOOK_S = 2.0  # cadence of looking whether keys or certificate changed

log = structlog.get_logger(__name__)


class Parts(Struct, frozen=True):
    """What the daemon is made of, as far as settings reach."""

    fleet: Fleet
    catalogue: Catalogue
    probe: HardwareProbe
    records: Records
    metrics: Metrics
    lock: DoorLock
    store: StoreKeeper
    reconfigure_door: Callable[[Config], None]


class InForce:
    """Replaces the configuration whole, and has all parts go by it.

    What only a new daemon takes up (sockets, folders) stays as it was at the start.
    """

    def __init__(self, config: Config, parts: Parts, *, reread: Callable[[], Config]) -> None:
        self.config = self.at_start = config
        self.parts = parts
        self.desk = EngineDesk(
            Path(config.state_dir), rollout=parts.fleet.rollout, journal=parts.records.journal
        )
        self._reread = reread
        self._changing = asyncio.Lock()

    async def find_engines(self) -> None:
        """Try every llama-server there is and go by those that run."""
        async with self._changing:
            await self.desk.adopt(self.config)
            self._apply(self.config)

    async def retry_engines(self) -> None:
        """For ever: try those that were refused again whenever a card came that none sees."""
        appeared = self.parts.fleet.card_appeared
        while True:
            await appeared.wait()
            appeared.clear()
            if self.desk.rejected:
                await self.find_engines()

    async def follow_engines(self) -> None:
        """For ever: go by other builds as they are switched in, or out after a trial."""
        await self.desk.follow(self.find_engines)

    async def reload(self) -> ReloadReport:
        """Read the configuration again and go by it. Raises ReloadRefused; then nothing changed."""
        async with self._changing:
            await until_written(self.config.file)
            try:
                config = self._reread()
                check_lock(config, is_local=self._would_be_local(config))
            except ConfigError as exc:
                self._note_refused(exc)
                raise ReloadRefused(str(exc)) from exc
            return await self._replace(config)

    def read_lock(self) -> LockReport:
        """Go by keys and certificate as they are on disk now."""
        self.parts.lock.read_again()
        self.parts.fleet.apply(self._desired(self.config))
        self.parts.reconfigure_door(self.config)
        return self.parts.lock.report()

    async def follow_lock(self) -> None:
        """For ever: the same whenever one of the files has changed."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.parts.lock.has_changed():
                self.read_lock()

    def _would_be_local(self, config: Config) -> bool:
        """Whether a daemon started with `config` would be reached from this machine alone."""
        if config.listen == self.at_start.listen:
            return self.parts.lock.is_local  # by the sockets, which systemd may have opened
        return is_local(config.listen)

    async def _replace(self, config: Config) -> ReloadReport:
        before, parts = self.config, self.parts
        if config.backends != before.backends or await self.desk.were_upgraded(config):
            await self.desk.adopt(config)
        parts.catalogue.reconfigure(
            dirs=config.model_dirs,
            rules=config.models,
            defaults=config.model_defaults,
            places=config.places,
        )
        await parts.catalogue.scan()
        # From here to the end without an await: nothing is launched by half of the new settings.
        configure_logging(config.log.format, config.log.level)
        self.config = config
        parts.lock.read_again()
        self._apply(config)
        report = ReloadReport(
            changed=(*changed_settings(before, config), *self._concerned()),
            needs_restart=needs_restart(self.at_start, config),
        )
        log.info("config.reloaded", changed=report.changed, needs_restart=report.needs_restart)
        parts.records.journal.record("config.reloaded", reason="; ".join(report.changed))
        return report

    def _apply(self, config: Config) -> None:
        self.parts.probe.adopt(self.desk.engines or (), config.placement)
        self.parts.fleet.apply(self._desired(config))
        self.parts.reconfigure_door(config)

    def _desired(self, config: Config) -> Desired:
        """What the fleet goes by; rules for callers mean a key by its id or its name."""
        callers = config.fleet.callers.knowing(self.parts.lock.key_names)
        settings = replace(config.fleet, callers=callers)
        return Desired(self.desk.engines, config.placement, settings, self.desk.newcomers)

    def _concerned(self) -> tuple[str, ...]:
        fleet, rules = self.parts.fleet, self.config.placement
        keys = {served.model_id: launch_key(served, rules) for served in fleet.processes()}
        return concerned_models(fleet.running(), keys)

    def _note_refused(self, exc: ConfigError) -> None:
        log.error("config.refused", reason=str(exc))
        self.parts.records.journal.record("config.refused", reason=str(exc))
