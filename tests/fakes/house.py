"""The daemon's real parts, which run no model, in a folder."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from inferenceosd.control import Control
from inferenceosd.door.lock import DoorLock
from inferenceosd.in_force import InForce, Parts
from inferenceosd.platform_folders import Platform
from inferenceosd.settings.config import Config, Options, read_config
from supervisor.desired import Desired, Ground
from supervisor.fleet import Fleet
from supervisor.models.catalogue import Catalogue
from supervisor.probe import HardwareProbe
from supervisor.records.kept import Records
from supervisor.store.keeper import StoreKeeper
from tests.fakes.serving import metrics_of


@dataclass
class House:
    """Settings in force, their file, a control, and what reached the public door of them."""

    folder: Path
    doors: list[Config] = field(default_factory=list)
    lock: DoorLock = field(init=False)
    fleet: Fleet = field(init=False)
    in_force: InForce = field(init=False)

    def write(self, text: str) -> None:
        (self.folder / "config.toml").write_text(text)

    def read(self) -> Config:
        home = str(self.folder)
        platform = Platform(system="linux", is_root=False, home=home, cwd=home)
        options = Options(config="config.toml")
        return read_config(options, environ={"XDG_RUNTIME_DIR": "/run"}, platform=platform)

    def control(self, records: Records, catalogue: Catalogue) -> Control:
        config = self.read()
        probe = HardwareProbe((), config.placement)
        fleet = Fleet(
            Desired((), config.placement, config.fleet),
            catalogue=catalogue,
            probe=probe,
            records=records,
            ground=Ground(self.folder, self.folder, dict(os.environ)),
            heard_bytes=lambda _: 0,
            leaving=lambda _: None,
        )
        self.fleet, self.lock = fleet, DoorLock(config, is_local=True)
        store = StoreKeeper(str(self.folder), offered=fleet.offered, changed=catalogue.scan)
        metrics = metrics_of(fleet)
        parts = Parts(
            fleet, catalogue, probe, records, metrics, self.lock, store, self.doors.append
        )
        self.in_force = InForce(config, parts, reread=self.read)
        return Control(self.in_force, listen=["127.0.0.1:11434"])


async def kinds(control: Control) -> list[str]:
    """What happened, by the journal."""
    return [event.kind for event in await control.events(name=None, since_s=None, limit=10)]
