"""Gathers what doctor judges, from the daemon where one answers, else by itself."""

import asyncio
import os
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from inferenceosd import __version__
from inferenceosd.commands.doctor import Disk, Facts
from inferenceosd.door.listening import CannotListen, is_local, listen_on
from inferenceosd.door.lock import DoorLock
from inferenceosd.platform_folders import own_model_dir, own_store_dir
from inferenceosd.settings.config import Config, Options, read_config
from inferenceosd.settings.error import ConfigError
from planners.argv import VISIBILITY
from planners.hardware import HardwareProfile
from planners.instances.groups import unknown_members
from proxy.admin.status import DaemonReport, LockReport, StatusReport, status_report
from supervisor.devices.storage import free_bytes
from supervisor.drivers import person_of, read_drivers
from supervisor.engines.backends import find_engines
from supervisor.errors import SupervisorError
from supervisor.models.catalogue import Catalogue
from supervisor.probe import HardwareProbe
from supervisor.suspend import suspended_s


class Told(Struct, frozen=True):
    """What a running daemon says."""

    status: StatusReport
    hardware: HardwareProfile
    names: tuple[str, ...]
    """Of all models on offer, aliases included."""


def facts_now(told: Told | None, *, socket_path: str) -> Facts:
    """Everything at this moment; takes seconds where no daemon answers and engines are tried."""
    file = told.status.daemon.config_file if told else None
    try:
        config, mistake = read_config(Options(config=file)), None
    except ConfigError as exc:
        config, mistake = None, str(exc)
    facts = Facts(
        config_mistake=mistake,
        socket_path=socket_path,
        status=told.status if told else None,
        is_running=told is not None,
        version=__version__,
        port_mistake=None,
        hardware=told.hardware if told else None,
        hardware_mistake=None,
        drivers=read_drivers(person_of(told.status.daemon.pid if told else None)),
        disks=_disks_of(told) if told else _disks(config),
        hiding=tuple(f"{name}={os.environ[name]}" for name in VISIBILITY if name in os.environ),
        suspended_s=suspended_s(),
        now=time.time(),
        strangers=_strangers(config, told.names) if told and config else (),
    )
    if told is not None or config is None:
        return facts
    return asyncio.run(_looked(replace(facts, port_mistake=_port_mistake(config)), config))


async def _looked(facts: Facts, config: Config) -> Facts:
    """`facts` with what a daemon would have told."""
    found = await find_engines(
        configured=config.backends, state_dir=Path(config.state_dir), remember=False
    )
    probe = HardwareProbe(found.engines, config.placement, folders=_model_dirs(config))
    hardware, mistake = None, None
    try:
        hardware = await probe.profile()
    except SupervisorError as exc:
        mistake = str(exc)
    catalogue = Catalogue(
        dirs=_model_dirs(config),
        rules=config.models,
        defaults=config.model_defaults,
        own_store=own_store_dir(config.state_dir),
        places=config.places,
    )
    await catalogue.scan()
    status = status_report(
        _nobody(config),
        instances=(),
        hardware=hardware,
        engines=found.engines,
        rejected=found.rejected,
        broken=catalogue.broken,
        now_s=0.0,
    )
    names = [n for m in catalogue.models.values() for n in (m.model_id, *m.aliases)]
    return replace(
        facts,
        status=status,
        hardware=hardware,
        hardware_mistake=mistake,
        strangers=_strangers(config, names),
    )


def _strangers(config: Config, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(unknown_members(config.fleet.groups, names))


def _nobody(config: Config) -> DaemonReport:
    """The daemon that does not run."""
    return DaemonReport(
        version=__version__,
        pid=0,
        started_at=0.0,
        listen=str(config.listen),
        config_file=config.file,
        state_dir=config.state_dir,
        lock=_lock(config),
    )


def _lock(config: Config) -> LockReport:
    """The lock of a daemon that would start here."""
    try:
        return DoorLock(config, is_local=is_local(config.listen)).report()
    except ConfigError as exc:
        return LockReport(
            keys=0,
            keys_file=config.keys_file,
            is_open=False,
            tls_expires_at=None,
            mistake=str(exc),
        )


def _port_mistake(config: Config) -> str | None:
    try:
        for sock in listen_on(config.listen):
            sock.close()
    except CannotListen as exc:
        return str(exc)
    return None


def _disks(config: Config | None) -> tuple[Disk, ...]:
    """Where a daemon started here would keep things; () where nobody knows."""
    if config is None:
        return ()
    state = Disk("state", config.state_dir, _free_bytes(_first_there(config.state_dir)))
    return (state, *(Disk("models", path, _free_bytes(path)) for path in _model_dirs(config)))


def _model_dirs(config: Config) -> tuple[str, ...]:
    """models.dirs, less the daemon's own where it never ran: it makes that one itself."""
    own = own_model_dir(config.state_dir)
    return tuple(path for path in config.model_dirs if path != own or os.path.exists(own))


def _first_there(folder: str) -> str:
    """The folder, or the one in which the daemon will make it."""
    while not os.path.exists(folder) and (above := os.path.dirname(folder)) != folder:
        folder = above
    return folder


def _disks_of(told: Told) -> tuple[Disk, ...]:
    """Where the daemon keeps things, which need not be where one started here would."""
    state_dir = told.status.daemon.state_dir
    models = (Disk("models", each.folder, each.free_bytes) for each in told.hardware.storage)
    return (Disk("state", state_dir, _free_bytes(state_dir)), *models)


def _free_bytes(folder: str) -> int | None:
    return free_bytes(folder) if os.path.isdir(folder) else None
