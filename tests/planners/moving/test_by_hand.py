"""The launch that an operator spells out."""

import pytest
from msgspec.structs import replace

from planners.hardware import HOST
from planners.lessons.samples import NOTHING_LEARNED
from planners.moving.by_hand import BadMove, ByHand, moved_by_hand
from planners.moving.migration import shape_of
from planners.placement import plan_launch
from planners.plan import LaunchPlan
from tests.fakes.machines import CUDA, RULES, machine, nvidia, served

BOTH = machine(nvidia(0, 24.0), nvidia(1, 24.0))
FIRST, SECOND = (device.device_id for device in BOTH.devices)
LLAMA = served(context=8192, parallel=2)


def running() -> LaunchPlan:
    plan = plan_launch(LLAMA, hardware=BOTH, engines=(CUDA,), rules=RULES, promised={})
    assert isinstance(plan, LaunchPlan)
    assert plan.devices == ((FIRST, "CUDA0", 33),)
    return plan


def moved(told: ByHand, *, source: LaunchPlan | None = None) -> LaunchPlan:
    return moved_by_hand(
        source or running(),
        told,
        LLAMA,
        hardware=BOTH,
        engines=(CUDA,),
        order=RULES.backends,
        promised={},
        held={},
        learned=NOTHING_LEARNED,
    )


def test_what_is_not_named_stays_as_it_runs() -> None:
    plan = moved(ByHand(layers=10))

    assert plan.devices == ((FIRST, "CUDA0", 10),)
    assert plan.n_gpu_layers == 10
    kept = ("type_k", "type_v", "flash_attn", "n_ctx", "n_parallel", "n_batch", "swa_full")
    assert all(getattr(plan, name) == getattr(running(), name) for name in kept)


def test_its_memory_and_speed_are_predicted_as_those_of_any_launch() -> None:
    plan = moved(ByHand(layers=10))

    assert plan.bytes_on(FIRST) < running().bytes_on(FIRST)
    assert plan.bytes_on(HOST) > running().bytes_on(HOST)
    before, now = running().predicted_decode_tokens_per_s, plan.predicted_decode_tokens_per_s
    assert before is not None
    assert now is not None
    assert now < before


def test_what_placement_chose_is_predicted_the_same_by_hand() -> None:
    same = moved(ByHand(layers=33))

    assert same.predicted[1:] == running().predicted[1:]
    assert same.digest == running().digest


@pytest.mark.parametrize(
    ("told", "split"),
    [
        (ByHand(devices=("CUDA1",)), ((SECOND, 33),)),
        (ByHand(devices=(SECOND,)), ((SECOND, 33),)),
        (ByHand(devices=("cuda0", "cuda1")), ((FIRST, 17), (SECOND, 16))),
        (ByHand(devices=("cuda0", "cuda1"), tensor_split=(3, 1)), ((FIRST, 25), (SECOND, 8))),
        (ByHand(devices=("cuda0", "cuda1"), layers=11), ((FIRST, 6), (SECOND, 5))),
        (ByHand(layers=0), ()),
        (ByHand(layers=1000), ((FIRST, 33),)),
    ],
)
def test_layers_are_dealt_out_as_told(told: ByHand, split: tuple[tuple[str, int], ...]) -> None:
    assert shape_of(moved(told)).split == split


def test_a_context_and_slots_are_as_told() -> None:
    plan = moved(ByHand(context=4096, parallel=4))

    assert (plan.context, plan.n_parallel) == (4096, 4)


def test_layers_come_back_to_devices_from_the_processor() -> None:
    alone = moved(ByHand(layers=0))

    plan = moved(ByHand(layers=20, devices=("CUDA0",)), source=alone)

    assert plan.devices == ((FIRST, "CUDA0", 20),)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (ByHand(devices=("CUDA7",)), "no device CUDA7"),
        (ByHand(tensor_split=(1, 1)), "2 shares do not go with 1 devices"),
        (ByHand(parallel=1000), "1000 slots are more than the 256"),
        (ByHand(context=1 << 20), "more than the 131072 it was trained for"),
    ],
)
def test_what_cannot_be_is_said(told: ByHand, why: str) -> None:
    with pytest.raises(BadMove, match=why):
        moved(told)


def test_a_device_that_may_not_be_used_is_not() -> None:
    barred = replace(BOTH, devices=(BOTH.devices[0], replace(BOTH.devices[1], use=False)))

    with pytest.raises(BadMove, match="may not be used"):
        moved_by_hand(
            running(),
            ByHand(devices=("CUDA1",)),
            LLAMA,
            hardware=barred,
            engines=(CUDA,),
            order=RULES.backends,
            promised={},
            held={},
            learned=NOTHING_LEARNED,
        )
