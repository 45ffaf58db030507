"""inferenceosctl plan, profile and doctor against the real daemon, engine and model."""

import json
from pathlib import Path
from typing import Any

from planners.profile_json import decode_profile
from tests.integration.test_daemon import MODEL

PROFILES = Path(__file__).parents[1] / "fixtures" / "hardware" / "profiles"


def test_a_plan_tells_layers_flags_and_what_is_left(
    start: Any, vulkan_environ: dict[str, str]
) -> None:
    daemon = start(environ=vulkan_environ, config='[devices."Vulkan0"]\nuse = true\n')

    told = daemon.ctl("plan", MODEL, "--context", "4096", "--json")

    report = json.loads(told.stdout)
    assert report["layers"] == "layers 0–29 Vulkan0, output Vulkan0"
    assert report["argv"][report["argv"].index("--device") + 1] == "Vulkan0"
    host, gpu = report["places"]
    assert gpu["left_bytes"] == gpu["free_bytes"] - gpu["total_bytes"]
    assert host["left_bytes"] == host["free_bytes"] - host["total_bytes"] - gpu["total_bytes"]


def test_a_model_is_planned_for_a_machine_that_somebody_recorded(start: Any) -> None:
    daemon = start()
    server = PROFILES / "nvidia-2-unequal.json"

    told = daemon.ctl("plan", MODEL, "--hardware", str(server))

    assert told.returncode == 0, told.stderr
    assert "layers 0–29 CUDA0, output CUDA0" in told.stdout
    assert "not used:\n- NVIDIA GeForce RTX 3060: " in told.stdout


def test_the_daemons_own_machine_is_recorded_and_planned_for_again(
    start: Any, model_dir: Path, tmp_path: Path
) -> None:
    daemon = start()
    here = tmp_path / "here.json"

    recorded = daemon.ctl("profile", "--record", str(here))
    planned = daemon.ctl("plan", MODEL, "--hardware", str(here))

    assert recorded.returncode == 0, recorded.stderr
    assert decode_profile(here.read_text()).hardware.storage[0].folder == "models.dirs[1]"
    assert str(model_dir) in recorded.stdout
    assert planned.stdout.startswith("planned for a profile, recorded by inferenceosd ")
    assert f"\n{MODEL}: " in planned.stdout


def test_the_doctor_finds_nothing_wrong_with_a_daemon_that_serves(
    start: Any, model_dir: Path
) -> None:
    daemon = start()

    told = daemon.ctl("doctor")

    assert told.returncode == 0, told.stdout
    assert "pass  engine" in told.stdout
    assert f"pass  disk           {model_dir} (models) has " in told.stdout
    assert f"pass  port           the daemon listens on {daemon.base.removeprefix('http://')}" in (
        told.stdout
    )
