"""Plans at the edge of the room there is: what fits is launched, what is missing is named."""

from collections.abc import Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, Device, DeviceId, DeviceKind, HardwareProfile
from planners.instances.actions import Start
from planners.layout.dry_runs import (
    NO_DRY_RUNS,
    DryRunKey,
    DryRuns,
    PreflightFailed,
    Reserved,
    Told,
)
from planners.layout.outlook import Surroundings, outlooks
from planners.layout.together import plan_together
from planners.memory import host_overhead_bytes, predict
from planners.model import ModelId, ModelInfo, ServedModel
from planners.placement import NO_FALLBACK, plan_launch
from planners.plan import DeviceBytes, LaunchPlan, Shortfall
from planners.reconcile import reconcile
from planners.settings import PlacementRules
from planners.sizes import KIB, MIB
from tests.fakes.machines import CPU, FLAGS, RULES, VULKAN, engine, machine, model_info, served
from tests.fakes.tiny_models import TinyModel, info_of, tiny_models
from tests.fakes.views import view

MODELS = (*(info_of(model) for model in tiny_models()), model_info(n_layer=6, layer_bytes=40 * MIB))
SMOLLM2 = info_of(
    TinyModel(
        "smollm2", "llama", 576, 30,
        {"attention.head_count": 9, "attention.head_count_kv": 3, "feed_forward_length": 1536},
        n_vocab=49152, n_ctx=8192,
    )
)  # fmt: skip
MEASURING = engine("cpu", flags=FLAGS | {"--fit-target"})


def limited(hardware: HardwareProfile, limit_bytes: int) -> HardwareProfile:
    return replace(hardware, host=replace(hardware.host, limit_bytes=limit_bytes))


def answer(
    hardware: HardwareProfile,
    model: ServedModel,
    *,
    rules: PlacementRules = RULES,
    promised: Mapping[DeviceId, int] | None = None,
) -> LaunchPlan | Shortfall:
    return plan_launch(
        model, hardware=hardware, engines=(CPU, VULKAN), rules=rules, promised=promised or {}
    )


def many_slots() -> ServedModel:
    return served(SMOLLM2, context=256, parallel=64)


def test_every_limit_has_a_plan_or_a_shortfall_with_bytes() -> None:
    least = needs(n_ubatch=32).upper_bytes
    outcomes = {
        mib: answer(limited(machine(), least + mib * MIB), many_slots()) for mib in range(-20, 21)
    }

    for mib, found in outcomes.items():
        if mib < 0:
            assert isinstance(found, Shortfall)
            assert found.missing_bytes == {HOST: -mib * MIB}
        else:
            assert isinstance(found, LaunchPlan), mib


def needs(*, n_ubatch: int) -> DeviceBytes:
    """What that launch takes of the host, without any prompt cache."""
    shape = LaunchShape(256 * 64, 64, n_ubatch, n_ubatch)
    (part,) = predict(SMOLLM2, shape, overhead_bytes={HOST: host_overhead_bytes(SMOLLM2)})
    return part


@pytest.mark.parametrize(
    "model",
    # A processor is as fast for the others, which are mere states.
    [model for model in tiny_models() if not model.name.startswith("state")],
    ids=lambda model: model.name,
)
def test_a_device_that_just_holds_a_model_gets_it_whatever_the_estimate_says(
    model: TinyModel,
) -> None:
    info = info_of(model)
    asked = served(info, context=4096, parallel=2)
    whole = answer(machine(card(0, 8000)), asked)
    assert isinstance(whole, LaunchPlan)
    drawn = {part.device_id: part for part in whole.predicted}[DeviceId("card 0")]

    plan = answer(machine(card(0, (drawn.upper_bytes + 1) / MIB)), asked)

    assert isinstance(plan, LaunchPlan)
    assert plan.n_gpu_layers == info.n_layer + 1


def card(index: int, mib: float, *, bandwidth: float = 400e9) -> Device:
    """A device without overhead."""
    return Device(
        device_id=DeviceId(f"card {index}"),
        kind=DeviceKind.REMOTE,
        name=f"card {index}",
        engine_names=(("vulkan", f"Vulkan{index}"),),
        total_bytes=int(mib * MIB),
        free_bytes=int(mib * MIB),
        bandwidth_bytes_per_s=bandwidth,
    )


@st.composite
def narrow(draw: st.DrawFn) -> tuple[ServedModel, HardwareProfile, PlacementRules]:
    """A small model and a machine of about its size."""
    info: ModelInfo = draw(st.sampled_from(MODELS))
    model = served(
        info,
        context=draw(st.sampled_from([None, 256, 1024, 4096])),
        parallel=draw(st.sampled_from([None, 1, 2, 4, 64])),
    )
    roomy = answer(machine(card(0, 64 << 10), host_gib=64), model)
    assert isinstance(roomy, LaunchPlan)
    whole = sum(part.upper_bytes for part in roomy.predicted if part.device_id != HOST)
    share = st.floats(0, 1.3) | st.floats(0.97, 1.03)
    cards = (
        card(i, whole * draw(share) / MIB + 1, bandwidth=draw(st.sampled_from([30e9, 400e9])))
        for i in range(draw(st.integers(0, 3)))
    )
    base = host_overhead_bytes(info)
    limit = int(base * draw(st.floats(0.9, 1.1)) + whole * draw(share) * draw(st.floats(0, 1)))
    rules = replace(RULES, allows_cpu_fallback=draw(st.booleans()))
    return model, limited(machine(*cards, host_gib=64), limit), rules


def given_more(hardware: HardwareProfile, more: Mapping[DeviceId, int]) -> HardwareProfile:
    host = hardware.host
    grown = replace(
        host,
        total_bytes=host.total_bytes + more.get(HOST, 0),
        available_bytes=host.available_bytes + more.get(HOST, 0),
        limit_bytes=(host.limit_bytes or 0) + more.get(HOST, 0),
    )
    devices = (
        replace(
            device,
            total_bytes=(device.total_bytes or 0) + more.get(device.device_id, 0),
            free_bytes=(device.free_bytes or 0) + more.get(device.device_id, 0),
        )
        for device in hardware.devices
    )
    return replace(hardware, host=grown, devices=tuple(devices))


@settings(max_examples=60, deadline=None)
@given(narrow())
def test_a_plan_fits_and_a_shortfall_says_what_makes_it_one(
    case: tuple[ServedModel, HardwareProfile, PlacementRules],
) -> None:
    model, hardware, rules = case

    found = answer(hardware, model, rules=rules)

    if isinstance(found, LaunchPlan):
        rooms = {device.device_id: device.free_bytes or 0 for device in hardware.devices}
        rooms[HOST] = hardware.host.limit_bytes or 0
        assert all(part.upper_bytes <= rooms[part.device_id] for part in found.predicted)
    elif not found.missing_bytes:
        assert found.reason == NO_FALLBACK
        assert not rules.allows_cpu_fallback
    else:
        assert all(n_bytes > 0 for n_bytes in found.missing_bytes.values())
        roomier = given_more(hardware, found.missing_bytes)
        assert isinstance(answer(roomier, model, rules=rules), LaunchPlan)
        given_back = {device: -n_bytes for device, n_bytes in found.missing_bytes.items()}
        evicted = answer(hardware, model, rules=rules, promised=given_back)
        assert isinstance(evicted, LaunchPlan)


@settings(max_examples=60, deadline=None)
@given(narrow(), st.lists(st.integers(0, 40 * MIB), min_size=4, max_size=4))
def test_more_memory_never_turns_a_plan_into_a_shortfall(
    case: tuple[ServedModel, HardwareProfile, PlacementRules], more: list[int]
) -> None:
    model, hardware, rules = case
    assume(isinstance(answer(hardware, model, rules=rules), LaunchPlan))
    places = [HOST, *(device.device_id for device in hardware.devices)]

    roomier = given_more(hardware, dict(zip(places, more, strict=False)))

    assert isinstance(answer(roomier, model, rules=rules), LaunchPlan)


@pytest.mark.parametrize(
    ("name", "card_bytes", "limit_bytes", "more_bytes"),
    [
        # One layer more on the host leaves its buffers no room: it has to be seen beforehand.
        ("state-2", 114_327_720, 133_701_674, 526_137),
        # Part of it on a device as slow as the host seems faster until its graph is drawn.
        ("delta", 196_864_495, 111_968_256, 13_743_376),
    ],
)
def test_what_the_host_has_more_never_costs_the_device_its_layers(
    name: str, card_bytes: int, limit_bytes: int, more_bytes: int
) -> None:
    info = info_of(next(model for model in tiny_models() if model.name == name))
    slow = machine(card(0, card_bytes / MIB, bandwidth=30e9), host_gib=64)
    rules = replace(RULES, allows_cpu_fallback=False)
    many = served(info, context=256, parallel=64)

    for limit in (limit_bytes, limit_bytes + more_bytes):
        plan = answer(limited(slow, limit), many, rules=rules)
        assert isinstance(plan, LaunchPlan)
        assert plan.n_gpu_layers == info.n_layer + 1


def in_doubt(
    limit_bytes: int, dry_runs: DryRuns, model: ServedModel | None = None
) -> LaunchPlan | Shortfall:
    return plan_launch(
        model or many_slots(),
        hardware=limited(machine(), limit_bytes),
        engines=(MEASURING,),
        rules=RULES,
        promised={},
        dry_runs=dry_runs,
    )


WIDE = 256
DOUBTED = needs(n_ubatch=WIDE).total_bytes + 10 * KIB
ASKING = DryRuns(are_made=True)


def told(n_bytes: int) -> DryRuns:
    """That the doubted launch reserves so much."""
    plan = in_doubt(DOUBTED, ASKING)
    assert isinstance(plan, LaunchPlan)
    assert plan.doubt is not None
    return replace(ASKING, told={plan.doubt: {HOST: Reserved(n_bytes - KIB, n_bytes + KIB)}})


def reserved_bytes() -> int:
    """The doubted launch's compute buffer, without the output buffer."""
    outputs = 4 * 64 * SMOLLM2.n_vocab
    return needs(n_ubatch=WIDE).compute_bytes - outputs


def test_what_fits_by_the_estimate_alone_is_in_doubt_where_a_dry_run_can_tell() -> None:
    with_dry_runs, without = in_doubt(DOUBTED, ASKING), in_doubt(DOUBTED, NO_DRY_RUNS)
    sure = in_doubt(needs(n_ubatch=WIDE).upper_bytes, ASKING)

    assert isinstance(with_dry_runs, LaunchPlan)
    assert isinstance(without, LaunchPlan)
    assert isinstance(sure, LaunchPlan)
    assert with_dry_runs.doubt is not None
    assert any("a dry run of the engine decides" in reason.text for reason in with_dry_runs.reasons)
    assert (without.doubt, sure.doubt) == (None, None)
    assert (with_dry_runs.n_ubatch, without.n_ubatch, sure.n_ubatch) == (WIDE, 128, WIDE)


def crowded() -> tuple[ServedModel, ServedModel, HardwareProfile]:
    """Two models, and a host on which the second fits by the estimate alone."""
    one, other = (replace(many_slots(), model_id=ModelId(name)) for name in ("one", "other"))
    first = in_doubt(2 * DOUBTED, NO_DRY_RUNS, one)
    assert isinstance(first, LaunchPlan)
    return one, other, limited(machine(), first.predicted[0].upper_bytes + DOUBTED)


def test_a_dry_run_decides_of_models_that_are_planned_beside_each_other_too() -> None:
    one, other, hardware = crowded()

    plans = plan_together(
        (one, other), hardware=hardware, engines=(MEASURING,), rules=RULES, promised={},
        dry_runs=ASKING,
    )  # fmt: skip

    sure, doubted = plans.values()
    assert isinstance(sure, LaunchPlan)
    assert isinstance(doubted, LaunchPlan)
    assert sure.doubt is None
    assert doubted.doubt is not None
    assert outlooks_of(one, other, hardware=hardware) == [sure, doubted]


def outlooks_of(*models: ServedModel, hardware: HardwareProfile) -> list[LaunchPlan | Shortfall]:
    around = Surroundings((MEASURING,), RULES, {}, {}, dry_runs=ASKING)
    return [each.answer for each in outlooks(models, hardware, around)]


def test_models_wanted_at_once_are_launched_in_doubt_where_the_second_is() -> None:
    *models, hardware = crowded()
    pinned = [replace(m, settings=replace(m.settings, pin=True)) for m in models]
    world = view(*pinned, machine=hardware, engines=(MEASURING,))

    starts = reconcile(replace(world, rules=RULES, dry_runs=ASKING), now_s=0.0)

    assert [s.plan.doubt is not None for s in starts if isinstance(s, Start)] == [False, True]


def test_a_confirmed_launch_goes_ahead_with_what_was_told() -> None:
    plan = in_doubt(DOUBTED, told(reserved_bytes()))

    assert isinstance(plan, LaunchPlan)
    assert (plan.n_ubatch, plan.doubt) == (WIDE, None)
    assert plan.predicted[0].margin_bytes <= 2 * KIB
    assert any("as a dry run of the engine told" in reason.text for reason in plan.reasons)


def test_a_refused_launch_gives_way_to_the_next_concession_and_says_so() -> None:
    plan = in_doubt(DOUBTED, told(reserved_bytes() + MIB))

    assert isinstance(plan, LaunchPlan)
    assert plan.n_ubatch == 128
    assert any(
        reason.text.startswith("refused by a dry run: context 256 × 64") for reason in plan.reasons
    )


@pytest.mark.parametrize(
    "dry_runs",
    [
        pytest.param(replace(ASKING, spent=frozenset({many_slots().model_id})), id="spent"),
        pytest.param("failed", id="failed"),
    ],
)
def test_where_no_dry_run_tells_the_upper_bound_decides(dry_runs: DryRuns | str) -> None:
    if isinstance(dry_runs, str):
        (key,) = told(0).told
        dry_runs = replace(ASKING, told={key: PreflightFailed("it hung")})

    plan = in_doubt(DOUBTED, dry_runs)

    assert isinstance(plan, LaunchPlan)
    assert (plan.n_ubatch, plan.doubt) == (128, None)


def test_a_shortfall_counts_what_a_dry_run_told() -> None:
    smallest = needs(n_ubatch=32)
    limit_bytes = smallest.total_bytes + KIB
    known: dict[DryRunKey, Told | PreflightFailed] = {}
    while isinstance(plan := in_doubt(limit_bytes, replace(ASKING, told=known)), LaunchPlan):
        assert plan.doubt is not None
        known[plan.doubt] = {HOST: Reserved(400 * MIB, 400 * MIB)}

    assert plan.missing_bytes[HOST] > 300 * MIB


def test_an_engine_that_cannot_measure_leaves_no_doubt() -> None:
    plan = plan_launch(
        many_slots(),
        hardware=limited(machine(), DOUBTED),
        engines=(CPU,),
        rules=RULES,
        promised={},
        dry_runs=ASKING,
    )

    assert isinstance(plan, LaunchPlan)
    assert plan.doubt is None


def test_a_projector_keeps_its_margin_beside_what_was_told() -> None:
    seeing = served(
        SMOLLM2, context=256, parallel=64, mmproj_path="/m/mmproj.gguf", companion_bytes=100 * MIB
    )
    limit_bytes = needs(n_ubatch=WIDE).total_bytes + 150 * MIB + 10 * KIB

    doubted = in_doubt(limit_bytes, ASKING, seeing)
    assert isinstance(doubted, LaunchPlan)
    assert doubted.doubt is not None
    known = {doubted.doubt: {HOST: Reserved(reserved_bytes(), reserved_bytes())}}
    confirmed = in_doubt(limit_bytes, replace(ASKING, told=known), seeing)
    less = in_doubt(limit_bytes - 40 * MIB, ASKING, seeing)

    assert isinstance(less, Shortfall)  # no dry run would tell what the projector takes
    assert isinstance(confirmed, LaunchPlan)
    assert confirmed.predicted[0].margin_bytes >= 50 * MIB
