"""The daemon as inferenceosctl sees it, and the one path by which settings change."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import structlog

from inferenceosd import __version__
from inferenceosd.config import Config
from inferenceosd.config_changes import changed_settings, drained_models, needs_restart
from inferenceosd.config_error import ConfigError
from inferenceosd.logs import configure_logging
from inferenceosd.recording import recorded_now
from planners.backends import Engine, RejectedEngine
from planners.hardware import HardwareProfile
from planners.model import ServedModel
from planners.outlook import Outlook
from planners.reconcile import NO_ENGINE, launch_key
from proxy.admin import ReloadRefused
from proxy.admin_values import (
    DaemonReport,
    EventReport,
    LoadReport,
    LogReport,
    ModelsReport,
    ReloadReport,
    StatusReport,
    UnloadReport,
    models_report,
    status_report,
)
from proxy.errors import UnknownModel
from supervisor.backends import find_engines
from supervisor.catalogue import Catalogue
from supervisor.desired import Desired
from supervisor.fleet import Fleet
from supervisor.journal import Event, Journal
from supervisor.probe import HardwareProbe

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the daemon is made of, as far as settings reach."""

    fleet: Fleet
    catalogue: Catalogue
    probe: HardwareProbe
    journal: Journal
    reconfigure_door: Callable[[Config], None]


class Control:
    """Implements proxy.admin.AdminService. Holds the configuration in force; replaces it whole.

    What only a new daemon takes up (sockets, folders) stays as it was at the start.
    """

    def __init__(
        self, config: Config, parts: Parts, *, reread: Callable[[], Config], listen: Sequence[str]
    ) -> None:
        self._config = self._at_start = config
        self._parts = parts
        self._reread = reread
        self._listen = ", ".join(listen)
        self._started_at = time.time()
        self._engines: tuple[Engine, ...] | None = None
        self._rejected: tuple[RejectedEngine, ...] = ()
        self._turn = asyncio.Lock()

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._config

    async def find_engines(self) -> None:
        """Try every llama-server there is and go by those that run."""
        async with self._turn:
            await self._adopt_engines(self._config)
            self._apply(self._config)

    async def retry_engines(self) -> None:
        """For ever: try those that were refused again whenever a card came that none sees."""
        appeared = self._parts.fleet.card_appeared
        while True:
            await appeared.wait()
            appeared.clear()
            if self._rejected:
                await self.find_engines()

    # What the admin door asks for.

    def status(self) -> StatusReport:
        """Everything at one moment."""
        return status_report(
            self._daemon(),
            instances=self._parts.fleet.running(),
            hardware=self._parts.fleet.last_profile,
            engines=self._engines or (),
            rejected=self._rejected,
            broken=self._parts.catalogue.broken,
            now_s=monotonic(),
            resumed_at=self._parts.fleet.resumed_at,
        )

    def models(self) -> ModelsReport:
        """What is on offer."""
        fleet = self._parts.fleet
        return models_report(fleet.models(), broken=fleet.broken(), instances=fleet.running())

    async def plan(
        self,
        name: str,
        *,
        context: int | None,
        parallel: int | None,
        hardware: HardwareProfile | None,
    ) -> Outlook:
        """How it would be launched now, or on another machine."""
        asked = _asking(self._served(name), context=context, parallel=parallel)
        return await self._parts.fleet.outlook(asked, elsewhere=hardware)

    async def plan_together(
        self,
        names: Sequence[str],
        *,
        context: int | None,
        parallel: int | None,
        hardware: HardwareProfile | None,
    ) -> tuple[Outlook, ...]:
        """How they would be launched beside each other, each once however often it is named."""
        asked = {
            served.model_id: _asking(served, context=context, parallel=parallel)
            for served in map(self._served, names)
        }
        return await self._parts.fleet.outlooks(tuple(asked.values()), elsewhere=hardware)

    async def profile(self) -> str:
        """The machine as JSON."""
        return recorded_now(await self._parts.fleet.profile())

    async def load(self, name: str) -> LoadReport:
        """Load it and wait; what failed before is tried anew."""
        served = self._served(name)
        self._parts.fleet.retry(served.model_id)
        load_s = await self._parts.fleet.load(served.model_id)
        return LoadReport(served.model_id, load_s)

    def unload(self, name: str) -> UnloadReport:
        """Drain and stop its instance."""
        served = self._served(name)
        return UnloadReport(served.model_id, self._parts.fleet.unload(served.model_id))

    async def reload(self) -> ReloadReport:
        """Read the configuration again and go by it. Raises ReloadRefused; then nothing changed."""
        async with self._turn:
            try:
                config = self._reread()
            except ConfigError as exc:
                self._note_refused(exc)
                raise ReloadRefused(str(exc)) from exc
            return await self._replace(config)

    def log_lines(self, name: str, *, tail: int) -> LogReport:
        """The last `tail` lines of its process, or of the last one it had."""
        served = self._served(name)
        return LogReport(served.model_id, self._parts.fleet.log_lines(served.model_id, tail))

    async def events(
        self, *, name: str | None, since_s: float | None, limit: int
    ) -> Sequence[EventReport]:
        """The latest `limit` events of the last `since_s` seconds, oldest first."""
        model_id = self._served(name).model_id if name is not None else None
        since = 0.0 if since_s is None else time.time() - since_s
        told = await self._parts.journal.events(model_id=model_id, since=since, limit=limit)
        return [_event_report(event) for event in told]

    # How settings come into force.

    async def _replace(self, config: Config) -> ReloadReport:
        before, parts = self._config, self._parts
        if config.backends != before.backends:
            await self._adopt_engines(config)
        parts.catalogue.reconfigure(
            dirs=config.model_dirs, rules=config.models, defaults=config.model_defaults
        )
        await parts.catalogue.scan()
        # From here to the end without an await: nothing is launched by half of the new settings.
        configure_logging(config.log.format, config.log.level)
        self._config = config
        self._apply(config)
        report = ReloadReport(
            changed=(*changed_settings(before, config), *self._drained()),
            needs_restart=needs_restart(self._at_start, config),
        )
        log.info("config.reloaded", changed=report.changed, needs_restart=report.needs_restart)
        parts.journal.record("config.reloaded", reason="; ".join(report.changed))
        return report

    def _apply(self, config: Config) -> None:
        self._parts.probe.adopt(self._engines or (), config.placement)
        self._parts.fleet.apply(Desired(self._engines, config.placement, config.fleet))
        self._parts.reconfigure_door(config)

    def _drained(self) -> tuple[str, ...]:
        fleet, rules = self._parts.fleet, self._config.placement
        keys = {served.model_id: launch_key(served, rules) for served in fleet.models()}
        return drained_models(fleet.running(), keys)

    async def _adopt_engines(self, config: Config) -> None:
        engines, rejected = await find_engines(
            configured=config.backends, state_dir=Path(self._at_start.state_dir)
        )
        self._engines, self._rejected = engines, rejected
        for refused in rejected:
            log.warning("engine.refused", path=refused.path, reason=refused.reason)
        for engine in engines:
            names = [device.name for device in engine.devices]
            log.info("engine.accepted", path=engine.path, backend=engine.backend, devices=names)
        if not engines:
            log.error("engine.missing", reason=NO_ENGINE)
        self._parts.journal.record(
            "engine.found" if engines else "engine.missing",
            reason="; ".join(f"{r.path}: {r.reason}" for r in rejected),
            paths=", ".join(engine.path for engine in engines),
        )

    def _note_refused(self, exc: ConfigError) -> None:
        log.error("config.refused", reason=str(exc))
        self._parts.journal.record("config.refused", reason=str(exc))

    def _served(self, name: str) -> ServedModel:
        served = self._parts.fleet.resolve(name)
        if served is None:
            raise UnknownModel(name)
        return served

    def _daemon(self) -> DaemonReport:
        return DaemonReport(
            version=__version__,
            pid=os.getpid(),
            started_at=self._started_at,
            listen=self._listen,
            config_file=self._config.file,
            state_dir=self._at_start.state_dir,
            has_tried_engines=self._engines is not None,
        )


def _asking(served: ServedModel, *, context: int | None, parallel: int | None) -> ServedModel:
    """The model with what its client asks for in place of its settings."""
    settings = replace(
        served.settings,
        context=context or served.settings.context,
        parallel=parallel or served.settings.parallel,
    )
    return replace(served, settings=settings)


def _event_report(event: Event) -> EventReport:
    return EventReport(
        at=event.at,
        kind=event.kind,
        model=event.model_id,
        instance=event.instance_id,
        reason=event.reason,
        facts=event.facts,
    )
