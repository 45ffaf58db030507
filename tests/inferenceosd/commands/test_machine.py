"""inferenceosd.commands.machine: asked of an admin server on a real Unix socket."""

import json
from pathlib import Path

import pytest

from planners.profile_json import decode_profile
from tests.fakes.admin_service import PROFILE, OneModelService
from tests.fakes.ctl_program import ctl

PROFILES = Path(__file__).parents[2] / "fixtures" / "hardware" / "profiles"


def test_a_plan_is_asked_for_with_its_numbers(served: Path, service: OneModelService) -> None:
    result = ctl(served, "plan", "qwen", "--context", "4096", "--parallel", "2")

    assert result.exit_code == 0
    assert result.output.startswith("qwen: vulkan, context 4096 × 2")
    assert service.asked == [("plan", "qwen", 4096, 2, None)]


def test_several_models_are_planned_beside_each_other(
    served: Path, service: OneModelService
) -> None:
    result = ctl(served, "plan", "qwen", "qwen", "--context", "4096")

    assert result.exit_code == 0
    assert result.output.count("qwen: vulkan, context 4096 × 2") == 2
    assert result.output.rpartition("together:")[2].count("NVIDIA GeForce RTX 4090") == 1
    assert service.asked[0] == ("plans", ("qwen", "qwen"), 4096, None, None)


def test_one_of_several_that_does_not_fit_ends_with_status_1(
    served: Path, service: OneModelService
) -> None:
    service.fits = False

    result = ctl(served, "plan", "qwen", "qwen")

    assert result.exit_code == 1
    assert "qwen does not fit" in result.output


def test_files_and_names_are_not_planned_in_one_go(served: Path) -> None:
    result = ctl(served, "plan", "qwen", "./qwen.gguf")

    assert result.exit_code == 1
    assert "name models or files, not both" in result.stderr


def test_a_plan_that_does_not_fit_is_shown_with_status_1(
    served: Path, service: OneModelService
) -> None:
    service.fits = False

    result = ctl(served, "plan", "qwen")

    assert result.exit_code == 1
    assert "qwen does not fit" in result.stdout


def test_a_plan_for_another_machine_goes_to_the_daemon_with_the_machine(
    served: Path, service: OneModelService
) -> None:
    spark = PROFILES / "dgx-spark.json"

    result = ctl(served, "plan", "qwen", "--hardware", str(spark))

    assert result.exit_code == 0
    assert "planned for a profile, synthetic: DGX Spark" in result.output
    assert service.asked == [
        ("plan", "qwen", None, None, decode_profile(spark.read_text()).hardware)
    ]


@pytest.mark.parametrize("text", [b"{}", b"\xff\xfe", b"[" * 300_000])
def test_a_file_that_is_no_recorded_machine_is_one_sentence(
    served: Path, tmp_path: Path, text: bytes
) -> None:
    wrong = tmp_path / "machine.json"
    wrong.write_bytes(text)

    result = ctl(served, "plan", "qwen", "--hardware", str(wrong))

    assert result.exit_code == 1
    assert result.stderr.startswith(f"inferenceosctl: {wrong}: ")
    assert result.stderr.count("\n") == 1


def test_the_daemons_machine_is_shown_printed_and_recorded(served: Path, tmp_path: Path) -> None:
    shown = ctl(served, "profile")
    printed = ctl(served, "profile", "--json", "--record", str(tmp_path / "machine.json"))

    assert shown.output.startswith("recorded by a test\n\nhost: AMD Ryzen 9 7950X, 8 cores")
    assert printed.output == PROFILE
    assert (tmp_path / "machine.json").read_text() == PROFILE


@pytest.mark.parametrize("command", ["profile", "doctor"])
def test_a_machine_that_another_version_recorded_is_refused_in_a_sentence(
    served: Path, service: OneModelService, command: str
) -> None:
    service.machine = PROFILE.replace('"version": 1', '"version": 2')

    result = ctl(served, command)

    assert result.exit_code == 1
    assert result.stderr == (
        "inferenceosctl: no hardware profile: version must be 1; another inferenceosd wrote it\n"
    )


def test_the_doctor_looks_by_the_daemons_eyes_where_one_runs(served: Path) -> None:
    result = ctl(served, "doctor", "--json")

    found = {check["name"]: check for check in json.loads(result.output)["checks"]}
    assert found["port"]["sentence"] == "the daemon listens on 127.0.0.1:11434"
    assert found["models"]["verdict"] == "fail"
    assert "/models/lfs.gguf" in found["models"]["sentence"]
    assert result.exit_code == 1
