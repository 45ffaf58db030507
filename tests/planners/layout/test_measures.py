from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST
from planners.layout.measures import MOST_DRAWINGS, Drawings, Measures
from planners.lessons.rates import rates
from planners.memory import host_overhead_bytes, predict
from planners.sizes import MIB
from tests.fakes.machines import machine, model_info, nvidia

INFO = model_info(n_layer=8, layer_bytes=100 * MIB, expert_bytes=80 * MIB)
SHAPE = LaunchShape(n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512)
CARD = nvidia(0, 24)
RATES = rates(machine(CARD), n_threads=4)


def test_every_size_is_what_memory_predicts_for_the_layer() -> None:
    split = replace(SHAPE, split=((CARD.device_id, 9),), n_cpu_moe=3)

    _, on_card = predict(INFO, split, overhead_bytes={}, is_drawn=False)

    sizes = Measures(INFO).sizes(replace(SHAPE, n_cpu_moe=3))
    assert sum(sizes) == on_card.weights_bytes + on_card.kv_bytes


def test_what_the_host_takes_at_least_is_what_it_takes_with_all_layers_on_devices() -> None:
    measures = Measures(INFO)
    overhead = host_overhead_bytes(INFO)
    for n_cpu_moe, n_gpu_layers in ((0, 9), (3, 9), (0, 4)):
        shape = replace(SHAPE, n_cpu_moe=n_cpu_moe)
        split = replace(shape, split=((CARD.device_id, n_gpu_layers),))

        host, _ = predict(INFO, split, overhead_bytes={HOST: overhead}, is_drawn=False)

        least = measures.least_on_host_bytes(shape, with_estimates=True)
        assert least <= host.upper_bytes
        assert n_gpu_layers < 9 or least == host.upper_bytes


def test_what_is_asked_again_is_answered_alike() -> None:
    measures, fast = Measures(INFO), RATES[CARD.device_id]
    host = RATES[HOST]
    lean = replace(SHAPE, n_cpu_moe=8)

    for shape in (SHAPE, lean, SHAPE):
        anew = Measures(INFO)
        assert measures.sizes(shape) == anew.sizes(shape)
        assert measures.device_ps(shape, fast, host) == anew.device_ps(shape, fast, host)
        for n_gpu_layers in (1, 9):
            mine = measures.compute_bytes(shape, n_gpu_layers=n_gpu_layers)
            assert mine == anew.compute_bytes(shape, n_gpu_layers=n_gpu_layers)


def test_the_graphs_of_one_plan_have_an_end() -> None:
    drawings = Drawings()

    drawn = [drawings.has_one_more() for _ in range(MOST_DRAWINGS + 1)]

    assert drawn == [*[True] * MOST_DRAWINGS, False]
