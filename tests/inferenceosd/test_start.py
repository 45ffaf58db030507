"""inferenceosd.start: signals that come while the program still imports what it is made of."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.started_daemon import started_daemon
from tests.fakes.waiting import until


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for the sockets within it."""
    with tempfile.TemporaryDirectory(prefix="ios-") as folder:
        yield Path(folder)


WITHIN_S = 30.0


def until_heeding(pid: int, number: signal.Signals) -> None:
    """Wait for the first moment in which a process has a handler for a signal."""
    give_up_s = time.monotonic() + WITHIN_S
    while not caught(pid) >> (number - 1) & 1:
        assert time.monotonic() < give_up_s


def caught(pid: int) -> int:
    """The mask of the signals that a process has handlers for."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("SigCgt:")), 16)


def test_signals_are_heeded_before_anything_of_weight_is_imported() -> None:
    told = "import sys, inferenceosd.start; print('click' in sys.modules, 'asyncio' in sys.modules)"

    found = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)

    assert found.stdout.split() == ["False", "False"]


def test_a_sighup_in_the_first_moment_has_the_daemon_read_its_file_again(short: Path) -> None:
    with started_daemon(short, model_dirs=()) as daemon:
        until_heeding(daemon.process.pid, signal.SIGHUP)

        daemon.process.send_signal(signal.SIGHUP)

        daemon.wait_for_engines()
        until(lambda: "config.reloaded" in daemon.log(), within_s=WITHIN_S)
        daemon.process.terminate()
        assert daemon.process.wait(WITHIN_S) == 0


@pytest.mark.parametrize("after", [(), (signal.SIGHUP,)], ids=["alone", "after SIGHUP"])
def test_a_stop_in_the_first_moment_is_one_that_was_asked_for(
    short: Path, after: tuple[signal.Signals, ...]
) -> None:
    with started_daemon(short, model_dirs=()) as daemon:
        until_heeding(daemon.process.pid, signal.SIGTERM)

        for number in (*after, signal.SIGTERM):
            daemon.process.send_signal(number)

        assert daemon.process.wait(WITHIN_S) == 0
        assert "Traceback" not in daemon.log()
