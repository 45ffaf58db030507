"""inferenceosctl without a daemon: a real file, recorded machines, this machine."""

import asyncio
import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inferenceosd.ctl import main
from planners.model import ModelId
from planners.plan import InstanceId
from planners.profile_json import decode_profile
from supervisor.children.child_logs import FOLDER, open_child_logs
from supervisor.engines.quickstart import quickstart_model_dir
from supervisor.engines.tinymodel import tiny_model

PROFILES = Path(__file__).parents[2] / "fixtures" / "hardware" / "profiles"
pytestmark = pytest.mark.llama  # engines are looked for, and the quickstart's is found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model())
    return path


@pytest.fixture
def ctl(tmp_path: Path) -> CliRunner:
    config = tmp_path / "config.toml"
    config.write_text(f'[state]\ndir = "{tmp_path}/state"\n[models]\ndirs = ["{tmp_path}"]\n')
    return CliRunner(env={"INFERENCEOSD_CONFIG": str(config), "PATH": "/usr/bin:/bin"})


def run(ctl: CliRunner, *arguments: object) -> Result:
    return ctl.invoke(main, ["--socket", "/nonexistent", *map(str, arguments)])


def test_a_file_is_planned_for_this_machine(ctl: CliRunner, model: Path) -> None:
    result = run(ctl, "plan", model, "--context", 512)

    assert result.exit_code == 0, result.output
    assert result.output.startswith("tiny: ")
    assert f"--model {model}" in result.output


def test_a_file_is_planned_for_another_machine(ctl: CliRunner) -> None:
    folder = quickstart_model_dir()
    assert folder is not None, "no quickstart model: run make test, or scripts/quickstart.py"
    (model,) = folder.glob("*.gguf")
    laptop = PROFILES / "laptop-nvidia-intel.json"

    result = run(ctl, "plan", model, "--hardware", laptop, "--json")

    report = json.loads(result.output)
    assert report["plan"]["devices"][0][1] == "CUDA0"
    assert report["argv"][0] == "llama-server"
    assert report["origin"].startswith("synthetic: a laptop")
    assert [each["name"] for each in report["unused"]] == ["Intel(R) Iris(R) Xe Graphics (RPL-P)"]


def test_several_files_are_planned_beside_each_other(
    ctl: CliRunner, model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_model())
    card = PROFILES / "nvidia-8gb.json"

    result = run(ctl, "plan", model, other, "--hardware", card, "--json")

    report = json.loads(result.output)
    assert report["origin"].startswith("synthetic: ")
    assert [each["plan"]["model_id"] for each in report["plans"]] == ["tiny", "other"]
    for total in report["sums"]:
        of_each = [p for each in report["plans"] for p in each["places"]]
        on_it = [place["total_bytes"] for place in of_each if place["device"] == total["device"]]
        assert total["total_bytes"] == sum(on_it)
        assert total["models"] == 2


def test_a_file_that_is_named_twice_is_not_planned_beside_itself(
    ctl: CliRunner, model: Path
) -> None:
    result = run(ctl, "plan", model, model)

    assert result.exit_code == 1
    assert result.stderr == (
        "inferenceosctl: tiny is named twice, and a model runs once: name it once;"
        " --parallel plans more slots\n"
    )


def test_files_of_one_name_cannot_be_told_apart(
    ctl: CliRunner, model: Path, tmp_path: Path
) -> None:
    twin = tmp_path / "elsewhere" / model.name
    twin.parent.mkdir()
    twin.write_bytes(model.read_bytes())

    result = run(ctl, "plan", model, twin)

    assert result.exit_code == 1
    assert "are both named tiny" in result.stderr


def test_a_file_that_is_no_model_is_one_sentence(ctl: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no model at all")

    bad, missing = (run(ctl, "plan", tmp_path / f"{name}.gguf") for name in ("bad", "missing"))

    assert (bad.exit_code, missing.exit_code) == (1, 1)
    assert bad.stderr.startswith(f"inferenceosctl: {tmp_path}/bad.gguf: ")
    assert missing.stderr == (
        f"inferenceosctl: {tmp_path}/missing.gguf: no such file or directory\n"
    )


def test_a_path_names_a_file_whatever_its_name_ends_in(
    ctl: CliRunner, model: Path, tmp_path: Path
) -> None:
    blob = model.rename(tmp_path / "sha256-0123")
    (tmp_path / "README.md").write_text("no model at all")

    planned, refused = (run(ctl, "plan", path) for path in (blob, tmp_path / "README.md"))

    assert planned.output.startswith("sha256-0123: ")
    assert refused.stderr.startswith(f"inferenceosctl: {tmp_path}/README.md: ")


def test_this_machine_is_profiled_and_recorded(ctl: CliRunner, tmp_path: Path) -> None:
    result = run(ctl, "profile", "--record", tmp_path / "here.json")

    assert result.exit_code == 0, result.output
    recorded = decode_profile((tmp_path / "here.json").read_text())
    assert recorded.hardware.host.cpu_name in result.output
    assert recorded.hardware.host.total_bytes > 0


def test_the_doctor_looks_for_itself_and_leaves_no_trace(ctl: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "big-00001-of-00002.gguf").write_bytes(tiny_model())

    result = run(ctl, "doctor")

    assert result.exit_code == 1
    assert "WARN  daemon         none answers on /nonexistent" in result.output
    assert "part 2 of 2 is missing: big-00002-of-00002.gguf" in result.output
    assert "pass  engine" in result.output
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", ["doctor", "profile"])
def test_json_is_all_that_stands_on_stdout(ctl: CliRunner, tmp_path: Path, command: str) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no model at all")

    result = run(ctl, command, "--json")

    assert isinstance(json.loads(result.stdout), dict)
    assert result.stderr == ""


def test_the_doctor_misses_nothing_that_the_daemon_makes_itself(
    ctl: CliRunner, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(f'[state]\ndir = "{tmp_path}/state"\n')

    found = json.loads(run(ctl, "doctor", "--json").stdout)["checks"]

    on_folders = {(each["name"], each["verdict"]) for each in found} & {
        (name, verdict) for name in ("models", "disk") for verdict in ("pass", "warn", "fail")
    }
    assert on_folders == {("models", "pass"), ("disk", "pass")}


def test_the_doctor_knows_members_of_groups_by_name_and_alias(
    ctl: CliRunner, model: Path, tmp_path: Path
) -> None:
    with (tmp_path / "config.toml").open("a") as config:
        config.write(f'[[model]]\nname = "{model.stem}"\naliases = ["small"]\n')
        config.write('[[group]]\nname = "g"\nmodels = ["Small", "TINY:latest", "qwn"]\n')

    result = run(ctl, "doctor")

    assert "WARN  groups         group 'g' names no model with 'qwn'\n" in result.output


def test_the_doctor_names_who_has_the_port(ctl: CliRunner, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (tmp_path / "config.toml").open("a") as config:
            config.write(f'[server]\nlisten = "127.0.0.1:{port}"\n')
        result = run(ctl, "doctor")

    assert f"FAIL  port           127.0.0.1:{port}" in result.output


def test_the_doctor_says_which_line_of_the_configuration_is_wrong(
    ctl: CliRunner, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text('[log]\nlevel = "loud"\n')

    result = run(ctl, "doctor")

    assert result.exit_code == 1
    assert f"FAIL  configuration  {tmp_path}/config.toml:2: log.level" in result.output


def test_a_log_is_read_from_the_state_folder_by_alias_too(
    ctl: CliRunner, model: Path, tmp_path: Path
) -> None:
    with (tmp_path / "config.toml").open("a") as config:
        config.write('[[model]]\nname = "tiny"\naliases = ["small"]\n')
    asyncio.run(_leave_log(tmp_path / "state", "tiny", "one", "two", "three"))

    by_name, by_alias = (run(ctl, "logs", name, "--tail", 2) for name in ("tiny", "SMALL"))

    assert (by_name.exit_code, by_name.output) == (0, "two\nthree\n")
    assert by_alias.output == by_name.output


def test_a_log_that_is_not_there_is_one_sentence_with_its_folder(
    ctl: CliRunner, tmp_path: Path
) -> None:
    result = run(ctl, "logs", "tiny")

    assert result.exit_code == 1
    assert result.stderr == (
        f"inferenceosctl: no inferenceosd runs, and {tmp_path}/state/logs has no log of model"
        " 'tiny'\n"
    )


def test_a_log_is_not_followed_where_nobody_writes_one(ctl: CliRunner) -> None:
    result = run(ctl, "logs", "tiny", "--follow")

    assert result.exit_code == 1
    assert "no inferenceosd answers on /nonexistent" in result.stderr


@pytest.mark.parametrize("place", ["", "missing/here.json"], ids=["a folder", "no such folder"])
def test_a_profile_that_cannot_be_written_is_one_sentence(
    ctl: CliRunner, tmp_path: Path, place: str
) -> None:
    result = run(ctl, "profile", "--record", tmp_path / place)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"inferenceosctl: {tmp_path / place} cannot be written: ")
    assert len(result.stderr.splitlines()) == 1


async def _leave_log(state: Path, model: str, *lines: str) -> None:
    async with open_child_logs(state / FOLDER) as logs:
        with logs.open(ModelId(model), InstanceId("i1")) as log:
            for line in lines:
                log.write(line)
