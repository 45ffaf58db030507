"""inferenceosd.control: how settings come into force, on real parts that run no model."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inferenceosd.config import Config, Options, read_config
from inferenceosd.control import Control, Parts
from inferenceosd.platform_folders import Platform
from proxy.admin import ReloadRefused
from proxy.errors import UnknownModel
from supervisor.catalogue import Catalogue
from supervisor.desired import Desired, Ground
from supervisor.fleet import Fleet
from supervisor.journal import Journal, open_journal
from supervisor.probe import HardwareProbe
from supervisor.tinymodel import tiny_model
from tests.fakes.machines import machine


@dataclass
class House:
    """A control, the file it reads, and the configurations that reached the public door."""

    folder: Path
    doors: list[Config] = field(default_factory=list)

    def write(self, text: str) -> None:
        (self.folder / "config.toml").write_text(text)

    def read(self) -> Config:
        home = str(self.folder)
        platform = Platform(system="linux", is_root=False, home=home, cwd=home)
        options = Options(config="config.toml")
        return read_config(options, environ={"XDG_RUNTIME_DIR": "/run"}, platform=platform)

    def control(self, journal: Journal, catalogue: Catalogue) -> Control:
        config = self.read()
        probe = HardwareProbe((), config.placement)
        fleet = Fleet(
            Desired((), config.placement, config.fleet),
            catalogue=catalogue,
            probe=probe,
            journal=journal,
            ground=Ground(self.folder, self.folder, dict(os.environ)),
            leaving=lambda _: None,
        )
        parts = Parts(fleet, catalogue, probe, journal, self.doors.append)
        return Control(config, parts, reread=self.read, listen=["127.0.0.1:11434"])


@pytest.fixture
def house(tmp_path: Path) -> House:
    house = House(tmp_path)
    house.write("")
    return house


@pytest.fixture
async def control(house: House) -> AsyncIterator[Control]:
    config = house.read()
    async with open_journal(house.folder / "journal.db") as journal:
        catalogue = Catalogue(
            dirs=config.model_dirs, rules=config.models, defaults=config.model_defaults
        )
        yield house.control(journal, catalogue)


async def kinds(control: Control) -> list[str]:
    return [event.kind for event in await control.events(name=None, since_s=None, limit=10)]


async def test_a_changed_setting_reaches_the_door_and_the_journal(
    house: House, control: Control
) -> None:
    house.write('[server]\nmax_body = "1MiB"')

    report = await control.reload()

    assert report.changed == ("server.max_body changed",)
    assert [config.max_body_bytes for config in house.doors] == [1 << 20]
    assert await kinds(control) == ["config.reloaded"]


async def test_a_wrong_file_changes_nothing_and_is_remembered(
    house: House, control: Control
) -> None:
    house.write("[servr]")

    with pytest.raises(ReloadRefused, match=r"config\.toml:1: servr: unknown key"):
        await control.reload()

    assert house.doors == []
    assert await kinds(control) == ["config.refused"]


async def test_what_waits_for_a_new_daemon_is_told_at_each_reload_until_it_is_taken_back(
    house: House, control: Control
) -> None:
    house.write('[server]\nlisten = ":1"')
    told = [(await control.reload()).needs_restart for _ in range(2)]
    house.write("")
    after = (await control.reload()).needs_restart

    assert told == [("server.listen",)] * 2
    assert after == ()


async def test_status_names_the_state_folder_in_force(house: House, control: Control) -> None:
    before = control.status().daemon.state_dir
    house.write('[state]\ndir = "elsewhere"')

    report = await control.reload()

    assert report.needs_restart == ("state.dir",)
    assert control.status().daemon.state_dir == before


async def test_a_model_nobody_offers_is_unknown(control: Control) -> None:
    with pytest.raises(UnknownModel):
        await control.load("nope")


async def test_a_model_that_is_named_twice_is_planned_once_and_as_was_asked(
    house: House, control: Control
) -> None:
    models = house.folder / "models"
    models.mkdir()
    for name in ("one", "other"):
        (models / f"{name}.gguf").write_bytes(tiny_model())
    house.write(f'[models]\ndirs = ["{models}"]')
    await control.reload()

    found = await control.plan_together(
        ["one", "other", "one"], context=512, parallel=3, hardware=machine(host_gib=8)
    )

    assert [each.served.model_id for each in found] == ["one", "other"]
    assert {each.served.settings.context for each in found} == {512}
    assert {each.served.settings.parallel for each in found} == {3}
