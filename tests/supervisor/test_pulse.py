import os
import signal
import subprocess
import sys

import pytest

from supervisor.pulse import NOTHING, work_of


def test_what_a_process_computes_is_counted() -> None:
    spun = "sum(range(3_000_000)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", spun], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()

        assert work_of(child.pid).cpu_s > 0

        child.communicate(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_disk_reads_only_grow() -> None:
    before = work_of(os.getpid())

    assert work_of(os.getpid()).disk_reads >= before.disk_reads


def test_a_process_that_runs_is_runnable_and_one_that_waits_is_not() -> None:
    assert work_of(os.getpid()).is_runnable
    with subprocess.Popen(["sleep", "60"]) as child:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)

        assert not work_of(child.pid).is_runnable

        child.kill()


def test_a_process_that_is_gone_does_nothing() -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        child.wait()

    assert work_of(child.pid) == NOTHING
