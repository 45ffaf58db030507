import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from inferenceosd.platform_folders import Platform, state_folder

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "build_backends.sh"

Build = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Runs the script with a home of its own, and whatever else is told of the environment."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        usual = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "PYTHON": sys.executable,
        }
        return subprocess.run(
            ["bash", str(SCRIPT), *arguments],
            env=usual | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What the script takes for an unpacked llama.cpp."""
    folder = tmp_path / "source"
    (folder / "ggml").mkdir(parents=True)
    (folder / "ggml" / "CMakeLists.txt").touch()
    return folder


def installed(prefix: Path, build_id: str) -> None:
    binary = prefix / "cpu" / build_id / "bin" / "llama-server"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), "cpu"),
        (("tpu",), "'tpu'"),
        (("--fast",), "--fast"),
        (("cpu", "--jobs"), "--jobs"),
        (("cpu", "--jobs", "0"), "--jobs 0"),
        (("cpu", "--jobs", "many"), "--jobs many"),
        (("cpu", "--prefix", ""), "--prefix"),
        (("cpu", "--source", "/nonexistent"), "/nonexistent"),
    ],
    ids=["none", "backend", "option", "no-value", "zero", "words", "empty", "no-source"],
)
def test_bad_arguments_are_named_in_one_line_with_exit_code_2(
    build: Build, arguments: tuple[str, ...], names: str
) -> None:
    told = build(*arguments)

    assert told.returncode == 2
    assert told.stdout == ""
    assert len(told.stderr.splitlines()) == 1
    assert names in told.stderr


def test_help_names_every_option_and_the_exit_codes(build: Build) -> None:
    told = build("--help")

    assert told.returncode == 0
    for word in (
        "--prefix",
        "--source",
        "--work",
        "--jobs",
        "--one-variant",
        "--dry-run",
        "--list",
    ):
        assert word in told.stdout
    assert "Exit codes" in told.stdout


def test_a_dry_run_prints_the_commands_and_touches_nothing(build: Build, tmp_path: Path) -> None:
    prefix, work = tmp_path / "engines", tmp_path / "work"

    told = build("cpu", "--dry-run", "--jobs", "3", "--prefix", str(prefix), "--work", str(work))

    assert told.returncode == 0
    assert "-m pip download" in told.stdout
    assert "--require-hashes" in told.stdout
    assert f"-DIOS_SOURCE_DIR={work}/source" in told.stdout
    assert "--parallel 3 --target ios" in told.stdout
    assert not prefix.exists()
    assert not work.exists()


def test_a_source_on_disk_is_built_without_fetching(build: Build, source: Path) -> None:
    by_option = build("cpu", "--dry-run", "--source", str(source))
    by_variable = build("cpu", "--dry-run", LLAMA_CPP_SOURCE=str(source))

    assert f"-DIOS_SOURCE_DIR={source}" in by_option.stdout
    assert "pip" not in by_option.stdout
    assert by_variable.stdout == by_option.stdout


def test_one_variant_is_passed_to_cmake(build: Build) -> None:
    assert "-DIOS_ONE_VARIANT=OFF" in build("cpu", "--dry-run").stdout
    assert "-DIOS_ONE_VARIANT=ON" in build("cpu", "--dry-run", "--one-variant").stdout


def test_our_own_repository_is_out_of_cmakes_sight(build: Build, source: Path) -> None:
    told = build("cpu", "--dry-run", "--source", str(source))

    assert f"GIT_CEILING_DIRECTORIES={source.parent}" in told.stdout


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"XDG_STATE_HOME": "/elsewhere"},
        {"XDG_STATE_HOME": "relative"},
        {"STATE_DIRECTORY": "/var/lib/one:/var/lib/two"},
    ],
    ids=["home", "xdg", "xdg-relative", "systemd"],
)
def test_builds_go_where_the_daemon_looks(
    build: Build, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    here = Platform(
        system=sys.platform,
        is_root=os.geteuid() == 0,
        home=str(tmp_path / "home"),
        cwd=str(tmp_path),
    )

    told = build("cpu", "--dry-run", **environment)

    assert f"# prefix: {state_folder(environment, here)}/engines\n" in told.stdout


def test_builds_are_listed_with_the_current_one_marked(build: Build, tmp_path: Path) -> None:
    installed(tmp_path, "0c1e57-aaa")
    installed(tmp_path, "0c1e57-bbb")
    (tmp_path / "cpu" / "current").symlink_to("0c1e57-bbb")

    told = build("--list", "--prefix", str(tmp_path))

    assert told.returncode == 0
    assert told.stdout == "cpu 0c1e57-aaa\ncpu 0c1e57-bbb (current)\n"


def test_where_nothing_was_built_the_list_says_so(build: Build, tmp_path: Path) -> None:
    told = build("--list", "--prefix", str(tmp_path))

    assert told.returncode == 0
    assert "no builds" in told.stdout


def test_missing_tools_are_named_in_one_line_with_their_packages(
    build: Build, source: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "uname", "id", "nproc", "awk"):
        (tools / name).symlink_to(shutil.which(name) or name)

    told = build("cpu", "--source", str(source), PATH=str(tools))

    assert told.returncode == 1
    assert len(told.stderr.splitlines()) == 1
    assert "cmake" in told.stderr
    assert "C++ compiler" in told.stderr
    assert not (tmp_path / "home").exists()


def test_a_source_that_cmake_refuses_leaves_current_as_it_was(
    build: Build, source: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cmake", "c++", "ninja"):
        (tools / name).write_text('#!/bin/sh\n[ "$1" = --version ] && echo 1 && exit 0\nexit 9\n')
        (tools / name).chmod(0o755)
    prefix = tmp_path / "engines"
    installed(prefix, "old")
    (prefix / "cpu" / "current").symlink_to("old")

    told = build(
        "cpu",
        "--source",
        str(source),
        "--prefix",
        str(prefix),
        PATH=f"{tools}:{os.environ['PATH']}",
        TMPDIR=str(tmp_path),
    )

    assert told.returncode == 1
    assert "could not configure" in told.stderr
    assert os.readlink(prefix / "cpu" / "current") == "old"
    assert not list(tmp_path.glob("llama.cpp.*"))


def test_shellcheck_has_nothing_to_say() -> None:
    checker = Path(sys.executable).parent / "shellcheck"

    told = subprocess.run(
        [str(checker), str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False
    )

    assert told.stdout == ""
    assert told.returncode == 0


def test_the_script_uses_nothing_newer_than_bash_3_2() -> None:
    text = SCRIPT.read_text()

    for newer in ("declare -A", "mapfile", "readarray", "${prefix^", "${prefix,", "|&", "local -n"):
        assert newer not in text


def test_the_option_table_is_part_of_the_project() -> None:
    told = subprocess.run(
        ["git", "check-ignore", "build/llama.cpp.cmake"],
        cwd=ROOT,
        capture_output=True,
        timeout=30,
        check=False,
    )

    assert (ROOT / "build" / "llama.cpp.cmake").is_file()
    assert told.returncode != 0
