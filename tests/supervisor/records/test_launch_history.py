import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from planners.hardware import HOST, DeviceId
from planners.instances.ladder import Rung
from planners.lessons.samples import LaunchSample, key_of
from planners.lessons.usage import Usage
from planners.model import ModelId
from planners.placement import plan_launch
from planners.plan import DeviceBytes, InstanceId, LaunchPlan
from planners.sizes import GIB, MIB
from planners.view import InstanceState
from supervisor.records.journal import open_journal
from supervisor.records.launch_history import LaunchHistory, anonymous_bytes, with_process
from tests.fakes.admin_service import GPU, HARDWARE, PLAN, READY
from tests.fakes.machines import CPU, LLAMA_8B, RULES, machine, served

M = PLAN.model_id
READY_SAMPLE = LaunchSample(
    "1", 1.0, M, key_of(PLAN), PLAN.context, "ready", PLAN.predicted, READY.measured, load_s=3.5
)


def plan_here() -> LaunchPlan:
    plan = plan_launch(
        served(context=4096), hardware=machine(), engines=(CPU,), rules=RULES, promised={}
    )
    assert isinstance(plan, LaunchPlan)
    return plan


@pytest.fixture
async def history(tmp_path: Path) -> AsyncIterator[LaunchHistory]:
    async with open_journal(tmp_path / "journal.db") as journal:
        yield LaunchHistory(journal)


def serve(history: LaunchHistory, times: int) -> None:
    for _ in range(times):
        history.served(
            Usage(960, 40.0, 128, 32.0), hardware=machine(), model=LLAMA_8B, plan=plan_here()
        )


async def test_what_was_learned_outlives_the_daemon(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        history = LaunchHistory(journal)
        history.launched(READY_SAMPLE)
        serve(history, 3)

    async with open_journal(tmp_path / "journal.db") as journal:
        again = LaunchHistory(journal)
        await again.load()

    lesson = again.learned.lessons[key_of(PLAN)]
    assert (lesson.launches, lesson.measured, lesson.load_s) == (1, READY.measured, 3.5)
    assert again.learned.lessons[key_of(plan_here())].decode_tokens_per_s == 4.0
    assert again.learned.requests == {HOST: 3}


async def test_a_launch_that_died_after_it_was_ready_counts_once(history: LaunchHistory) -> None:
    history.launched(READY_SAMPLE)
    history.launched(replace(READY_SAMPLE, outcome="died", cause="SIGSEGV"))

    assert history.learned.lessons[key_of(PLAN)].launches == 1


@pytest.mark.parametrize(
    ("model_id", "device", "is_left"),
    [
        (M, None, False),
        (ModelId("other"), None, True),
        (None, GPU, False),
        (None, HOST, True),
        (None, None, False),
    ],
    ids=["its model", "another model", "its device", "another device", "all"],
)
async def test_what_is_forgotten_stays_forgotten(
    tmp_path: Path, model_id: ModelId | None, device: DeviceId | None, is_left: bool
) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        history = LaunchHistory(journal)
        history.launched(READY_SAMPLE)
        gone = await history.forget(model_id=model_id, device=device)
        again = LaunchHistory(journal)
        await again.load()

    assert gone == (0 if is_left else 1, 0)
    assert (key_of(PLAN) in history.learned.lessons) is is_left
    assert (key_of(PLAN) in again.learned.lessons) is is_left


async def test_the_rung_that_a_launch_climbed_down_to_outlives_the_daemon(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal.db") as journal:
        history = LaunchHistory(journal)
        for launch, hidden_bytes in (("1", GIB), ("2", 2 * GIB)):
            rung = Rung({HOST: hidden_bytes}).text()
            history.launched(replace(READY_SAMPLE, launch=launch, rung=rung))

    async with open_journal(tmp_path / "journal.db") as journal:
        again = LaunchHistory(journal)
        await again.load()

    assert again.rung_of(PLAN) == Rung({HOST: 2 * GIB})
    assert again.rung_of(replace(PLAN, engine_id="another")) == Rung()


async def test_a_rung_is_forgotten_with_its_model(history: LaunchHistory) -> None:
    history.launched(replace(READY_SAMPLE, rung=Rung({HOST: GIB}).text()))

    await history.forget(model_id=M)

    assert history.rung_of(PLAN) == Rung()


async def test_a_drivers_memory_is_what_a_device_lost_beyond_the_buffers(
    history: LaunchHistory,
) -> None:
    card = replace(HARDWARE.devices[0], free_bytes=20 * GIB)
    before = replace(HARDWARE, devices=(card,))
    buffers = READY.measured[0].buffer_bytes
    after = replace(HARDWARE, devices=(replace(card, free_bytes=20 * GIB - buffers - 300 * MIB),))
    loading = replace(READY, state=InstanceState.LOADING)

    history.began(READY.instance_id, before, [loading])
    history.launched(READY_SAMPLE)
    history.saw(after, [loading])
    history.saw(after, [READY])

    (part,) = history.learned.lessons[key_of(PLAN)].measured
    assert part.overhead_bytes == 300 * MIB


async def test_nothing_is_told_of_a_driver_while_other_launches_come_and_go(
    history: LaunchHistory,
) -> None:
    other = replace(READY, instance_id=InstanceId("i9"), pid=99, state=InstanceState.LOADING)
    history.began(READY.instance_id, HARDWARE, [READY, other])
    history.launched(READY_SAMPLE)
    history.saw(HARDWARE, [READY, replace(other, state=InstanceState.READY)])

    (part,) = history.learned.lessons[key_of(PLAN)].measured
    assert part.overhead_bytes == 0


def test_a_process_takes_what_no_file_backs() -> None:
    held = bytearray(os.urandom(64 * MIB))

    taken = anonymous_bytes(os.getpid())

    assert taken is not None
    assert taken > len(held)
    assert anonymous_bytes(2**22 + 1) is None


def test_pages_of_the_models_file_are_no_part_of_a_process() -> None:
    host = DeviceBytes(HOST, 92 * MIB, 180 * MIB, 2 * MIB)

    (part,) = with_process((host,), 212 * MIB, weights=0)

    assert part.overhead_bytes == 30 * MIB
