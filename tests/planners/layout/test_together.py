from collections.abc import Sequence

from msgspec.structs import replace

from planners.hardware import HardwareProfile
from planners.layout.together import Answers, plan_together
from planners.model import ModelId, ServedModel
from planners.placement import plan_launch
from planners.plan import LaunchPlan, Shortfall
from planners.sizes import GIB
from tests.fakes.machines import CPU, CUDA, RULES, machine, model_info, nvidia, served


def models(*layer_mib: int) -> list[ServedModel]:
    return [
        replace(served(model_info(layer_bytes=mib << 20), context=4096), model_id=ModelId(f"m{i}"))
        for i, mib in enumerate(layer_mib)
    ]


def together(
    wanted: Sequence[ServedModel], hardware: HardwareProfile
) -> list[LaunchPlan | Shortfall]:
    answers = plan_together(
        wanted, hardware=hardware, engines=(CPU, CUDA), rules=RULES, promised={}
    )
    assert list(answers) == [model.model_id for model in wanted]
    return list(answers.values())


def test_models_that_fit_together_share_the_cards_and_never_a_byte() -> None:
    hardware = machine(nvidia(0, 12), nvidia(1, 12), host_gib=64)

    plans = together(models(112, 112, 112), hardware)

    for device in hardware.devices:
        used = sum(
            part.upper_bytes
            for plan in plans
            if isinstance(plan, LaunchPlan)
            for part in plan.predicted
            if part.device_id == device.device_id
        )
        assert used <= (device.free_bytes or 0)
    assert all(isinstance(plan, LaunchPlan) for plan in plans)


def test_the_card_goes_to_the_model_that_gains_most_by_it() -> None:
    small, large = together(models(20, 200), machine(nvidia(0, 9), host_gib=64))

    assert isinstance(small, LaunchPlan)
    assert isinstance(large, LaunchPlan)
    assert large.n_gpu_layers == 33
    assert small.predicted_decode_tokens_per_s is not None


def test_what_does_not_fit_beside_the_others_is_said() -> None:
    first, second = together(models(150, 150), machine(host_gib=9))

    assert sorted(type(answer).__name__ for answer in (first, second)) == [
        "LaunchPlan",
        "Shortfall",
    ]
    assert isinstance(first, LaunchPlan)  # of equals the given order


def test_no_models_have_no_plans() -> None:
    assert together([], machine(host_gib=float(GIB >> 30))) == []


def test_what_a_model_lacks_counts_those_before_it_and_none_after_it() -> None:
    hardware = machine(nvidia(0, 8), host_gib=8)
    wanted = models(900, 20)

    large, small = together(wanted, hardware)

    assert isinstance(small, LaunchPlan)
    assert large == plan_launch(
        wanted[0], hardware=hardware, engines=(CPU, CUDA), rules=RULES, promised={}
    )


def twins() -> list[ServedModel]:
    """Two 8B models that leave their contexts to us."""
    return [replace(served(), model_id=ModelId(name)) for name in ("one", "other")]


def test_an_automatic_context_gives_way_to_another_models_layers() -> None:
    hardware = machine(nvidia(0, 12.5))
    alone = plan_launch(twins()[0], hardware=hardware, engines=(CUDA,), rules=RULES, promised={})

    plans = [plan for plan in together(twins(), hardware) if isinstance(plan, LaunchPlan)]

    assert isinstance(alone, LaunchPlan)
    assert alone.context == 32768
    assert [plan.n_gpu_layers for plan in plans] == [33, 33]
    assert all(4096 <= plan.context < 32768 for plan in plans)
    assert any("would push out other models" in str(r) for plan in plans for r in plan.reasons)


def test_contexts_are_as_large_as_alone_where_there_is_room_for_all() -> None:
    plans = [p for p in together(twins(), machine(nvidia(0, 80))) if isinstance(p, LaunchPlan)]

    assert [plan.context for plan in plans] == [32768, 32768]


def test_a_context_that_was_asked_for_gives_way_to_nobody() -> None:
    fixed, free = twins()
    settings = replace(fixed.settings, context=32768)

    plans = together([replace(fixed, settings=settings), free], machine(nvidia(0, 12.5)))

    assert isinstance(plans[0], LaunchPlan)
    assert plans[0].context == 32768


def test_what_running_instances_hold_counts_against_limits() -> None:
    card = replace(nvidia(0, 24), limit_bytes=12 * GIB)
    wanted = models(112, 112)

    free, held = (
        plan_together(
            wanted, hardware=machine(card), engines=(CUDA,), rules=RULES, promised={}, held=bytes_
        )
        for bytes_ in ({}, {card.device_id: 6 * GIB})
    )

    assert layers_on_devices(free) == 66
    assert layers_on_devices(held) < 66


def layers_on_devices(answers: Answers) -> int:
    return sum(plan.n_gpu_layers for plan in answers.values() if isinstance(plan, LaunchPlan))
