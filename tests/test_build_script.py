import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from inferenceosd.platform_folders import Platform, state_folder
from tests.fakes.waiting import until

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "build_backends.sh"
SHELL_FILES = (*sorted((ROOT / "scripts").glob("*.sh")), *sorted((ROOT / "build").glob("*.sh")))
FAKE = ROOT / "tests" / "fakes" / "llama_server.py"
CMAKE = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/calls"
case "$*" in
  *--build*) while [ -e "$(dirname "$0")/slow" ]; do sleep 0.05; done ;;
  *--version*) echo "cmake version 3.25.1" ;;
  *--install*) for last; do :; done; mkdir -p "$last/bin"; cp "{fake}" "$last/bin/llama-server" ;;
esac
"""
NEWER_THAN_BASH_3_2 = re.compile(
    r"(?:declare|local|typeset) -[a-zA-Z]*[Angul]|\b(?:mapfile|readarray|coproc|wait -n)\b"
    r"|\^\^?\}|,,?\}|\|&|&>>|;;?&|@[A-Za-z]\}|\[-\d+\]|printf -v \w+\["
    r"|printf '[^']*%\(|\[\[? -[vR] |EPOCH|globstar|\\u[0-9a-fA-F]{4}"
)
"""What came with bash 4 and later; macOS has 3.2."""
SIGILL = '{"sigill": true}'

Build = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home of its own, and this Python."""
    home = str(tmp_path / "home")
    return {"PATH": os.environ["PATH"], "HOME": home, "PYTHON": sys.executable}


@pytest.fixture
def build(environ: dict[str, str]) -> Build:
    """Runs the script there, with whatever else is told of the environment."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(SCRIPT), *arguments],
            env=environ | environment,
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


@pytest.fixture
def at_once(environ: dict[str, str], source: Path, tmp_path: Path) -> dict[str, str]:
    """Likewise where CMake and the compiler are at once done: the fake server comes out."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {"cmake": CMAKE.format(fake=FAKE), "c++": "#!/bin/sh\necho c++ 12\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    return environ | {
        "PATH": f"{tools}:{environ['PATH']}",
        "LLAMA_CPP_SOURCE": str(source),
        "INFERENCEOSD_BUILD_DIR": str(tmp_path / "work"),
    }


@pytest.fixture
def builder(build: Build, at_once: dict[str, str], tmp_path: Path) -> Build:
    """Runs the script there."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        prefix = ("--prefix", str(tmp_path / "engines"))
        return build("cpu", *prefix, *arguments, **(at_once | environment))

    return run


def current(tmp_path: Path) -> Path:
    """The build that is in force."""
    return (tmp_path / "engines" / "cpu" / "current").resolve(strict=True)


def calls(tmp_path: Path) -> str:
    """What CMake was asked for, one line each."""
    return (tmp_path / "tools" / "calls").read_text()


def git(*arguments: str, cwd: Path) -> str:
    named = ("-c", "user.name=x", "-c", "user.email=x@y", *arguments)
    told = subprocess.run(
        ["git", *named], cwd=cwd, capture_output=True, text=True, timeout=30, check=True
    )
    return told.stdout.strip()


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
        (("cpu", "--commit", "0c1e57"), "--commit 0c1e57"),
        (("cpu", "--commit", "x" * 40), "--commit xxx"),
        (("cpu", "--keep", "0"), "--keep 0"),
        (("cuda", "--cuda-arch", "$(id)"), "--cuda-arch"),
        (("auto", "cpu"), "auto"),
    ],
    ids=[
        "none",
        "backend",
        "option",
        "no-value",
        "zero",
        "words",
        "empty",
        "no-source",
        "short-commit",
        "no-commit",
        "keep-none",
        "arch",
        "auto-and-more",
    ],
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
        "--commit",
        "--repository",
        "--jobs",
        "--native",
        "--one-variant",
        "--cuda-arch",
        "--keep",
        "--configure",
        "--dry-run",
        "--list",
    ):
        assert word in told.stdout
    assert "Exit codes" in told.stdout


def test_a_dry_run_prints_the_commands_and_touches_nothing(build: Build, tmp_path: Path) -> None:
    prefix, work = tmp_path / "engines", tmp_path / "work"

    told = build(
        "cpu", "--dry-run", "--jobs", "3", "--prefix", str(prefix), INFERENCEOSD_BUILD_DIR=str(work)
    )

    assert told.returncode == 0
    assert "-m pip download" in told.stdout
    assert "--require-hashes" in told.stdout
    assert f"-DIOS_SOURCE_DIR={work}/source/0c1e57098bba" in told.stdout
    assert "--parallel 3 --target ios" in told.stdout
    assert not prefix.exists()
    assert not work.exists()


def test_a_source_on_disk_is_built_without_fetching(build: Build, source: Path) -> None:
    by_option = build("cpu", "--dry-run", "--source", str(source))
    by_variable = build("cpu", "--dry-run", LLAMA_CPP_SOURCE=str(source))

    assert f"-DIOS_SOURCE_DIR={source}" in by_option.stdout
    assert "pip" not in by_option.stdout
    assert by_variable.stdout == by_option.stdout


@pytest.mark.parametrize(
    ("option", "variant"),
    [((), "portable"), (("--one-variant",), "one"), (("--native",), "native")],
)
def test_for_which_processors_is_passed_to_cmake(
    build: Build, option: tuple[str, ...], variant: str
) -> None:
    assert f"-DIOS_VARIANT={variant} " in build("cpu", "--dry-run", *option).stdout


def test_object_files_of_a_native_build_are_not_shared_with_other_machines(build: Build) -> None:
    assert "ccache" not in build("cpu", "--dry-run", "--native").stdout


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
    (tmp_path / "cpu" / "pinned").symlink_to("0c1e57-aaa")
    (tmp_path / "cpu" / "0c1e57-bbb.failed").touch()

    told = build("--list", "--prefix", str(tmp_path))

    assert told.returncode == 0
    assert told.stdout.startswith("cpu 0c1e57-aaa (pinned)\ncpu 0c1e57-bbb (current) (failed)\n")


def test_where_nothing_was_built_the_list_says_so(build: Build, tmp_path: Path) -> None:
    told = build("--list", "--prefix", str(tmp_path))

    assert told.returncode == 0
    assert "no builds" in told.stdout


def test_missing_tools_are_named_in_one_line_with_their_packages(
    build: Build, source: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "uname", "id", "nproc", "awk", "cat", "env"):
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
    )

    assert told.returncode == 1
    assert "could not configure" in told.stderr
    assert os.readlink(prefix / "cpu" / "current") == "old"


def test_a_build_is_tried_described_and_made_the_current_one(
    builder: Build, tmp_path: Path
) -> None:
    told = builder("--jobs", "3")

    manifest = json.loads((current(tmp_path) / "manifest.json").read_text())
    digest = hashlib.sha256((current(tmp_path) / "bin" / "llama-server").read_bytes()).hexdigest()
    assert told.returncode == 0
    assert manifest["backend"] == "cpu"
    assert manifest["build_id"] == current(tmp_path).name
    assert manifest["commit"] == "local"
    assert manifest["source"] == "folder"
    assert "-DIOS_VARIANT=portable" in manifest["options"]
    assert manifest["toolchain"][0] == "c++ 12"
    assert manifest["found"]["version"] == "1 (fake)"
    assert manifest["files"] == {"bin/llama-server": digest}
    assert "--parallel 3" in calls(tmp_path)


def test_configuring_alone_builds_and_installs_nothing(builder: Build, tmp_path: Path) -> None:
    told = builder("--configure")

    assert told.returncode == 0
    assert told.stdout.splitlines()[-1].startswith(f"configured: {tmp_path}/work/trees/cpu-local-")
    assert "--build" not in calls(tmp_path)
    assert not (tmp_path / "engines" / "cpu" / "current").exists()


def test_what_is_there_already_is_not_built_again(builder: Build, tmp_path: Path) -> None:
    builder()
    built = calls(tmp_path)

    told = builder()

    assert told.stdout == f"up to date: {current(tmp_path)}\n"
    assert calls(tmp_path) == built


def test_a_build_whose_file_was_changed_is_built_again(builder: Build, tmp_path: Path) -> None:
    builder()
    binary = current(tmp_path) / "bin" / "llama-server"
    binary.write_text("#!/bin/sh\n")

    told = builder()

    assert told.returncode == 0
    assert binary.read_bytes() == FAKE.read_bytes()


def test_another_source_or_option_makes_another_build(
    builder: Build, source: Path, tmp_path: Path
) -> None:
    builder()
    builder("--one-variant")
    (source / "changed").touch()
    builder()

    assert len(list((tmp_path / "engines" / "cpu").glob("local-*"))) == 3


def test_a_build_that_cannot_decode_here_leaves_current_as_it_was(
    builder: Build, source: Path, tmp_path: Path
) -> None:
    builder()
    before = current(tmp_path)
    (source / "changed").touch()

    told = builder(FAKE_FAULTS=SIGILL)

    assert told.returncode == 1
    assert "SIGILL" in told.stderr
    assert current(tmp_path) == before
    assert [path.name for path in before.parent.iterdir() if path.is_dir()].count(before.name) == 1
    assert not list(before.parent.glob(".staging-*"))


def test_a_build_that_is_killed_leaves_current_and_goes_on_at_the_next_try(
    builder: Build, at_once: dict[str, str], source: Path, tmp_path: Path
) -> None:
    builder()
    before = current(tmp_path)
    (source / "changed").touch()
    (left := before.with_name(".staging-of-another")).mkdir()
    (slow := tmp_path / "tools" / "slow").touch()
    argv = ["bash", str(SCRIPT), "cpu", "--prefix", str(tmp_path / "engines")]

    with subprocess.Popen(argv, env=at_once, start_new_session=True) as killed:
        until(lambda: calls(tmp_path).count("--build") == 2, within_s=30)
        os.killpg(killed.pid, signal.SIGKILL)
    slow.unlink()

    assert current(tmp_path) == before
    told = builder()
    assert told.returncode == 0, told.stderr
    assert current(tmp_path) != before
    assert not left.exists()


def test_older_builds_go_but_not_the_pinned_one(
    builder: Build, source: Path, tmp_path: Path
) -> None:
    names = []
    for number in range(3):
        (source / "changed").write_text(str(number))
        builder("--keep", "1")
        names.append(current(tmp_path).name)
        os.utime(current(tmp_path) / "bin" / "llama-server", (number, number))
        if number == 0:
            (tmp_path / "engines" / "cpu" / "pinned").symlink_to(names[0])

    kept = {path.name for path in (tmp_path / "engines" / "cpu").glob("local-*")}
    assert kept == {names[0], names[2]}


def test_a_commit_is_fetched_by_git_and_proved_by_its_id(
    builder: Build, source: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "upstream.git"
    git("init", "-q", cwd=source)
    git("add", ".", cwd=source)
    git("commit", "-q", "-m", "old", cwd=source)
    commit = git("rev-parse", "HEAD", cwd=source)
    (source / "newer").touch()
    git("add", ".", cwd=source)
    git("commit", "-q", "-m", "new", cwd=source)
    git("clone", "-q", "--bare", str(source), str(bare), cwd=tmp_path)

    told = builder("--commit", commit, "--repository", f"file://{bare}", LLAMA_CPP_SOURCE="")

    manifest = json.loads((current(tmp_path) / "manifest.json").read_text())
    laid = tmp_path / "work" / "source" / commit
    assert told.returncode == 0
    assert manifest["commit"] == commit
    assert manifest["source"] == f"git file://{bare}"
    assert (laid / "ggml" / "CMakeLists.txt").is_file()
    assert not (laid / "newer").exists()
    assert not (laid / ".git").exists()


def test_a_commit_that_no_repository_has_is_refused(
    builder: Build, source: Path, tmp_path: Path
) -> None:
    git("init", "-q", cwd=source)

    told = builder("--commit", "0" * 40, "--repository", f"file://{source}", LLAMA_CPP_SOURCE="")

    assert told.returncode == 1
    assert f"build_backends.sh: git could not fetch {'0' * 40} from file://{source}" in told.stderr
    assert not (tmp_path / "engines" / "cpu" / "current").exists()


def test_a_second_builder_waits_for_its_turn(at_once: dict[str, str], tmp_path: Path) -> None:
    engines = tmp_path / "engines"
    engines.mkdir()
    argv = ["bash", str(SCRIPT), "cpu", "--prefix", str(engines)]
    with (engines / ".lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        with subprocess.Popen(argv, env=at_once, stdout=subprocess.PIPE, text=True) as second:
            assert second.stdout is not None
            told = second.stdout.readline()
            fcntl.flock(first, fcntl.LOCK_UN)
            second.communicate(timeout=60)

        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert told == f"waiting for another build in {engines}\n"
    assert second.returncode == 0


def test_what_cannot_be_built_here_is_listed_with_what_is_missing(build: Build) -> None:
    listed = build("--list").stdout.splitlines()
    lines = dict(line.strip().split(": ", 1) for line in listed if line.startswith("  "))

    assert set(lines) == {"cpu", "vulkan", "cuda", "hip", "metal"}
    assert lines["hip"].startswith("no: ")
    assert "ROCm 6.1" in lines["hip"] or sys.platform == "darwin"
    assert ("a Mac" in lines["metal"]) is (sys.platform != "darwin")


def test_auto_says_why_it_leaves_a_backend_out(build: Build, source: Path) -> None:
    told = build("auto", "--dry-run", "--source", str(source))

    assert told.returncode == 0
    assert "hip: no: " in told.stdout
    assert "-DIOS_BACKEND=cpu" in told.stdout
    assert "-DIOS_BACKEND=hip" not in told.stdout


def test_what_is_got_in_one_way_is_named_together_and_the_way_once(
    build: Build, source: Path, tmp_path: Path
) -> None:
    told = build("vulkan", "--source", str(source), VULKAN_SDK=str(tmp_path))

    assert told.returncode == 1
    assert "Vulkan headers of 1.3.272 or newer, glslc, SPIR-V headers (" in told.stderr


def test_a_named_backend_that_lacks_its_tools_is_refused_in_one_line(
    build: Build, source: Path
) -> None:
    told = build("hip", "--source", str(source), ROCM_PATH="/nonexistent")

    assert told.returncode == 1
    assert len(told.stderr.splitlines()) == 1
    assert "hip needs ROCm 6.1 or newer at /nonexistent" in told.stderr


def test_tools_that_cannot_be_fetched_are_said_in_the_last_line_and_leave_nothing(
    environ: dict[str, str], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *" install "*) exit 1 ;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    toolchains = tmp_path / "work" / "toolchains"
    (toolchains / "cuda.new").mkdir(parents=True)  # of a fetch that was killed

    told = subprocess.run(
        ["bash", str(ROOT / "scripts" / "fetch_toolchain.sh"), "cuda"],
        env=environ | {"PYTHON": str(python), "INFERENCEOSD_BUILD_DIR": str(tmp_path / "work")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert told.returncode == 1
    assert told.stderr == "fetch_toolchain.sh: pip could not fetch the CUDA packages\n"
    assert [path.name for path in toolchains.iterdir()] == [".lock"]


def test_shellcheck_has_nothing_to_say() -> None:
    checker = Path(sys.executable).parent / "shellcheck"

    told = subprocess.run(
        [str(checker), "--external-sources", *map(str, SHELL_FILES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert told.stdout == ""
    assert told.returncode == 0


@pytest.mark.parametrize("file", SHELL_FILES, ids=lambda file: file.name)
def test_the_scripts_use_nothing_newer_than_bash_3_2(file: Path) -> None:
    assert NEWER_THAN_BASH_3_2.findall(file.read_text()) == []


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
