import pytest
from msgspec.structs import replace

from planners.graph.fallback import binding_limits, fallbacks, host_weights, is_remote
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.memory import layer_devices, predict
from planners.model import RecurrentShape, WeightInfo
from tests.fakes.machines import LLAMA_8B, LLVMPIPE, machine, nvidia

GPU, FAR = DeviceId("gpu"), DeviceId("rpc:box:50052")
SHAPE = LaunchShape(n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512, split=((GPU, 3),))
WEIGHTS = (
    WeightInfo("attn_q.weight", (64, 64), 100),
    WeightInfo("ffn_up_exps.weight", (64, 64, 8), 5000),
    WeightInfo("ssm_a", (16, 64), 40),
)
LAYER = replace(LLAMA_8B.layers[0], weight_bytes=5140, expert_bytes=5000, weights=WEIGHTS)
MODEL = replace(
    LLAMA_8B,
    layers=(LAYER, LAYER),
    ends=(WeightInfo("output.weight", (64, 70_000), 9000), WeightInfo("token_embd.weight", (), 1)),
    output_bytes=9000,
    tied_bytes=0,
)


def left(shape: LaunchShape) -> list[set[str]]:
    return [set(names) for names in host_weights(MODEL, shape, layer_devices(MODEL, shape))]


def test_the_matrix_of_mamba_1_stays_on_the_host_of_a_local_device() -> None:
    assert left(SHAPE) == [{"ssm_a"}, {"ssm_a"}, set()]
    assert left(replace(SHAPE, split=((FAR, 3),))) == [set(), set(), set()]


@pytest.mark.parametrize(
    ("d_state", "n_head", "expected"),
    [(128, 8, set()), (256, 8, set()), (64, 8, {"ssm_a"}), (128, 64, {"ssm_a"})],
)
def test_decays_of_mamba_2_stay_where_no_device_scans_such_states(
    d_state: int, n_head: int, expected: set[str]
) -> None:
    layer = replace(LAYER, weights=(WeightInfo("ssm_a", (1, n_head), 4 * n_head),))
    ssm = RecurrentShape(d_inner=512, d_state=d_state, n_group=1, n_head=n_head)
    model = replace(MODEL, layers=(layer,), recurrent=ssm)
    shape = replace(SHAPE, split=((GPU, 2),))

    first, _ = host_weights(model, shape, layer_devices(model, shape))

    assert first == expected


def test_experts_of_the_first_layers_stay_where_they_are_told_to() -> None:
    first, second, _ = left(replace(SHAPE, n_cpu_moe=1))

    assert first == {"ssm_a", "ffn_up_exps.weight"}
    assert second == {"ssm_a"}


def test_a_pattern_names_tensors_of_any_layer() -> None:
    shape = replace(SHAPE, on_host=(r"blk\.1\.attn_",))

    assert left(shape)[:2] == [{"ssm_a"}, {"ssm_a", "attn_q.weight"}]


def test_what_exceeds_a_binding_stays_and_so_does_what_would_put_out_too_much() -> None:
    shape = replace(SHAPE, binding_limits=((GPU, 4096),))
    wide = replace(SHAPE, binding_limits=((GPU, 128 << 20),))

    assert left(shape)[0] == {"ssm_a", "attn_q.weight", "ffn_up_exps.weight"}
    assert left(shape)[2] == {"output.weight"}
    assert left(wide)[2] == {"output.weight"}  # 70 000 × 512 × 4 bytes


def test_bytes_follow_their_weights() -> None:
    shape = replace(SHAPE, n_cpu_moe=2)

    host, gpu = predict(MODEL, shape, overhead_bytes={})

    assert gpu.weights_bytes == 2 * 100 + 9000
    assert host.weights_bytes == MODEL.input_bytes + 2 * 5040


def test_a_plan_names_each_fallback_and_nothing_that_was_asked_for() -> None:
    shape = replace(SHAPE, n_cpu_moe=2, binding_limits=((GPU, 128 << 20),))

    told = fallbacks(MODEL, shape, layer_devices(MODEL, shape))

    assert len(told) == 2
    assert told[0].text.startswith("ssm_a of 2 layers stays in host memory (80 B)")
    assert told[1].text.startswith("output.weight")


def test_only_a_software_device_is_known_to_bind_little() -> None:
    assert binding_limits(machine(nvidia(0, 24), LLVMPIPE)) == (
        (LLVMPIPE.device_id, 128 << 20),
    )  # fmt: skip


def test_a_device_behind_a_server_is_known_by_its_name() -> None:
    assert is_remote(FAR)
    assert not is_remote(GPU)
    assert not is_remote(HOST)
