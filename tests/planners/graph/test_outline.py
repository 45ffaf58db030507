from msgspec.structs import replace

from planners.graph.outline import MOST_DRAWN_WHOLE, Outline, outline
from planners.hardware import HOST, DeviceId
from planners.model import LayerInfo, LayerKind
from tests.fakes.machines import LLAMA_8B

A, B, C, D = (DeviceId(name) for name in "abcd")
FULL = LLAMA_8B.layers[0]
SWA = replace(FULL, kind=LayerKind.SWA)


def outlined(layers: list[LayerInfo], owners: list[DeviceId]) -> Outline:
    devices = [device for device in dict.fromkeys(owners) if device != HOST]
    left = (frozenset[str](),) * (len(layers) + 1)
    return outline(layers, left, [*owners, owners[-1]], devices=devices, limits={})


def test_a_small_model_is_drawn_whole() -> None:
    n = MOST_DRAWN_WHOLE

    assert outlined([FULL] * n, [A] * n).layers == tuple(range(n))


def test_of_equal_layers_a_few_and_the_last_are_drawn() -> None:
    found = outlined([FULL] * 100, [A] * 100)

    assert 2 < len(found.layers) < 8
    assert found.layers[-1] == 99


def test_every_turn_of_kinds_is_drawn() -> None:
    layers = ([SWA] * 5 + [FULL]) * 8

    found = outlined(layers, [A] * len(layers))

    kinds = [layers[i].kind for i in found.layers]
    assert kinds.count(LayerKind.FULL) >= 2
    assert len(found.layers) < 20


def test_a_device_stands_for_the_ones_that_hold_the_same() -> None:
    owners = [A] * 10 + [B] * 10 + [C] * 10 + [D] * 10

    found = outlined([FULL] * 40, owners)

    assert found.stand_in[A] == A
    assert found.stand_in[C] == B
    assert found.stand_in[D] == D
    assert not any(owners[i] == C for i in found.layers)


def test_the_device_of_the_last_layer_speaks_for_itself_where_another_has_the_output() -> None:
    layers, owners = [FULL] * 3, [A, B, C, D]
    left = (frozenset[str](),) * 4

    found = outline(layers, left, owners, devices=[A, B, C, D], limits={})

    assert found.stand_in[C] == C


def test_the_host_speaks_for_itself() -> None:
    assert outlined([FULL] * 4, [HOST, HOST, A, A]).stand_in[HOST] == HOST


def windowed(owners: list[DeviceId]) -> Outline:
    layers = [FULL if i % 6 == 5 else SWA for i in range(len(owners))]
    devices = [device for device in dict.fromkeys(owners) if device != HOST]
    left = (frozenset[str](),) * (len(layers) + 1)
    return outline(
        layers, left, [*owners, owners[-1]], devices=devices, limits={}, alike=[FULL] * len(layers)
    )


def test_where_masks_alone_differ_the_first_and_the_last_reader_of_each_are_drawn() -> None:
    found = windowed([A] * 40 + [B] * 40)

    assert {0, 5, 35, 39, 40, 41, 77, 79} <= {*found.layers}


def test_where_masks_alone_differ_few_layers_stand_for_a_hundred_on_unequal_devices() -> None:
    counts = (5, 9, 11, 12, 13, 15, 17, 18)
    devices = [DeviceId(f"gpu-{i}") for i in range(8)]
    owners = [d for d, count in zip(devices, counts, strict=True) for _ in range(count)]

    assert len(windowed(owners).layers) <= 4 * len(devices)


def test_on_the_host_a_window_counts_as_a_kind_of_its_own() -> None:
    found = windowed([HOST] * 60 + [A] * 40)

    on_host = [i for i in found.layers if i < 60]
    assert on_host == [0, 1, 2, 3, 5, 6, 11, 12, 17, 18]
