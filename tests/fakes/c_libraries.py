"""Small C libraries that stand in for vendors', built anew in each session."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def built(source: Path, library: Path) -> Path:
    """The shared library `library` made of `source`; CI fails without a compiler, others skip."""
    compiler = shutil.which("cc")
    if compiler is None and not os.environ.get("CI"):
        pytest.skip("no C compiler: a vendor's library cannot be faked")
    assert compiler is not None, "CI needs cc: apt install gcc libc6-dev"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", str(source)]
    subprocess.run([*command, "-o", str(library), "-ldl"], check=True, timeout=60)
    return library
