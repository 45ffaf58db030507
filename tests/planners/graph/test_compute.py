"""The estimates for models whose graph is not drawn, against launches of models whose graph is."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.planner.rows import Row, read_rows
from bench.planner.scores import placement_of
from planners.graph.compute import device_compute_bytes, host_compute_bytes
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST, DeviceId
from tests.fakes.machines import LLAMA_8B
from tests.fakes.tiny_models import Number, TinyModel, info_of

TABLE = Path(__file__).parents[3] / "bench" / "data" / "planning_actuals.jsonl"
SHAPE = LaunchShape(
    n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512, split=((DeviceId("gpu"), 33),)
)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    read = read_rows(TABLE.read_text().splitlines())
    return [row for row in read if isinstance(row, Row) and row.draft is None]


def test_a_device_that_holds_all_layers_is_estimated_within_a_tenth_of_its_total(
    rows: list[Row],
) -> None:
    whole = [row for row in rows if placement_of(row) == "full"]

    def share(row: Row) -> float:
        actual = row.actual[DeviceId("Vulkan0")]
        compute = device_compute_bytes(row.model, row.shape)
        return abs(compute - actual.compute_bytes) / actual.total_bytes

    assert len(whole) > 150
    assert [row.name for row in whole if share(row) > 0.1] == []


def test_a_host_that_computes_alone_is_estimated_within_a_third(rows: list[Row]) -> None:
    alone = [row for row in rows if placement_of(row) == "processor alone"]

    def is_near(row: Row) -> bool:
        actual = row.actual[HOST].compute_bytes
        return host_compute_bytes(row.model, row.shape) == pytest.approx(actual, rel=0.34)

    assert len(alone) > 30
    assert [row.name for row in alone if not is_near(row)] == []


def test_halving_the_ubatch_halves_the_compute_buffer() -> None:
    halved = device_compute_bytes(LLAMA_8B, replace(SHAPE, n_ubatch=256))

    assert halved == device_compute_bytes(LLAMA_8B, SHAPE) // 2


def test_an_encoder_with_windows_has_two_masks_and_no_logits() -> None:
    numbers: dict[str, Number] = {
        "attention.head_count": 3, "feed_forward_length": 576, "attention.causal": False,
        "pooling_type": 1,
    }  # fmt: skip
    alike = info_of(TinyModel("windows", "nomic-bert", 192, 7, numbers, n_vocab=4099))
    window = ("modern-bert.attention.sliding_window", 128)
    info = replace(alike, architecture="modern-bert", metadata=(*alike.metadata, window))
    shape = replace(SHAPE, embedding=True, split=((DeviceId("gpu"), 8),))

    # As b10434 reserved for a ModernBERT of that shape.
    assert host_compute_bytes(info, shape) == pytest.approx(1_845_494, rel=0.01)
    assert device_compute_bytes(info, shape) == pytest.approx(5_379_195, rel=0.01)
