import pytest
from msgspec.structs import replace

from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST
from planners.layout.dry_runs import NO_DRY_RUNS, DryRunKey, DryRuns, PreflightFailed, Reserved
from planners.model import ModelId

KEY = DryRunKey("engine", "digest", LaunchShape(4096, 1, 512, 512), settings=())
MODEL = ModelId("model")
ASKING = DryRuns(are_made=True)


@pytest.mark.parametrize(
    ("predicted", "nearest"), [(5, 6), (6, 6), (7, 7), (9, 8)], ids=["less", "least", "in", "more"]
)
def test_a_printed_figure_is_whatever_it_may_have_been_rounded_from(
    predicted: int, nearest: int
) -> None:
    assert Reserved(6, 8).nearest_bytes(predicted) == nearest


@pytest.mark.parametrize(
    ("dry_runs", "expected"),
    [
        pytest.param(NO_DRY_RUNS, False, id="nobody makes them"),
        pytest.param(ASKING, True, id="nothing is known"),
        pytest.param(replace(ASKING, spent=frozenset({MODEL})), False, id="spent"),
        pytest.param(replace(ASKING, told={KEY: {HOST: Reserved(1, 2)}}), False, id="told"),
        pytest.param(replace(ASKING, told={KEY: PreflightFailed("why")}), False, id="failed"),
    ],
)
def test_a_launch_is_run_dry_once_and_only_where_somebody_does(
    dry_runs: DryRuns, expected: bool
) -> None:
    assert dry_runs.may_tell(KEY, MODEL) is expected


def test_a_dry_run_that_failed_tells_nothing() -> None:
    assert replace(ASKING, told={KEY: PreflightFailed("why")}).of(KEY) is None
    assert replace(ASKING, told={KEY: {HOST: Reserved(1, 2)}}).of(KEY) == {HOST: Reserved(1, 2)}
