import pytest
from msgspec.structs import replace

from planners.graph.compute import MARGIN_SHARE, device_compute_bytes
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.layout.budget import Budget
from planners.layout.layer_split import Split, Splitter
from planners.layout.measures import Measures
from planners.lessons.rates import Rate, Rates
from planners.model import ModelInfo
from planners.sizes import GIB, MIB
from tests.fakes.machines import model_info

INFO = model_info(n_layer=10, layer_bytes=100 * MIB)
SHAPE = LaunchShape(n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512)
LAYER_BYTES = 100 * MIB + 4096 * 2 * 1024 * 2
BIG, SMALL = DeviceId("big"), DeviceId("small")


def fixed_bytes(*, n_gpu_layers: int) -> int:
    """What a device takes before its first layer."""
    compute = device_compute_bytes(INFO, replace(SHAPE, split=((BIG, n_gpu_layers),)))
    return compute + int(compute * MARGIN_SHARE)


def budget(device_id: DeviceId, room_bytes: int, *, name: str = "CUDA0") -> Budget:
    return Budget(device_id, name, "a card", room_bytes, room_bytes, 0, False)


FAST, SLOW = Rate(600e9, 50e12, 50e-6), Rate(30e9, 0.3e12)
RATES: Rates = {HOST: SLOW, BIG: FAST, SMALL: FAST}


def splitter(
    *devices: Budget, info: ModelInfo = INFO, rates: Rates = RATES, companion_bytes: int = 0
) -> Splitter:
    return Splitter(Measures(info), devices, rates, companion_bytes, host_room_bytes=99 * GIB)


def full(found: Splitter) -> Split:
    layout = found.full(SHAPE)
    return layout.shape.split if layout else ()


def partial(found: Splitter) -> Split:
    layout = found.partial(SHAPE)
    return layout.shape.split if layout else ()


def test_all_layers_go_to_the_fastest_device_alone_where_they_fit() -> None:
    both = splitter(budget(BIG, 24 * GIB), budget(SMALL, 24 * GIB))

    assert full(both) == ((BIG, 11),)


def test_the_fastest_device_takes_the_last_layers_and_the_next_one_the_rest() -> None:
    fixed = fixed_bytes(n_gpu_layers=11)
    big = budget(BIG, fixed + INFO.output_bytes + 4 * LAYER_BYTES)
    small = budget(SMALL, fixed + 8 * LAYER_BYTES)  # either alone is too small

    assert full(splitter(big, small)) == ((SMALL, 6), (BIG, 5))


def test_a_byte_too_little_costs_a_layer() -> None:
    fixed = fixed_bytes(n_gpu_layers=1)
    exact = fixed + INFO.output_bytes + 4 * LAYER_BYTES

    assert partial(splitter(budget(BIG, exact))) == ((BIG, 5),)
    assert partial(splitter(budget(BIG, exact - 1))) == ((BIG, 4),)


@pytest.mark.parametrize("room_bytes", [-GIB, 0, 100 * MIB])
def test_a_device_without_room_gets_no_layer(room_bytes: int) -> None:
    tight = splitter(budget(BIG, room_bytes))

    assert partial(tight) == ()
    assert full(tight) == ()


def test_the_projector_takes_its_room_on_the_first_device_by_name() -> None:
    room = fixed_bytes(n_gpu_layers=1) + INFO.output_bytes + 4 * LAYER_BYTES
    devices = (budget(BIG, room, name="CUDA1"), budget(SMALL, room, name="CUDA0"))

    alone = partial(splitter(*devices))
    joined = partial(splitter(*devices, companion_bytes=4 * LAYER_BYTES))

    assert alone == ((SMALL, 6), (BIG, 5))
    assert joined == ((SMALL, 3), (BIG, 5))


def test_as_few_experts_as_it_takes_go_to_the_host() -> None:
    info = model_info(n_layer=10, layer_bytes=100 * MIB, expert_bytes=90 * MIB)
    everything = info.output_bytes + 10 * LAYER_BYTES + 2 * GIB

    def moved(short_bytes: int) -> int:
        room = budget(BIG, everything - short_bytes)
        found = splitter(room, info=info).sparse(SHAPE)
        assert found is not None
        assert found.shape.split == ((BIG, 11),)
        return found.shape.n_cpu_moe

    assert moved(2 * GIB + 100 * MIB) <= moved(2 * GIB + 300 * MIB) <= 10


def test_a_projector_beside_them_sends_more_experts_to_the_host() -> None:
    info = model_info(n_layer=10, layer_bytes=100 * MIB, expert_bytes=90 * MIB)
    room = budget(BIG, info.output_bytes + 10 * LAYER_BYTES - 100 * MIB)

    alone = splitter(room, info=info).sparse(SHAPE)
    joined = splitter(room, info=info, companion_bytes=200 * MIB).sparse(SHAPE)

    assert alone is not None
    assert joined is not None
    assert alone.shape.n_cpu_moe < joined.shape.n_cpu_moe <= 10
    assert joined.shape.split == ((BIG, 11),)


def test_of_four_devices_another_one_can_be_the_last() -> None:
    rooms = [fixed_bytes(n_gpu_layers=11) + n * LAYER_BYTES for n in (6, 5, 5, 5)]
    ids = [DeviceId(f"card {i}") for i in range(4)]
    rates = {HOST: SLOW, ids[0]: FAST, **dict.fromkeys(ids[1:], Rate(300e9, 20e12, 50e-6))}
    devices = [budget(ids[i], rooms[i], name=f"CUDA{i}") for i in range(4)]
    four = splitter(*devices, rates=rates)

    first = four.full(SHAPE)
    assert first is not None
    other = four.reordered(first.shape)

    assert first.shape.split[-1][0] == ids[0]  # the fastest last
    assert other is not None
    assert other.shape.split[-1][0] == ids[1]
    assert dict(other.shape.split)[ids[0]] <= 6


def test_few_devices_have_no_order_left_to_try() -> None:
    both = splitter(budget(BIG, 24 * GIB), budget(SMALL, 24 * GIB))
    layout = both.full(SHAPE)

    assert layout is not None
    assert both.reordered(layout.shape) is None


def test_a_dense_model_has_no_experts_to_move() -> None:
    assert splitter(budget(BIG, 24 * GIB)).sparse(SHAPE) is None


def test_a_projector_beside_many_devices_goes_to_the_fastest_where_that_is_best() -> None:
    names = [f"CUDA{i}" for i in range(9)]
    devices = tuple(budget(DeviceId(name), 24 * GIB, name=name) for name in reversed(names))
    slower = replace(FAST, bytes_per_s=300e9)
    rates: Rates = {HOST: SLOW, **dict.fromkeys(map(DeviceId, names), slower)}
    rates = {**rates, DeviceId("CUDA8"): FAST}

    assert full(splitter(*devices, rates=rates, companion_bytes=GIB)) == ((DeviceId("CUDA8"), 11),)
