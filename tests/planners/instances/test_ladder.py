"""Launches against a machine that has less than it says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.instances.exits import Cause, ExitKind
from planners.instances.ladder import MOST_TRIES, Rung, RungKey, next_rung, rung_of, starved
from planners.layout.budget import budgets
from planners.lessons.samples import NOTHING_LEARNED, Learned
from planners.model import ServedModel
from planners.placement import plan_launch
from planners.plan import LaunchPlan, Shortfall
from planners.sizes import GIB, MIB
from tests.fakes.machines import RULES, engine, machine, model_info, nvidia, served

ENGINE = engine("cuda")
CARD = nvidia(0, 12)
GPU = CARD.device_id
MACHINE = machine(CARD, host_gib=64)
MODEL = served(model_info(n_layer=32, layer_bytes=GIB // 4))


def planned(rung: Rung, model: ServedModel = MODEL) -> LaunchPlan | Shortfall:
    return plan_launch(
        model,
        hardware=MACHINE,
        engines=(ENGINE,),
        rules=RULES,
        promised={},
        learned=on(rung, model),
    )


def on(rung: Rung, model: ServedModel) -> Learned:
    return replace(NOTHING_LEARNED, rungs={RungKey(model.info.digest, ENGINE.engine_id): rung})


def room(plan: LaunchPlan, hardware: HardwareProfile = MACHINE) -> dict[DeviceId, int]:
    found = budgets(hardware, backend=plan.backend, promised={}, held={})
    return {part.device_id: found.room_bytes(part.device_id) for part in plan.predicted}


def died(line: str, kind: ExitKind = ExitKind.DEVICE_OOM) -> Cause:
    return Cause(kind, f"out of device memory: {line} (exit code 1)", 1, (line,))


REFUSED = died("alloc_tensor_range: failed to allocate CUDA0 buffer of size 9218949120")


def climbed(capacity_bytes: int) -> tuple[list[LaunchPlan], Rung]:
    """Every plan tried on a card that has only so much, and the rung of the last one."""
    tried, rung = list[LaunchPlan](), Rung()
    while isinstance(plan := planned(rung), LaunchPlan):
        tried.append(plan)
        if plan.bytes_on(GPU) <= capacity_bytes:
            break
        below = next_rung(rung, plan, REFUSED, room_bytes=room(plan), tries=len(tried) - 1)
        if below is None:
            break
        rung = below
    return tried, rung


def test_each_try_asks_a_device_that_refused_for_less() -> None:
    tried, _ = climbed(capacity_bytes=6 * GIB)

    asked = [plan.bytes_on(GPU) for plan in tried]
    assert len(tried) > 1
    assert asked == sorted(asked, reverse=True)
    assert len(set(asked)) == len(asked)
    assert 0 < asked[-1] <= 6 * GIB


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 12))
def test_a_ladder_ends_within_its_tries_in_a_plan_that_the_card_holds(capacity_gib: int) -> None:
    tried, _ = climbed(capacity_bytes=capacity_gib * GIB)

    assert len(tried) <= MOST_TRIES + 1
    assert tried[-1].bytes_on(GPU) <= capacity_gib * GIB


def test_a_remembered_rung_starts_where_the_ladder_ended() -> None:
    tried, rung = climbed(capacity_bytes=6 * GIB)

    remembered = rung_of(rung.text())

    assert remembered is not None
    assert planned(remembered) == tried[-1]
    assert any("cannot be had" in str(reason) for reason in tried[-1].reasons)


def test_what_the_operator_fixed_is_a_shortfall_rather_than_less_than_asked() -> None:
    fixed = replace(MODEL, settings=replace(MODEL.settings, context=8192, parallel=4))
    rung = Rung({GPU: 12 * GIB, HOST: 64 * GIB})

    assert isinstance(planned(rung, fixed), Shortfall)


def test_memory_that_comes_back_is_used_again() -> None:
    _, rung = climbed(capacity_bytes=6 * GIB)
    larger = replace(MACHINE, devices=(nvidia(0, 24),))

    plan = plan_launch(
        MODEL,
        hardware=larger,
        engines=(ENGINE,),
        rules=RULES,
        promised={},
        learned=on(rung, MODEL),
    )

    assert isinstance(plan, LaunchPlan)
    assert plan.bytes_on(GPU) > 6 * GIB


@pytest.mark.parametrize(
    ("cause", "devices"),
    [
        pytest.param(REFUSED, {GPU}, id="named"),
        pytest.param(died("CUDA error: out of memory"), {GPU}, id="unnamed: all of the plan's"),
        pytest.param(
            died("failed to allocate CPU buffer of size 7", ExitKind.HOST_OOM), {HOST}, id="host"
        ),
        pytest.param(died("killed", ExitKind.KILLED), {HOST}, id="killed, as the kernel does"),
        pytest.param(died("SIGSEGV", ExitKind.CRASH), {GPU}, id="without a word"),
        pytest.param(died("no such file", ExitKind.BAD_MODEL), set(), id="not of memory"),
    ],
)
def test_the_line_tells_whose_memory_ran_out(cause: Cause, devices: set[DeviceId]) -> None:
    plan = planned(Rung())
    assert isinstance(plan, LaunchPlan)

    assert starved(plan, cause) == devices


def test_the_prompt_cache_is_no_part_of_what_a_load_died_of() -> None:
    cpu = served(model_info(n_layer=32, layer_bytes=GIB // 4))
    plan = plan_launch(
        cpu, hardware=machine(host_gib=64), engines=(engine("cpu"),), rules=RULES, promised={}
    )
    assert isinstance(plan, LaunchPlan)
    assert plan.cache_ram_mib > 0
    cause = died("failed to allocate CPU buffer of size 7", ExitKind.HOST_OOM)

    rung = next_rung(Rung(), plan, cause, room_bytes=room(plan, machine(host_gib=64)), tries=0)

    assert rung is not None
    below = plan_launch(
        cpu,
        hardware=machine(host_gib=64),
        engines=(engine("cpu"),),
        rules=RULES,
        promised=rung.hidden_bytes,
    )
    assert not isinstance(below, LaunchPlan) or (
        below.predicted[0].buffer_bytes < plan.predicted[0].buffer_bytes
    )


@given(st.dictionaries(st.sampled_from([GPU, HOST]), st.integers(1, 1 << 49), min_size=1))
def test_a_rung_survives_being_written_down(hidden: dict[DeviceId, int]) -> None:
    assert rung_of(Rung(hidden).text()) == Rung(hidden)


@pytest.mark.parametrize("text", [None, "", "gpu", "gpu=", "=1", "gpu=-1", f"gpu={1 << 51}"])
def test_rubbish_is_no_rung(text: str | None) -> None:
    assert rung_of(text) is None


def test_a_rung_says_what_it_hides() -> None:
    (reason,) = Rung({HOST: 512 * MIB}).reasons()

    assert "512.0 MiB on host" in reason.text
