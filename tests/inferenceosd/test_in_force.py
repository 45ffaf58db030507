"""inferenceosd.in_force: how settings come into force, on real parts that run no model."""

import asyncio
from pathlib import Path

import pytest

from inferenceosd.control import Control
from inferenceosd.door.key_file import add_key
from inferenceosd.in_force import InForce
from planners.model import ModelId
from planners.waiting.line import Priority
from proxy.admin.service import ReloadRefused
from proxy.admission.gate import Management
from proxy.admission.keys import Scope
from supervisor.fleet import Fleet
from tests.fakes.house import House, kinds


async def test_a_changed_setting_reaches_the_door_and_the_journal(
    house: House, in_force: InForce, control: Control
) -> None:
    house.write('[server]\nmax_body = "1MiB"')

    report = await in_force.reload()

    assert report.changed == ("server.max_body changed",)
    assert [config.max_body_bytes for config in house.doors] == [1 << 20]
    assert await kinds(control) == ["config.reloaded"]


async def test_a_wrong_file_changes_nothing_and_is_remembered(
    house: House, in_force: InForce, control: Control
) -> None:
    house.write("[servr]")

    with pytest.raises(ReloadRefused, match=r"config\.toml:1: servr: unknown key"):
        await in_force.reload()

    assert house.doors == []
    assert await kinds(control) == ["config.refused"]


async def test_what_waits_for_a_new_daemon_is_told_at_each_reload_until_it_is_taken_back(
    house: House, in_force: InForce
) -> None:
    house.write('[server]\nlisten = "127.0.0.1:1"')
    told = [(await in_force.reload()).needs_restart for _ in range(2)]
    house.write("")
    after = (await in_force.reload()).needs_restart

    assert told == [("server.listen",)] * 2
    assert after == ()


async def test_a_reload_after_which_no_daemon_would_start_for_want_of_a_key_changes_nothing(
    house: House, in_force: InForce
) -> None:
    house.write('[server]\nlisten = ":11434"\nmax_body = "1MiB"')

    with pytest.raises(ReloadRefused, match="no API key"):
        await in_force.reload()

    assert house.doors == []
    assert in_force.config.listen.host == "127.0.0.1"


async def test_a_new_key_locks_the_door_and_a_broken_file_of_keys_leaves_it_locked(
    house: House, in_force: InForce
) -> None:
    path = in_force.config.keys_file

    add_key(path, name="laptop", scope=Scope.INFER, expires_at=None)
    locked = in_force.read_lock()
    Path(path).write_text("{")
    broken = in_force.read_lock()
    with pytest.raises(ReloadRefused, match="it is not what inferenceosctl key writes"):
        await in_force.reload()

    assert (locked.keys, locked.mistake) == (1, None)
    assert broken.keys == 1
    assert broken.mistake is not None
    assert len(house.doors) == 2
    assert house.lock.gate(Management.OPEN).needs_key


@pytest.mark.parametrize("reloads", [True, False], ids=["the rule is later", "the key is later"])
async def test_a_rule_for_a_keys_name_is_for_who_holds_it(
    house: House, in_force: InForce, reloads: bool
) -> None:
    rule = '[[caller]]\nname = "batch"\npriority = "low"'
    if not reloads:
        house.write(rule)
        await in_force.reload()
    key, _ = add_key(in_force.config.keys_file, name="batch", scope=Scope.INFER, expires_at=None)
    in_force.read_lock()
    if reloads:
        house.write(rule)
        await in_force.reload()

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(wait_in_line(house.fleet, key.key_id))
        while not (lines := house.fleet.lines()):
            await asyncio.sleep(0)  # cadence
        waiting.cancel()

    assert [(one.caller, one.priority) for one in lines[0].callers] == [(key.key_id, Priority.LOW)]


async def wait_in_line(fleet: Fleet, caller: str) -> None:
    async with fleet.lease(ModelId("m"), caller=caller):
        pass
