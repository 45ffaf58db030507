"""The two C programs and the engine that starts one of them, made in a folder of the run."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FAKE = HERE.parents[1] / "tests" / "fakes" / "llama_server.py"

_ENGINE = """#!/bin/sh
# Trials are answered by the stand-in; a launch of one of the run's models is the C program.
socket=; model=; previous=
for word; do
    [ "$previous" != --host ] || socket=$word
    [ "$previous" != --model ] || model=$word
    previous=$word
done
case $model in {models}/*) exec {upstream} "$socket" ;; esac
exec {python} {fake} "$@"
"""


def program(name: str, folder: Path) -> Path:
    """`name`.c of this folder, compiled. Raises CalledProcessError, FileNotFoundError (no cc)."""
    built = folder / name
    source = HERE / f"{name}.c"
    subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-o", built, source], check=True)
    return built


def engine(folder: Path, *, upstream: Path, models: Path) -> Path:
    """An engine that passes its trials, and whose children for `models` are `upstream`."""
    path = folder / "llama-server"
    told = {"models": models, "upstream": upstream, "python": sys.executable, "fake": FAKE}
    path.write_text(_ENGINE.format(**told))
    path.chmod(0o755)
    return path
