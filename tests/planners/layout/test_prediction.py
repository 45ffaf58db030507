from hypothesis import given, settings
from hypothesis import strategies as st

from planners.graph.kinds import kinds
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST
from planners.layout.budget import Budgets, budgets
from planners.layout.dry_runs import NO_DRY_RUNS
from planners.layout.measures import Measures
from planners.layout.prediction import Prediction
from planners.lessons.samples import NOTHING_LEARNED
from planners.model import ServedModel
from planners.sizes import GIB
from tests.fakes.machines import CUDA, machine, model_info, nvidia, served
from tests.fakes.tiny_models import info_of, tiny_models

CONTEXT_GIB = 600 / 1024  # of CUDA on each card
MODELS = [*map(info_of, tiny_models()), model_info(n_layer=20)]


def keeps_too_much(prediction: Prediction, room: Budgets, shape: LaunchShape) -> bool:
    """By the whole estimate, what placement looked at before it was told quickly."""
    parts = prediction.of(CUDA, room, shape, is_drawn=False)
    on_devices = [part for part in parts if part.device_id != HOST]
    return any(part.kept_bytes > room.room_bytes(part.device_id) for part in on_devices)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_exceeds_a_device_by_weights_and_caches_alone_is_told_where_none_stay_on_the_host(
    data: st.DataObject,
) -> None:
    info = data.draw(st.sampled_from(MODELS))
    model: ServedModel = served(info)
    need = sum(layer.weight_bytes for layer in info.layers) + info.output_bytes
    shares = data.draw(st.tuples(st.floats(0, 1.2), st.floats(0, 1.2)))
    gib = [CONTEXT_GIB + need * share / GIB for share in shares]
    hardware = machine(*(nvidia(i, gib[i]) for i in range(2)))
    room = budgets(hardware, backend="cuda", promised={}, held={})
    first = data.draw(st.integers(1, info.n_layer))
    split = ((room.devices[0].device_id, first), (room.devices[1].device_id, 1))
    lean = data.draw(st.sampled_from((0, 0, 0, 2)))
    shape = LaunchShape(4096, 2, 512, 512, n_cpu_moe=lean, split=split)
    prediction = Prediction(model, hardware, NO_DRY_RUNS, NOTHING_LEARNED, n_threads=1)

    told = prediction.exceeds(CUDA, room, shape, Measures(info).sizes(shape))

    is_plain = not lean and not kinds(info).scans
    assert told == (is_plain and keeps_too_much(prediction, room, shape))
