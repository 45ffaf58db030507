"""Free memory after a stop, sample by sample."""

import pytest
from msgspec.structs import replace

from planners.hardware import HOST, DeviceId
from planners.instances.actions import Start
from planners.instances.settling import SETTLE_S, Ended, Sample, settling
from planners.reconcile import reconcile
from planners.sizes import GIB, MIB
from planners.view import View
from tests.fakes import machines
from tests.fakes.views import hardware, model, view

GPU = DeviceId("gpu0")
ENDED = Ended(at_s=100.0, held={GPU: 8 * GIB}, free={GPU: 2 * GIB})


def after(*free_gib: float, every_s: float = 0.1) -> tuple[Sample, ...]:
    return tuple(
        Sample(100.0 + (n + 1) * every_s, {GPU: int(gib * GIB)}) for n, gib in enumerate(free_gib)
    )


@pytest.mark.parametrize(
    ("samples", "missing_gib"),
    [
        pytest.param((), 8, id="nothing read yet"),
        pytest.param(after(10), 0, id="one reading tells no movement"),
        pytest.param(after(4, 6), 4, id="still rising"),
        pytest.param(after(2, 2), 8, id="the driver has not begun"),
    ],
)
def test_memory_is_awaited_while(samples: tuple[Sample, ...], missing_gib: int) -> None:
    assert settling((ENDED,), samples, now_s=100.5) == {GPU: missing_gib * GIB}


@pytest.mark.parametrize(
    ("samples", "now_s"),
    [
        pytest.param(after(10, 10), 100.3, id="all of it is back"),
        pytest.param(after(8, 8), 100.3, id="it has stopped, somebody else took the rest"),
        pytest.param(after(2, 2), 101.1, id="none of it comes back"),
        pytest.param(after(4, 6), 100.0 + SETTLE_S, id="it rises for ever"),
    ],
)
def test_memory_is_awaited_no_longer_when(samples: tuple[Sample, ...], now_s: float) -> None:
    assert settling((ENDED,), samples, now_s=now_s) == {}


def test_samples_from_before_the_last_stop_say_nothing_of_it() -> None:
    second = Ended(at_s=100.25, held={GPU: GIB}, free={GPU: 10 * GIB})

    assert settling((ENDED, second), after(10, 10), now_s=100.3) == {GPU: GIB}


def test_what_held_next_to_nothing_is_not_waited_for() -> None:
    small = Ended(at_s=100.0, held={GPU: MIB, HOST: MIB}, free={GPU: 0, HOST: 0})

    assert settling((small,), (), now_s=100.0) == {}


def test_a_device_that_tells_nothing_is_not_waited_for() -> None:
    silent = Ended(at_s=100.0, held={GPU: GIB}, free={})

    assert settling((silent,), (), now_s=100.0) == {}


def machine_of(*, free_gib: float) -> View:
    """Model "a" is asked for, on a machine with a card of 12 GiB; an engine sees the card."""
    card = machines.nvidia(0, 12, free_gib=free_gib)
    told = view(A, waiting=(A,), machine=hardware(devices=(card,)), engines=(machines.VULKAN,))
    return replace(told, rules=replace(machines.RULES, context=2048, parallel=1))


A = model("a", weights_bytes=6 * GIB)
CARD = machines.nvidia(0, 12).device_id


def test_a_launch_waits_for_the_card_that_it_would_have_rather_than_go_to_the_processor() -> None:
    told = machine_of(free_gib=1)

    assert reconcile(replace(told, settling={CARD: 10 * GIB}), now_s=0.0) == ()
    (start,) = reconcile(told, now_s=0.0)
    assert isinstance(start, Start)
    assert start.plan.bytes_on(CARD) < 1 * GIB


def test_a_launch_waits_for_a_card_whose_figures_still_move() -> None:
    assert reconcile(replace(machine_of(free_gib=9), settling={CARD: GIB}), now_s=0.0) == ()


def test_a_launch_elsewhere_does_not_wait() -> None:
    told = view(A, waiting=(A,), machine=hardware(devices=(machines.nvidia(0, 12),)))

    (start,) = reconcile(replace(told, settling={CARD: GIB}), now_s=0.0)

    assert isinstance(start, Start)
