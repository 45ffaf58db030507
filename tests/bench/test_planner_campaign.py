"""A seeded handful of launches of shapes that are in no table, on the real engine."""

import json

import pytest

from bench.planner.campaign import misses, told
from bench.planner.engine import live_engine
from bench.planner.measure import measured_rows
from bench.planner.rows import Row, read_rows
from bench.planner.scores import all_errors
from tests.fakes.system_parts import need_mesa

KINDS = ("llama", "deepseek2", "granitehybrid", "gemma3", "glm4moe", "smollm3", "qwen35", "phi3")


@pytest.mark.llama
def test_launches_nobody_tuned_for_are_predicted_to_the_rounding() -> None:
    need_mesa()

    measured = list(measured_rows(live_engine(), seed=23, rows=16, launches=2, kinds=KINDS))

    rows = [row for row in read_rows(map(json.dumps, measured)) if isinstance(row, Row)]
    found = [error for row in rows for error in all_errors(row)]
    assert len(found) >= 16
    assert [f"{e.row.name} {e.device} {e.share:+.2%}" for e in misses(found)] == []
    assert not any(error.is_above_bound for error in found if error.actual_bytes > 1 << 20)
    assert f"{len(rows)} of {len(measured)} launches" in told(measured)
    assert "beyond 1% and rounding: 0" in told(measured)
