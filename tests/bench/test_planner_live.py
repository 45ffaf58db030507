"""A seeded handful of real launches: processor, software Vulkan device, loopback RPC servers."""

from pathlib import Path

import pytest

from bench.planner.live import handful
from planners.layout.dry_runs import PreflightFailed
from tests.fakes.system_parts import need_mesa


@pytest.mark.llama
async def test_both_predictions_hold_on_this_machine(tmp_path: Path) -> None:
    need_mesa()
    folder = tmp_path / "m"
    folder.mkdir()

    found = await handful(seed=7, models=3, folder=folder)

    assert len(found) >= 14
    assert {launch.name: launch.died for launch in found if launch.died} == {}
    assert any("RPC1" in launch.name for launch in found)
    assert any("Vulkan1" in launch.name for launch in found)
    assert not [launch.name for launch in found if isinstance(launch.dry, PreflightFailed)]
    closed = {launch.name: list(launch.errors(launch.predicted)) for launch in found}
    dry = {launch.name: list(launch.dry_errors) for launch in found}
    # A logged size is rounded to 0.01 MiB, which is a percent of what tiny models leave to a
    # device that holds little more than their output.
    assert {name: e for name, e in closed.items() if max(map(abs, e)) > 0.02} == {}
    assert {name: e for name, e in dry.items() if max(map(abs, e)) > 0.03} == {}
