import json
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from bench.planner.__main__ import MENDED, OTHERS, SHAPES, TABLE, TWINS, over_table
from bench.planner.campaign import misses
from bench.planner.flags import NotModelled, asked, launch_shape
from bench.planner.rows import Row, read_rows
from bench.planner.scores import all_errors, errors, percentile, report
from planners.graph.compute import n_copies
from planners.hardware import DeviceId

LINES = TABLE.read_text().splitlines()
VULKAN = DeviceId("Vulkan0")


def some_row() -> Row:
    row = next(r for r in read_rows(LINES) if isinstance(r, Row) and r.model.is_causal)
    assert isinstance(row, Row)
    return row


def test_a_seeded_handful_of_rows_is_predicted_to_the_percent() -> None:
    sample = Random(3).sample(LINES, 40)
    rows = [row for row in read_rows(sample) if isinstance(row, Row)]

    found = [error for row in rows for error in errors(row)]

    assert len(found) > 20
    assert max(abs(error.share) for error in found) < 0.01
    assert not any(error.is_above_bound for error in found)


def test_launches_of_random_shapes_are_predicted_to_the_percent() -> None:
    rows = [row for row in read_rows(SHAPES.read_text().splitlines()) if isinstance(row, Row)]

    found = [error for row in rows for error in errors(row)]

    shares = sorted(abs(error.share) for error in found)
    assert len(rows) == 220
    assert percentile(shares, 0.5) < 0.001
    assert percentile(shares, 0.95) < 0.005
    assert shares[-1] < 0.03
    assert all(error.are_parts_exact for error in found)
    assert not any(error.is_above_bound for error in found)


def test_other_architectures_are_predicted_to_the_rounding_and_the_host_beside_devices_too() -> (
    None
):
    rows = [row for row in read_rows(OTHERS.read_text().splitlines()) if isinstance(row, Row)]

    found = [error for row in rows for error in all_errors(row)]

    assert len({row.model.architecture for row in rows}) >= 35
    assert sum(row.shape.host_tiles for row in rows) >= 40
    assert misses(found) == []


def test_launches_over_several_local_devices_are_predicted_to_the_percent() -> None:
    rows = [row for row in read_rows(TWINS.read_text().splitlines()) if isinstance(row, Row)]

    found = [error for row in rows for error in errors(row)]

    shares = sorted(abs(error.share) for error in found)
    pipelined = [row for row in rows if n_copies(row.shape, is_whole=True) > 1]
    assert len(found) >= 60
    assert len(pipelined) >= 20
    assert percentile(shares, 0.5) < 0.001
    assert percentile(shares, 0.95) < 0.01
    assert not any(error.is_above_bound for error in found)


def test_launches_that_were_once_predicted_wrong_are_predicted_to_the_rounding() -> None:
    rows = [row for row in read_rows(MENDED.read_text().splitlines()) if isinstance(row, Row)]

    found = [error for row in rows for error in all_errors(row)]

    assert len(rows) >= 10
    assert misses(found) == []
    assert not any(error.is_above_bound for error in found)


def test_the_report_has_every_section(tmp_path: Path) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_text("\n".join(islice(LINES, 0, None, 6)))

    told = over_table(table)

    assert all(word in told for word in ("several devices", "real shapes", "MLA", "qwen3", "all"))
    assert "prediction of one launch: median" in told


def test_a_table_of_nonsense_is_told_and_never_raised(tmp_path: Path) -> None:
    table = tmp_path / "rows.jsonl"
    good = json.loads(LINES[0])
    bad = [
        "no json",
        "[1, 2]",
        json.dumps({"id": "empty"}),
        json.dumps({**good, "flags": ["--frobnicate", "1"]}),
        json.dumps({**good, "flags": ["-c"]}),
        json.dumps({**good, "buffers": None}),
        json.dumps({**good, "gguf": {**good["gguf"], "layer_bytes": "many"}}),
        json.dumps({**good, "ok": False, "error": "out of memory"}),
        json.dumps({**good, "flags": ["-md", "gone.gguf"]}),
        json.dumps({**good, "flags": 5}),
        json.dumps({**good, "gguf": {**good["gguf"], "types": ["q9_z"]}}),
        json.dumps({**good, "gguf": {**good["gguf"], "file_bytes": None, "kv": {}}}),
    ]
    table.write_text("\n".join([*bad, LINES[0]]))

    told = over_table(table)

    assert f"1 of {len(bad) + 1} rows" in told
    assert told.count("left out") == len(bad)
    assert "option --frobnicate" in told
    assert "out of memory" in told


def test_a_table_without_a_single_row_is_told() -> None:
    assert report([]) == "no row can be judged"


def test_an_unknown_architecture_is_judged_by_its_sums() -> None:
    told = json.loads(LINES[0].replace('"bert', '"grault'))

    (read,) = read_rows([json.dumps(told)])

    assert isinstance(read, Row), read
    assert read.model.architecture == "grault"
    _, *later = read.model.layers  # the first also has a tensor from outside of all layers
    assert [layer.weight_bytes for layer in later] == told["gguf"]["layer_bytes"][1:]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param(["-c", "4096"], (4, True, 4096, 512), id="defaults share one cache"),
        pytest.param(["-c", "4000", "-np", "3"], (3, False, 4608, 512), id="slots are padded"),
        pytest.param(["-c", "100", "-np", "1"], (1, False, 256, 100), id="a context is padded"),
        pytest.param(["-c", "4096", "-np", "2", "-kvu"], (2, True, 4096, 512), id="shared"),
        pytest.param(["-c", "4096", "-b", "64"], (4, True, 4096, 64), id="a batch cuts ubatches"),
        pytest.param(["-c", "300", "-np", "1"], (1, False, 512, 300), id="batches are not padded"),
    ],
)
def test_flags_become_effective_shapes(
    flags: list[str], expected: tuple[int, bool, int, int]
) -> None:
    shape = launch_shape(asked(flags), some_row().model, devices=[VULKAN])

    assert (shape.n_parallel, shape.kv_unified, shape.n_ctx, shape.n_ubatch) == expected


@pytest.mark.parametrize(
    ("flags", "split"),
    [
        (["-ngl", "99", "-ts", "1,1"], (3, 2)),
        (["-ngl", "1", "-ts", "1,1"], (1, 0)),
        (["-ngl", "4", "-ts", "3,1"], (3, 1)),
        (["-ngl", "0", "-ts", "1,1"], (0, 0)),
    ],
)
def test_layers_are_split_by_the_engines_rule(flags: list[str], split: tuple[int, ...]) -> None:
    devices = [DeviceId("rpc:a:1"), VULKAN]

    shape = launch_shape(asked(flags), some_row().model, devices=devices)

    assert tuple(layers for _, layers in shape.split) == split


def test_a_split_by_rows_over_several_devices_is_not_modelled() -> None:
    devices = [DeviceId("rpc:a:1"), VULKAN]

    with pytest.raises(NotModelled, match="-sm row"):
        launch_shape(asked(["-ts", "1,1", "-sm", "row"]), some_row().model, devices=devices)


def test_a_split_by_free_memory_is_not_modelled() -> None:
    with pytest.raises(NotModelled, match="free memory"):
        launch_shape(asked(["-ngl", "9"]), some_row().model, devices=[DeviceId("a"), VULKAN])
