from msgspec.structs import replace

from planners.hardware import HardwareProfile
from planners.sizes import GIB
from supervisor.settling import MemoryWatch
from tests.fakes import machines
from tests.fakes.views import model, planned, seen

BIG = model("big", weights_bytes=6 * GIB)
CARD = machines.nvidia(0, 12)


def machine(*, free_gib: float) -> HardwareProfile:
    return machines.machine(machines.nvidia(0, 12, free_gib=free_gib))


def test_memory_of_what_ended_is_awaited_until_two_readings_agree() -> None:
    plan = planned(BIG)
    part = replace(plan.predicted[0], device_id=CARD.device_id)
    ended = seen(BIG, plan=replace(plan, predicted=(part,)))
    watch = MemoryWatch()

    watch.ended(ended, machine(free_gib=5), now_s=100.0)
    assert list(watch.settling(now_s=100.0)) == [CARD.device_id]
    watch.sampled(machine(free_gib=8), now_s=100.1)
    watch.sampled(machine(free_gib=11.5), now_s=100.2)
    assert list(watch.settling(now_s=100.2)) == [CARD.device_id]
    watch.sampled(machine(free_gib=11.5), now_s=100.3)

    assert watch.settling(now_s=100.3) == {}


def test_readings_too_near_to_each_other_count_as_one() -> None:
    plan = planned(BIG)
    part = replace(plan.predicted[0], device_id=CARD.device_id)
    watch = MemoryWatch()
    watch.ended(seen(BIG, plan=replace(plan, predicted=(part,))), machine(free_gib=5), now_s=100.0)

    watch.sampled(machine(free_gib=11), now_s=100.100)
    watch.sampled(machine(free_gib=11), now_s=100.101)

    assert watch.settling(now_s=100.11)
