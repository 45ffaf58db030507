from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.layout.around import around_buffers, hopefully
from planners.layout.budget import Budget, Budgets
from planners.layout.layer_split import Splitter
from planners.layout.measures import Measures
from planners.layout.placed import Placed
from planners.lessons.rates import Rate, Rates
from planners.plan import DeviceBytes
from planners.sizes import GIB, MIB
from planners.speed import speed
from tests.fakes.machines import VULKAN, model_info

INFO = model_info(n_layer=10, layer_bytes=100 * MIB)
SHAPE = LaunchShape(n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512)
CARD = DeviceId("card")
RATES: Rates = {HOST: Rate(30e9, 0.3e12), CARD: Rate(600e9, 50e12, 50e-6)}
MEASURES = Measures(INFO)
SIZES = MEASURES.sizes(SHAPE)


def budgets(room_bytes: int) -> Budgets:
    card = Budget(CARD, "Vulkan0", "a card", room_bytes, room_bytes, 0, shares_host=False)
    return Budgets(host_bytes=64 * GIB, devices=(card,), notes=())


def splitter_in(room: Budgets) -> Splitter:
    return Splitter(MEASURES, room.devices, RATES, 0, host_room_bytes=room.host_bytes)


def placed(layers: int, room: Budgets, *, buffer_bytes: int) -> Placed:
    """That many layers on the card, with buffers of that size beside them."""
    shape = replace(SHAPE, split=((CARD, layers),))
    held = sum(SIZES[len(SIZES) - layers :])
    predicted = (DeviceBytes(HOST, 0, 0, 0), DeviceBytes(CARD, held, 0, buffer_bytes))
    return Placed(VULKAN, room, shape, predicted, speed(INFO, shape, rates=RATES))


def test_what_the_estimate_refuses_is_laid_out_as_if_buffers_took_nothing() -> None:
    tight = splitter_in(budgets(sum(SIZES)))

    layout = hopefully(Splitter.full, SHAPE, tight)

    assert Splitter.full(tight, SHAPE) is None
    assert layout is not None
    assert layout.shape.split == ((CARD, 11),)


def test_what_the_estimate_places_is_taken_as_it_is() -> None:
    roomy = splitter_in(budgets(24 * GIB))

    assert hopefully(Splitter.full, SHAPE, roomy) == roomy.full(SHAPE)


def test_layers_are_dealt_out_around_larger_buffers() -> None:
    room = budgets(sum(SIZES[-6:]) + 10 * MIB)

    layout = around_buffers(placed(6, room, buffer_bytes=SIZES[0]), splitter_in)

    assert layout is not None
    assert layout.shape.split == ((CARD, 5),)


def test_layers_come_back_where_buffers_are_smaller() -> None:
    room = budgets(sum(SIZES[-6:]) + 10 * MIB)

    layout = around_buffers(placed(4, room, buffer_bytes=10 * MIB), splitter_in)

    assert layout is not None
    assert layout.shape.split == ((CARD, 6),)


def test_layers_that_are_all_to_be_on_devices_stay_there_or_nowhere() -> None:
    room = budgets(sum(SIZES) + 10 * MIB)

    assert around_buffers(placed(11, room, buffer_bytes=11 * MIB), splitter_in) is None
    assert around_buffers(placed(11, room, buffer_bytes=10 * MIB), splitter_in) is not None
