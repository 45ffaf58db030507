"""inferenceosd.control: what is asked and told to be done, on real parts that run no model."""

import asyncio

import pytest

from inferenceosd.control import Control
from planners.model import ModelId
from proxy.errors import BadRequest, UnknownModel
from supervisor.engines.tinymodel import tiny_model
from supervisor.records.journal_file import JournalUnreadable
from supervisor.records.kept import Records
from tests.fakes.house import House, kinds
from tests.fakes.machines import machine


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
