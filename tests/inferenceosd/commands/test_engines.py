"""inferenceosd.commands.engines: with the admin service on a real socket, and with nobody on it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inferenceosd.ctl import main
from tests.fakes.admin_service import BUILD, OneModelService, admin_socket

FAKE = Path(__file__).parents[2] / "fakes" / "llama_server.py"


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with two builds, and a socket that nobody listens on."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    for name in ("one", "two"):
        binary = tmp_path / "state" / "engines" / "cpu" / name / "bin" / "llama-server"
        binary.parent.mkdir(parents=True)
        binary.write_text(FAKE.read_text())
        binary.chmod(0o755)
    return tmp_path / "admin.sock"


def ctl(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--socket", str(path), "engines", *arguments])


def lines(result: Result) -> dict[str, str]:
    """Build → its state."""
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()[1:]]
    return {row[1]: row[-1] for row in rows}


def test_a_running_daemon_tells_of_its_builds() -> None:
    with admin_socket(OneModelService()) as path:
        told = ctl(path)
        told_json = ctl(path, "list", "--json")

    assert BUILD.build_id in told.output
    assert "current; in use" in told.output
    assert json.loads(told_json.output)["builds"][0]["build_id"] == BUILD.build_id


def test_a_running_daemon_is_asked_to_pin_and_answers_with_what_is_then() -> None:
    with admin_socket(OneModelService()) as path:
        pinned = ctl(path, "pin", BUILD.build_id)
        unknown = ctl(path, "use", "three")

    assert "pinned; current" in pinned.output
    assert unknown.exit_code == 1
    assert "no build 'three'" in unknown.output


def test_without_a_daemon_builds_are_chosen_held_and_removed_on_disk(nobody: Path) -> None:
    assert lines(ctl(nobody)) == {"one": "-", "two": "-"}
    assert lines(ctl(nobody, "use", "one")) == {"one": "current", "two": "-"}
    assert lines(ctl(nobody, "pin", "cpu/two")) == {"one": "current", "two": "pinned"}
    assert lines(ctl(nobody, "pin", "two", "--off")) == {"one": "current", "two": "-"}
    assert lines(ctl(nobody, "remove", "two")) == {"one": "current"}


def test_what_is_in_use_or_unknown_is_refused_in_a_sentence(nobody: Path) -> None:
    ctl(nobody, "use", "one")

    in_use, unknown = ctl(nobody, "remove", "one"), ctl(nobody, "pin", "three")

    assert in_use.exit_code == unknown.exit_code == 1
    assert "one stays: it is the current one of cpu" in in_use.output
    assert "no build 'three'; there are: cpu/" in unknown.output


def test_an_engine_that_decodes_is_told_of_by_name_or_path(nobody: Path) -> None:
    by_name, by_path = ctl(nobody, "try", "one"), ctl(nobody, "try", str(FAKE))

    assert by_name.exit_code == by_path.exit_code == 0
    assert "decodes      yes" in by_path.output
    assert "saves slots  no: moves read conversations again" in by_name.output
    assert "protocol     yes" in by_name.output
    assert "log          --verbosity 4, with times" in by_name.output


def test_a_running_daemon_is_asked_where_the_build_to_try_lies() -> None:
    with admin_socket(OneModelService()) as path:
        there, unknown = ctl(path, "try", BUILD.build_id), ctl(path, "try", "three")

    assert there.exit_code == unknown.exit_code == 1
    assert f"{BUILD.path}: there is no such file" in there.output
    assert f"no build 'three'; there are: {BUILD.backend}/{BUILD.build_id}" in unknown.output


def test_an_engine_that_does_not_is_refused_with_its_reason(nobody: Path, tmp_path: Path) -> None:
    broken = tmp_path / "llama-server"
    broken.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    broken.chmod(0o755)

    told = ctl(nobody, "try", str(broken))

    assert told.exit_code == 1
    assert "out of luck" in told.output


def test_a_path_to_try_that_leads_nowhere_is_not_taken_for_the_id_of_a_build(
    nobody: Path, tmp_path: Path
) -> None:
    lost = tmp_path / "llama-server"

    told = ctl(nobody, "try", str(lost))

    assert told.exit_code == 1
    assert f"{lost}: there is no such file" in told.output
    assert "no build" not in told.output


def test_where_nothing_was_built_it_says_where_the_engines_in_use_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))

    told = ctl(tmp_path / "admin.sock", "list")

    assert told.exit_code == 0
    assert "scripts/build_backends.sh makes one" in told.output
    assert "inferenceosctl status shows the engines in use" in told.output
