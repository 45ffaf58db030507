"""inferenceosd.control: how settings come into force, on real parts that run no model."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inferenceosd.control import Control, Parts
from inferenceosd.door.key_file import add_key
from inferenceosd.door.lock import DoorLock
from inferenceosd.platform_folders import Platform
from inferenceosd.settings.config import Config, Options, read_config
from planners.model import ModelId
from proxy.admin.service import ReloadRefused
from proxy.admission.gate import Management
from proxy.admission.keys import Scope
from proxy.errors import BadRequest, UnknownModel
from supervisor.desired import Desired, Ground
from supervisor.engines.tinymodel import tiny_model
from supervisor.fleet import Fleet
from supervisor.models.catalogue import Catalogue
from supervisor.probe import HardwareProbe
from supervisor.records.journal_file import JournalUnreadable
from supervisor.records.kept import Records, open_records
from supervisor.store.keeper import StoreKeeper
from tests.fakes.machines import machine
from tests.fakes.serving import metrics_of


@dataclass
class House:
    """A control, the file it reads, and the configurations that reached the public door."""

    folder: Path
    doors: list[Config] = field(default_factory=list)
    lock: DoorLock = field(init=False)
    fleet: Fleet = field(init=False)

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
        return Control(config, parts, reread=self.read, listen=["127.0.0.1:11434"])


@pytest.fixture
def house(tmp_path: Path) -> House:
    house = House(tmp_path)
    house.write("")
    return house


@pytest.fixture
async def records(house: House) -> AsyncIterator[Records]:
    async with open_records(house.folder) as records:
        await records.load()
        yield records


@pytest.fixture
def control(house: House, records: Records) -> Control:
    config = house.read()
    catalogue = Catalogue(
        dirs=config.model_dirs, rules=config.models, defaults=config.model_defaults
    )
    return house.control(records, catalogue)


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
    house.write('[server]\nlisten = "127.0.0.1:1"')
    told = [(await control.reload()).needs_restart for _ in range(2)]
    house.write("")
    after = (await control.reload()).needs_restart

    assert told == [("server.listen",)] * 2
    assert after == ()


async def test_a_reload_after_which_no_daemon_would_start_for_want_of_a_key_changes_nothing(
    house: House, control: Control
) -> None:
    house.write('[server]\nlisten = ":11434"\nmax_body = "1MiB"')

    with pytest.raises(ReloadRefused, match="no API key"):
        await control.reload()

    assert house.doors == []
    assert control.config.listen.host == "127.0.0.1"


async def test_a_new_key_locks_the_door_and_a_broken_file_of_keys_leaves_it_locked(
    house: House, control: Control
) -> None:
    path = control.config.keys_file

    add_key(path, name="laptop", scope=Scope.INFER, expires_at=None)
    locked = control.read_lock()
    Path(path).write_text("{")
    broken = control.read_lock()
    with pytest.raises(ReloadRefused, match="it is not what inferenceosctl key writes"):
        await control.reload()

    assert (locked.keys, locked.mistake) == (1, None)
    assert broken.keys == 1
    assert broken.mistake is not None
    assert len(house.doors) == 2
    assert house.lock.gate(Management.OPEN).needs_key


@pytest.mark.parametrize("reloads", [True, False], ids=["the rule is later", "the key is later"])
async def test_a_rule_for_a_keys_name_is_for_who_holds_it(
    house: House, control: Control, reloads: bool
) -> None:
    rule = '[[caller]]\nname = "batch"\npriority = "low"'
    if not reloads:
        house.write(rule)
        await control.reload()
    key, _ = add_key(control.config.keys_file, name="batch", scope=Scope.INFER, expires_at=None)
    control.read_lock()
    if reloads:
        house.write(rule)
        await control.reload()

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(wait_in_line(house.fleet, key.key_id))
        while not (lines := control.status().lines):
            await asyncio.sleep(0)  # cadence
        waiting.cancel()

    assert [(one.caller, one.priority) for one in lines[0].callers] == [(key.key_id, "low")]


async def wait_in_line(fleet: Fleet, caller: str) -> None:
    async with fleet.lease(ModelId("m"), caller=caller):
        pass


async def test_status_names_the_state_folder_in_force(house: House, control: Control) -> None:
    before = control.status().daemon.state_dir
    house.write('[state]\ndir = "elsewhere"')

    report = await control.reload()

    assert report.needs_restart == ("state.dir",)
    assert control.status().daemon.state_dir == before


async def test_a_model_nobody_offers_is_unknown(control: Control) -> None:
    with pytest.raises(UnknownModel):
        await control.load("nope")


async def test_events_of_a_model_that_is_gone_are_still_told(
    control: Control, records: Records
) -> None:
    records.journal.record("instance.stopped", model_id=ModelId("gone"), reason="unused for 5m")

    (event,) = await control.events(name="gone", since_s=None, limit=10)

    assert (event.kind, event.model, event.reason) == ("instance.stopped", "gone", "unused for 5m")


async def test_what_a_sick_journal_held_is_not_told_as_nothing_but_what_happens_is(
    control: Control, records: Records, house: House
) -> None:
    for path in house.folder.rglob("journal.db*"):
        path.unlink()
    (house.folder / "journal.db").mkdir()
    with pytest.raises(JournalUnreadable):
        await control.events(name=None, since_s=None, limit=10)

    following = await control.follow_events(name=None, since_s=None, limit=10)
    first = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)  # it has begun to follow
    records.journal.record("instance.stopped", reason="unused for 5m")
    async with asyncio.timeout(10):
        told = await first

    assert told.event is not None
    assert told.event.reason == "unused for 5m"


async def test_events_of_a_model_that_never_was_are_refused(control: Control) -> None:
    with pytest.raises(UnknownModel):
        await control.events(name="never", since_s=None, limit=10)
    with pytest.raises(UnknownModel):
        await control.follow_log("never", tail=1)


async def test_forgetting_an_unknown_device_names_those_there_are(control: Control) -> None:
    with pytest.raises(BadRequest, match="of a device 'nope'; devices here: host"):
        await control.forget(name=None, device="nope")


async def test_forgetting_is_an_event(control: Control) -> None:
    report = await control.forget(name=None, device=None)

    assert (report.what, report.launches) == ("all", 0)
    assert await kinds(control) == ["history.forgotten"]


async def test_what_callers_made_a_model_grow_to_is_forgotten_with_it(
    control: Control, records: Records
) -> None:
    records.contexts.asked(ModelId("one"), 512)

    report = await control.forget(name=None, device=None)

    assert report.contexts == 1
    assert records.contexts.contexts == {}


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
        ["one", "other"], context=512, parallel=3, hardware=machine(host_gib=8)
    )

    assert [each.served.model_id for each in found] == ["one", "other"]
    assert {each.served.settings.context for each in found} == {512}
    assert {each.served.settings.parallel for each in found} == {3}


async def test_a_model_that_is_named_twice_is_not_planned_beside_itself(
    house: House, control: Control
) -> None:
    models = house.folder / "models"
    models.mkdir()
    (models / "one.gguf").write_bytes(tiny_model())
    house.write(f'[models]\ndirs = ["{models}"]\n[[model]]\nname = "one"\naliases = ["uno"]')
    await control.reload()

    with pytest.raises(BadRequest, match=r"^one is named twice \(one, uno\), and"):
        await control.plan_together(
            ["one", "uno"], context=512, parallel=3, hardware=machine(host_gib=8)
        )


async def test_plans_of_models_that_a_group_keeps_apart_say_so(
    house: House, control: Control
) -> None:
    models = house.folder / "models"
    models.mkdir()
    for name in ("one", "other", "free"):
        (models / f"{name}.gguf").write_bytes(tiny_model())
    group = "[[group]]\nname = 'two'\nmodels = ['one', 'other']"
    house.write(f'[models]\ndirs = ["{models}"]\n{group}')
    await control.reload()

    found = await control.plan_together(
        ["one", "free", "other"], context=512, parallel=1, hardware=machine(host_gib=8)
    )

    assert [each.apart for each in found] == [
        (),
        (),
        ("one and other never run at once: group 'two' runs one model at a time",),
    ]
