"""What is left of many lives of the real engine: nothing."""

import sys
from typing import Any

import psutil
import pytest

from scripts.started_daemon import StartedDaemon
from tests.fakes.waiting import until
from tests.integration.test_sharing import MODEL, chat

CYCLES = 5  # one that leaks does so in every one
WITHIN_S = 20.0


def held(daemon: StartedDaemon) -> tuple[int, int, int]:
    """Descriptors, threads and children of the daemon, zombies among them."""
    process = psutil.Process(daemon.process.pid)
    return process.num_fds(), process.num_threads(), len(process.children(recursive=True))


def lived(daemon: StartedDaemon, times: int) -> None:
    """Load the model by a request and unload it, over and over."""
    for _ in range(times):
        assert chat(daemon).status_code == 200
        assert daemon.ctl("unload", MODEL).returncode == 0
        until(lambda: not daemon.status()["instances"], within_s=WITHIN_S)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_loads_and_unloads_leave_no_descriptor_thread_or_process(start: Any) -> None:
    daemon = start()
    lived(daemon, 2)
    before = held(daemon)

    lived(daemon, CYCLES)

    until(
        lambda: all(now <= was for now, was in zip(held(daemon), before, strict=True)),
        within_s=WITHIN_S,
        told=lambda: (before, held(daemon)),
    )
    run_dirs = list((daemon.folder / "run").glob("c-*"))
    assert [each.name for folder in run_dirs for each in folder.iterdir()] == ["cwd"]
