"""Small C libraries that stand in for vendors', built anew in each session."""

import subprocess
from pathlib import Path

from tests.fakes.system_parts import need_compiler


def built(source: Path, library: Path) -> Path:
    """The shared library at `library`, made of `source`."""
    need_compiler()
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", str(source)]
    subprocess.run([*command, "-o", str(library), "-ldl"], check=True, timeout=60)
    return library
