"""Predictions against what llama-server reported; bench/data/README.md says how it was measured."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.planner.rows import Row, read_rows
from bench.planner.scores import Error, errors, percentile, placement_of
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from planners.memory import (
    host_overhead_bytes,
    joined,
    output_buffer_bytes,
    predict,
    predict_draft,
)
from planners.model import WeightInfo
from planners.plan import DeviceBytes
from tests.fakes.machines import LLAMA_8B
from tests.fakes.tiny_models import info_of, tiny_models

TABLE = Path(__file__).parents[2] / "bench" / "data" / "planning_actuals.jsonl"
ROUNDING_BYTES = 11_000  # a logged size is within 0.01 MiB


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    read = read_rows(TABLE.read_text().splitlines())
    return [row for row in read if isinstance(row, Row)]


@pytest.fixture(scope="module")
def found(rows: list[Row]) -> list[Error]:
    return [error for row in rows for error in errors(row)]


def names(found: list[Error], is_bad: Callable[[Error], bool]) -> list[str]:
    return [f"{error.row.name} {error.device}" for error in found if is_bad(error)]


def test_weights_kv_and_state_of_every_launch_are_exact(found: list[Error]) -> None:
    assert len(found) > 350
    assert names(found, lambda error: not error.are_parts_exact) == []


def test_the_output_buffer_of_every_launch_is_exact(rows: list[Row]) -> None:
    whole = [row for row in rows if row.draft is None and not row.is_dry]

    off = [
        row.name
        for row in whole
        if abs(output_buffer_bytes(row.model, row.shape) - row.actual[HOST].output_bytes)
        > ROUNDING_BYTES
    ]

    assert len(whole) > 300
    assert off == []


def test_every_device_total_is_within_a_percent(found: list[Error]) -> None:
    assert names(found, lambda error: abs(error.share) > 0.01) == []


@pytest.mark.parametrize(
    "placement", ["full", "partial", "parts on the host", "processor alone", "several devices"]
)
def test_no_placement_is_harder_than_another(found: list[Error], placement: str) -> None:
    shares = sorted(abs(e.share) for e in found if placement_of(e.row) == placement)

    assert len(shares) >= 20
    assert percentile(shares, 0.5) < 0.001
    assert percentile(shares, 0.95) < 0.002


def test_no_launch_took_more_than_its_upper_bound(found: list[Error]) -> None:
    assert names(found, lambda error: error.actual_bytes > 1.005 * error.upper_bytes) == []


def test_on_the_host_the_compute_buffer_is_exact_too(rows: list[Row]) -> None:
    offloaded = [row for row in rows if row.shape.split and row.draft is None and not row.is_dry]

    def error_bytes(row: Row) -> int:
        host, *_ = predict(row.model, row.shape, overhead_bytes={})
        expected = row.actual[HOST].compute_bytes + row.actual[HOST].output_bytes
        return abs(host.compute_bytes - expected)

    off = [row.name for row in offloaded if error_bytes(row) > 600_000]

    assert len(offloaded) > 250
    assert off == []


CPU_SHAPE = LaunchShape(n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512)
GPU = DeviceId("gpu")


def test_tied_embeddings_are_held_once_on_the_host_and_again_on_a_device() -> None:
    tied = replace(LLAMA_8B, tied_bytes=100)

    (host,) = predict(tied, CPU_SHAPE, overhead_bytes={})
    _, gpu = predict(tied, replace(CPU_SHAPE, split=((GPU, 33),)), overhead_bytes={})

    layers = sum(layer.weight_bytes for layer in tied.layers)
    assert host.weights_bytes == tied.input_bytes + layers + tied.output_bytes - 100
    assert gpu.weights_bytes == layers + tied.output_bytes


def test_no_byte_of_the_weights_is_lost_between_devices() -> None:
    shape = replace(CPU_SHAPE, split=((GPU, 10), (DeviceId("other"), 12)))

    parts = predict(LLAMA_8B, shape, overhead_bytes={})

    layers = sum(layer.weight_bytes for layer in LLAMA_8B.layers)
    total = LLAMA_8B.input_bytes + layers + LLAMA_8B.output_bytes
    assert sum(part.weights_bytes for part in parts) == total


def test_experts_of_the_first_layers_move_to_the_host() -> None:
    sparse = replace(LLAMA_8B, layers=tuple(replace(x, expert_bytes=1000) for x in LLAMA_8B.layers))
    shape = replace(CPU_SHAPE, split=((GPU, 33),))

    host, gpu = predict(sparse, shape, overhead_bytes={})
    host_moved, gpu_moved = predict(sparse, replace(shape, n_cpu_moe=5), overhead_bytes={})

    assert host_moved.weights_bytes - host.weights_bytes == 5000
    assert gpu.weights_bytes - gpu_moved.weights_bytes == 5000


def test_a_cache_kept_on_the_host_leaves_the_device() -> None:
    shape = replace(CPU_SHAPE, split=((GPU, 33),))

    _, gpu = predict(LLAMA_8B, shape, overhead_bytes={})
    host, gpu_without = predict(LLAMA_8B, replace(shape, kv_on_host=True), overhead_bytes={})

    assert (gpu_without.kv_bytes, host.kv_bytes) == (0, gpu.kv_bytes)


def test_an_embedding_server_may_grow_its_output_buffer() -> None:
    shape = replace(CPU_SHAPE, embedding=True)

    (host,) = predict(LLAMA_8B, shape, overhead_bytes={})

    assert host.margin_bytes > 500 * LLAMA_8B.n_vocab * 4


def test_a_model_known_by_sums_alone_is_estimated_with_a_wide_margin() -> None:
    shape = replace(CPU_SHAPE, split=((GPU, 33),))

    _, gpu = predict(LLAMA_8B, shape, overhead_bytes={})

    assert gpu.margin_bytes == int(0.2 * gpu.compute_bytes)


def test_a_draft_model_brings_a_cache_and_buffers_of_its_own() -> None:
    shape = replace(CPU_SHAPE, split=((GPU, 33),), n_parallel=2, n_ctx=8192)

    host, gpu = predict_draft(LLAMA_8B, shape, device_id=GPU)

    alone = predict(LLAMA_8B, shape, overhead_bytes={})
    assert (host, gpu) == alone


def test_parts_are_joined_by_device() -> None:
    one = (DeviceBytes(HOST, 1, 2, 3, 4, 5), DeviceBytes(GPU, 10, 20, 30))
    other = (DeviceBytes(GPU, 1, 1, 1, 1, 1), DeviceBytes(DeviceId("b"), 7, 7, 7))

    assert joined(one, other) == (
        one[0],
        DeviceBytes(GPU, 11, 21, 31, 1, 1),
        DeviceBytes(DeviceId("b"), 7, 7, 7),
    )


def test_a_process_takes_host_memory_of_its_own() -> None:
    assert host_overhead_bytes(LLAMA_8B) > 100 << 20


def test_what_likeness_does_not_read_widens_the_bound_of_an_unknown_architecture() -> None:
    known = info_of(next(model for model in tiny_models() if model.name == "dense"))
    like = replace(known, architecture="grault", digest="grault")
    laurel = WeightInfo("laurel_l.weight", (known.n_embd, 4096), 2 * known.n_embd * 4096)
    odd = replace(
        like,
        layers=tuple(replace(layer, weights=(*layer.weights, laurel)) for layer in like.layers),
        digest="laurels",
    )
    shape = LaunchShape(
        n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512, backend="vulkan",
        split=((GPU, known.n_layer + 1),),
    )  # fmt: skip

    margins = [
        part.margin_bytes
        for info in (known, like, odd)
        for part in predict(info, shape, overhead_bytes={})
        if part.device_id == GPU
    ]

    assert margins[0] < margins[1] / 5
    assert margins[2] - margins[1] == 4 * 512 * 4096
