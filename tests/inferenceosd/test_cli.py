"""inferenceosd.cli: help, version, --check and exit status."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from inferenceosd import __version__
from inferenceosd.cli import main

PROGRAM = Path(sys.executable).with_name("inferenceosd")


def run(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The installed program, with little in its environment."""
    return subprocess.run(
        [PROGRAM, *arguments],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def right(tmp_path: Path) -> Path:
    file = tmp_path / "right.toml"
    file.write_text('[server]\nlisten = "127.0.0.1:0"\n')
    return file


def test_check_says_that_a_right_configuration_is_right(right: Path) -> None:
    done = run("--config", str(right), "--check")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{right}: ok\n", "")


@pytest.mark.parametrize("has_file", [True, False])
def test_check_names_the_variables_and_options_that_settings_come_from(
    right: Path, has_file: bool
) -> None:
    environ = {
        "INFERENCEOSD_MODELS_CONTEXT": "4096",
        "INFERENCEOSD_LOG_LEVEL": "debug",
        "OLLAMA_KEEP_ALIVE": "1h",
        "OLLAMA_NUM_PARALLEL": "",
    }
    config = ("--config", str(right)) if has_file else ()

    done = run(*config, "--check", "--log-level", "error", environ=environ)

    from_where = str(right) if has_file else "no configuration file"
    said = f"{from_where}, with INFERENCEOSD_MODELS_CONTEXT, OLLAMA_KEEP_ALIVE, --log-level: ok\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_check_tells_file_line_key_and_what_is_allowed(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[log]\nlevel = "loud"\n')

    done = run("--config", str(wrong), "--check")

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"inferenceosd: {wrong}:2: log.level: 'loud' is none of them;"
        ' allowed: "debug" | "info" | "warning" | "error"\n'
    )


def test_check_repeats_the_warnings_of_ollamas_variables(right: Path) -> None:
    environ = {"OLLAMA_NUM_PARALLEL": "many"}

    done = run("--config", str(right), "--check", environ=environ)

    assert done.returncode == 0
    assert "OLLAMA_NUM_PARALLEL='many'" in done.stderr


def test_a_wrong_option_is_refused_with_status_2(right: Path) -> None:
    done = run("--config", str(right), "--check", "--listen", "here")

    assert done.returncode == 2
    assert done.stderr.startswith("inferenceosd: --listen: ")


def test_options_are_the_ones_that_were_promised() -> None:
    promised = (
        "--config --listen --admin-socket --state-dir --model-dir --log-format --log-level"
        " --check --version"
    )

    assert set(promised.split()) <= {name for param in main.params for name in param.opts}


def test_help_says_where_settings_come_from_and_what_the_exit_status_means() -> None:
    shown = CliRunner().invoke(main, ["--help"])

    assert shown.exit_code == 0
    for word in ("Examples:", "OLLAMA_HOST", "INFERENCEOSD_SERVER_LISTEN", "Exit status"):
        assert word in shown.output


def test_version_is_the_packages() -> None:
    shown = CliRunner().invoke(main, ["--version"], prog_name="inferenceosd")

    assert shown.output == f"inferenceosd {__version__}\n"


def test_a_stranger_by_the_name_of_a_sibling_is_refused_in_one_sentence(tmp_path: Path) -> None:
    package = tmp_path / "supervisor"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")

    done = run("--check", environ={"PYTHONPATH": str(tmp_path)})

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"the package supervisor in {tmp_path} hides the one of inferenceosd" in done.stderr


OPEN = '[server]\nlisten = "0.0.0.0:0"\n'


@pytest.mark.parametrize("options", [("--check",), ()], ids=["check", "start"])
def test_a_port_that_others_reach_without_a_key_is_refused_as_a_wrong_setting(
    short_folder: Path, options: tuple[str, ...]
) -> None:
    file = short_folder / "open.toml"
    file.write_text(OPEN)
    environ = {"INFERENCEOSD_RUNTIME_DIR": str(short_folder / "run")}

    done = run(
        "--config", str(file), "--state-dir", str(short_folder / "state"), *options, environ=environ
    )

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("inferenceosd: server.listen: 0.0.0.0:0 can be reached from elsewhere")


def test_ollamas_variable_opens_no_port_without_a_key(right: Path) -> None:
    done = run("--config", str(right), "--check", environ={"OLLAMA_HOST": "0.0.0.0"})

    assert done.returncode == 2
    assert "server.listen: 0.0.0.0:11434 can be reached from elsewhere" in done.stderr


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        (("--insecure",), {}),
        ((), {"INFERENCEOSD_SERVER_INSECURE": "true"}),
        ((), {"OLLAMA_HOST": "127.0.0.1:0"}),
    ],
    ids=["the option", "the variable", "Ollama's variable"],
)
def test_what_makes_it_right_is_right(
    tmp_path: Path, options: tuple[str, ...], environ: dict[str, str]
) -> None:
    file = tmp_path / "open.toml"
    file.write_text(OPEN)

    done = run("--config", str(file), "--check", *options, environ=environ)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("key", ["tls_cert", "tls_key"])
def test_half_of_tls_is_a_mistake_with_its_line(tmp_path: Path, key: str) -> None:
    file = tmp_path / "half.toml"
    file.write_text(f'[server]\n{key} = "x.pem"\n')

    done = run("--config", str(file), "--check")

    assert done.returncode == 2
    assert f"{file}:2: server.{key}: it needs server.tls_" in done.stderr
