import pytest
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.graph.repack import ends_the_engine, repacks, tiled_bytes
from planners.hardware import HOST, DeviceId
from planners.memory import predict
from planners.model import ModelInfo, WeightInfo
from tests.fakes.machines import CPU, served
from tests.fakes.tiny_models import TinyModel, info_of, tiny_models

ON_HOST = LaunchShape(512, 1, 512, 512, host_tiles=True)
MODELS = {model.name: model for model in tiny_models()}
TILED = replace(CPU, has_tiles=True)
N_ROWS, N_COLUMNS = 64, 512


def weight(type_name: str, *, name: str = "attn_q.weight", rows: int = N_ROWS) -> WeightInfo:
    return WeightInfo(name, (N_COLUMNS, rows), 1000, type_name)


@pytest.mark.parametrize(
    ("type_name", "beside"),
    [
        ("q4_0", 0), ("q4_1", 0), ("q8_0", 16 * 4), ("q4_k", 2 * 4), ("q5_k", 2 * 4), ("q6_k", 0),
        ("iq4_xs", 2 * 2), ("f16", 0),
    ],
)  # fmt: skip
def test_tiles_keep_sums_beside_some_blocks(type_name: str, beside: int) -> None:
    assert tiled_bytes(weight(type_name)) == 1000 + N_ROWS * beside


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(weight("q5_0"), id="of another type"),
        pytest.param(weight("q8_0", rows=48), id="rows that fill no tile"),
        pytest.param(WeightInfo("attn_q.weight", (128, 64), 1000, "q4_k"), id="columns likewise"),
        pytest.param(weight("q8_0", name="ffn_up_exps.weight"), id="experts"),
        pytest.param(weight("q8_0", name="token_embd.weight"), id="read row by row"),
        pytest.param(weight("f16", name="attn_norm.weight"), id="no product"),
        pytest.param(WeightInfo("attn_q.bias", (64,), 256, "f16"), id="a bias"),
        pytest.param(weight(""), id="of a type nobody knows"),
    ],
)
def test_what_has_no_tiles_is_left_as_it_is(left: WeightInfo) -> None:
    assert tiled_bytes(left) is None


def weights_on(info: ModelInfo, shape: LaunchShape) -> int:
    found = predict(info, shape, overhead_bytes={}, is_drawn=False)
    return next(part.weights_bytes for part in found if part.device_id == HOST)


def of_type(name: str, type_name: str, *, is_tied: bool = True) -> ModelInfo:
    info = info_of(replace(MODELS[name], is_tied=is_tied))

    def typed(weights: tuple[WeightInfo, ...]) -> tuple[WeightInfo, ...]:
        return tuple(
            replace(w, type_name=type_name if len(w.shape) > 1 else "f32") for w in weights
        )

    layers = tuple(replace(layer, weights=typed(layer.weights)) for layer in info.layers)
    return replace(info, layers=layers, ends=typed(info.ends))


def test_a_tied_table_is_held_once_more_where_it_is_repacked() -> None:
    info = of_type("dense", "f16")  # no sums beside, so that only the copy is added

    added = weights_on(info, ON_HOST) - weights_on(info, replace(ON_HOST, host_tiles=False))

    assert added == info.tied_bytes > 0


@pytest.mark.parametrize(("type_name", "is_copied"), [("iq4_nl", True), ("q5_1", False)])
def test_a_tied_table_is_copied_by_the_other_form_of_repacking_too(
    type_name: str, is_copied: bool
) -> None:
    info = of_type("dense", type_name)

    added = weights_on(info, ON_HOST) - weights_on(info, replace(ON_HOST, host_tiles=False))

    assert added == (info.tied_bytes if is_copied else 0)


def test_a_tied_table_that_is_no_matrix_is_not_repacked() -> None:
    info = of_type("dense", "q4_0")
    flat = replace(info, ends=tuple(replace(w, shape=w.shape[:1]) for w in info.ends))

    assert weights_on(flat, ON_HOST) <= weights_on(info, ON_HOST) - info.tied_bytes


def test_nothing_is_repacked_beside_a_device_of_this_machine_but_beside_remote_ones() -> None:
    info = of_type("dense", "q8_0", is_tied=False)

    def added(device: str) -> int:
        shape = replace(ON_HOST, split=((DeviceId(device), 3),))
        return weights_on(info, shape) - weights_on(info, replace(shape, host_tiles=False))

    assert added("gpu") == 0
    on_host = info.layers[: info.n_layer + 1 - 3]
    assert added("rpc:box:50052") == sum(
        (tiled_bytes(w) or w.n_bytes) - w.n_bytes for layer in on_host for w in layer.weights
    )


@pytest.mark.parametrize(("name", "ends"), [("latent", True), ("experts", False), ("dense", False)])
def test_stacks_of_matrices_in_tiles_would_end_the_engine(name: str, ends: bool) -> None:
    info = of_type(name, "f16")
    model = replace(served(), info=info)

    assert ends_the_engine(info) is ends
    assert repacks(model, engine=TILED) is not ends
    assert repacks(model, engine=CPU)


def test_an_operator_who_wants_no_repacking_has_none() -> None:
    model = replace(served(), info=of_type("dense", "f16"))
    settings = replace(model.settings, flags=("--no-repack",))

    assert not repacks(replace(model, settings=settings), engine=TILED)


def test_a_type_is_known_from_the_file() -> None:
    model = TinyModel("one", "llama", 64, 1, {"feed_forward_length": 64})

    assert {w.type_name for w in info_of(model).ends} == {"f16"}
