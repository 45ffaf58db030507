"""Engines compiled from source by scripts/build_backends.sh; `make backends` runs this folder.

Object files stay in the script's build folder, so that only a first run takes long.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_S = 75 * 60.0  # all CPU libraries on two cores that others use, too; alone 12 minutes

Run = Callable[..., subprocess.CompletedProcess[str]]
Built = Callable[..., Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder compiles, or waits for what does."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.build)
            item.add_marker(pytest.mark.timeout(LONGEST_S))


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this run's builds go."""
    return tmp_path_factory.mktemp("engines")


def build_folder() -> Path:
    """Where the build script keeps sources and object files."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("INFERENCEOSD_BUILD_DIR") or home / "inferenceosd" / "build")


def cpu_s() -> float:
    """What ended children have computed, theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="session")
def script(prefix: Path) -> Run:
    """Runs one of the build scripts; its progress is shown, its last lines are kept."""

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = ["bash", str(ROOT / "scripts" / name), *arguments]
        lines: list[str] = []
        before_s, begun_s = cpu_s(), time.monotonic()
        with subprocess.Popen(
            argv,
            env={**os.environ, "PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as child:
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    print(line, end="", flush=True)
                    lines.append(line)
            except BaseException:
                os.killpg(child.pid, signal.SIGTERM)  # compilers outlive the script otherwise
                raise
        took = f"{time.monotonic() - begun_s:.0f} s, {cpu_s() - before_s:.0f} s of CPU"
        print(f"{' '.join((name, *arguments))}: {took}", flush=True)
        return subprocess.CompletedProcess(argv, child.returncode, "".join(lines[-50:]))

    return run


@pytest.fixture(scope="session")
def built(script: Run, prefix: Path) -> Built:
    """The folder of a build, made where it is not there yet."""
    made: dict[tuple[str, ...], Path] = {}

    def build(backend: str, *options: str) -> Path:
        key = (backend, *options)
        if key not in made:
            done = script("build_backends.sh", backend, *options, "--prefix", str(prefix))
            assert done.returncode == 0, done.stdout
            made[key] = (prefix / backend / "current").resolve(strict=True)
        return made[key]

    return build


@pytest.fixture(scope="session")
def cpu(built: Built) -> Path:
    """The portable build, with a library for each CPU generation."""
    return built("cpu")


@pytest.fixture(scope="session")
def one_variant(built: Built, cpu: Path) -> Path:
    """The build for AVX2 and newer alone. After the other: it shares all else with it."""
    return built("cpu", "--one-variant")


@pytest.fixture
def emulated(tmp_path: Path) -> Callable[[Path, str], Path]:
    """A llama-server as another CPU would run it."""
    emulator = shutil.which("qemu-x86_64")
    assert emulator is not None, "needs qemu-x86_64: apt install qemu-user"

    def under(build: Path, cpu: str) -> Path:
        path = tmp_path / cpu / "llama-server"
        path.parent.mkdir()
        binary = build / "bin" / "llama-server"
        path.write_text(f'#!/bin/sh\nexec {emulator} -cpu {cpu} {binary} "$@"\n')
        path.chmod(0o755)
        return path

    return under
