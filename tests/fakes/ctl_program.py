"""inferenceosctl as tests ask it: within this process, and as the installed program."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from inferenceosd.ctl import main

PROGRAM = Path(sys.executable).with_name("inferenceosctl")


def ctl(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--socket", str(path), *arguments])


@contextmanager
def program(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The installed program, asking the daemon on `path`; it has ended with the block."""
    with subprocess.Popen(
        [PROGRAM, "--socket", str(path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def line_of(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline()
