import json
from pathlib import Path
from random import Random

import pytest

from bench.planner.engine import live_engine
from bench.planner.launches import random_flags
from bench.planner.measure import described, measured_rows, told
from bench.planner.rows import Row, read_rows, rebuilt
from bench.planner.scores import errors
from bench.planner.shapes import ARCHITECTURES, random_model
from planners.gguf import parse_model
from tests.fakes.tiny_models import write

LOG = (
    "0.1 I load_tensors:      Vulkan0 model buffer size =     2.00 MiB",
    "0.1 I llama_context: n_ubatch      = 512",
    "0.1 I llama_kv_cache:    Vulkan0 KV buffer size =     1.00 MiB",
    "0.1 I llama_kv_cache:    Vulkan0 KV buffer size =     0.50 MiB",
    "0.1 W resolve_fused_ops: Flash Attention not supported, set to disabled",
    "0.1 I sched_reserve:    Vulkan0 compute buffer size =     7.00 MiB",
    "0.1 I sched_reserve:    Vulkan0 compute buffer size =     4.00 MiB",
)
READY = "0.1 I sched_reserve: reserve took 6.73 ms, sched copies = 1"


def test_caches_add_up_and_a_buffer_reserved_anew_replaces_the_former() -> None:
    resolved, buffers, error = told([*LOG, READY])

    assert error is None
    assert buffers == {"Vulkan0": {"model": 2 << 20, "KV": 3 << 19, "compute": 4 << 20}}
    assert resolved == {
        "n_ubatch": "512",
        "fa_resolved": "Flash Attention not supported, set to disabled",
    }


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("ggml.c:1787: GGML_ASSERT(fits) failed", "ggml.c:1787: GGML_ASSERT(fits) failed"),
        ("0.1 I nothing odd", "it ended without a word"),
    ],
)
def test_a_launch_that_ends_early_has_a_reason(last: str, reason: str) -> None:
    assert told([*LOG, last])[2] == reason


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_row_describes_the_very_model_that_was_written(kind: str, tmp_path: Path) -> None:
    model = random_model(Random(kind), kind, name=kind)
    path = write(model, tmp_path)
    parsed = parse_model(path.read_bytes()[: 4 << 20], file_bytes=path.stat().st_size)

    info = rebuilt(json.loads(json.dumps(described(model, path))))

    assert [layer.weight_bytes for layer in info.layers] == [
        layer.weight_bytes for layer in parsed.layers
    ]
    assert [layer.kind for layer in info.layers] == [layer.kind for layer in parsed.layers]
    assert (info.output_bytes, info.tied_bytes) == (parsed.output_bytes, parsed.tied_bytes)


def test_a_seed_gives_the_same_launches() -> None:
    def launches(seed: int) -> list[tuple[str, ...]]:
        rng = Random(seed)
        model = random_model(rng, "qwen3", name="one")
        return [random_flags(rng, model, ("a:1", "b:2")) for _ in range(9)]

    assert launches(5) == launches(5)
    assert launches(5) != launches(6)


@pytest.mark.llama
def test_rows_of_the_engine_here_are_judged() -> None:
    measured = list(
        measured_rows(live_engine(), seed=11, rows=4, launches=2, kinds=("llama", "lfm2"))
    )

    rows = [row for row in read_rows(map(json.dumps, measured)) if isinstance(row, Row)]

    assert rows
    assert all(error.are_parts_exact for row in rows for error in errors(row))
