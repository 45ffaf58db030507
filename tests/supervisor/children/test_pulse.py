import os
import signal
import subprocess
import sys

import pytest

from supervisor.children.pulse import Work, kernel_kills, work_of


def told(pid: int) -> Work:
    """Of a process that is there."""
    work = work_of(pid)
    assert work is not None
    return work


def test_what_a_process_computes_is_counted() -> None:
    spun = "sum(range(3_000_000)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", spun], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()

        assert told(child.pid).cpu_s > 0

        child.communicate(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_disk_reads_only_grow() -> None:
    before = told(os.getpid())

    assert told(os.getpid()).disk_reads >= before.disk_reads


def test_a_process_that_runs_is_runnable_and_one_that_waits_is_not() -> None:
    assert told(os.getpid()).is_runnable
    with subprocess.Popen(["sleep", "60"]) as child:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)

        assert not told(child.pid).is_runnable

        child.kill()


def test_nothing_is_told_of_a_process_that_is_gone() -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        child.wait()

    assert work_of(child.pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_what_another_process_kills_is_no_killing_of_the_kernels() -> None:
    before = kernel_kills()
    with subprocess.Popen(["sleep", "60"]) as child:
        child.kill()

    after = kernel_kills()

    assert before is None or (after is not None and after >= before >= 0)
