"""A child is a real process here: the shell, told to behave badly."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import psutil
import pytest
import uvloop

from supervisor.children.child import FLOOD_BYTES, FLOOD_PAUSE_S, Child, SpawnFailed, running
from tests.fakes.processes import is_gone, until_gone, until_runs


def _ignore(line: str) -> None:
    del line


@asynccontextmanager
async def shell(
    script: str,
    *,
    stop_s: float = 1.0,
    on_stdout: Callable[[str], None] = _ignore,
    on_stderr: Callable[[str], None] = _ignore,
) -> AsyncIterator[Child]:
    async with running(
        ["/bin/sh", "-c", script],
        env={"PATH": os.environ["PATH"]},
        cwd="/",
        stop_s=stop_s,
        on_stdout=on_stdout,
        on_stderr=on_stderr,
    ) as child:
        yield child


async def first_line(lines: list[str]) -> str:
    async with asyncio.timeout(5):
        while not lines:
            await asyncio.sleep(0.005)
    return lines[0]


async def test_leaving_the_block_ends_the_child() -> None:
    async with shell("exec sleep 60") as child:
        pid = child.pid

    assert is_gone(pid)
    assert child.returncode == -signal.SIGTERM


async def test_a_child_that_ignores_sigterm_is_killed_after_stop_s() -> None:
    said: list[str] = []
    async with shell(
        "trap '' TERM; echo ready; while :; do sleep 0.05; done", stop_s=0.2, on_stdout=said.append
    ) as child:
        await first_line(said)

    assert child.returncode == -signal.SIGKILL


async def test_a_killed_childs_whole_group_dies_with_it() -> None:
    said: list[str] = []
    script = "trap '' TERM; sleep 60 & echo $!; while :; do sleep 0.05; done"
    async with shell(script, stop_s=0.1, on_stdout=said.append):
        grandchild = int(await first_line(said))

    await until_gone(grandchild)


async def test_what_a_child_started_does_not_outlive_its_own_quiet_end() -> None:
    said: list[str] = []

    async with shell("sleep 60 & echo $!; wait", on_stdout=said.append) as child:
        grandchild = int(await first_line(said))

    assert child.returncode == -signal.SIGTERM
    await until_gone(grandchild)


async def test_a_child_that_is_asked_over_its_stdin_gets_no_signal() -> None:
    said: list[str] = []
    script = "trap 'echo signalled' TERM; echo ready; read line; echo got $line; exit 7"
    async with shell(script, on_stdout=said.append) as child:
        await first_line(said)
        child.farewell = b"bye\n"

    assert said == ["ready", "got bye"]
    assert child.returncode == 7


async def test_a_stopped_child_is_killed() -> None:
    async with shell("exec sleep 60", stop_s=0.1) as child:
        os.kill(child.pid, signal.SIGSTOP)
        async with asyncio.timeout(5):
            while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
                await asyncio.sleep(0.005)

    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize("cancels", [1, 2], ids=["cancelled once", "cancelled twice"])
async def test_cancelling_the_owner_reaps_the_child(cancels: int) -> None:
    pids: list[int] = []

    async def own() -> None:
        async with shell("trap '' TERM; while :; do sleep 0.05; done", stop_s=0.5) as child:
            pids.append(child.pid)
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    async with asyncio.timeout(5):
        while not pids:
            await asyncio.sleep(0.005)
    for _ in range(cancels):
        owner.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await owner

    await until_gone(pids[0])


async def test_an_error_in_the_block_reaps_the_child_and_travels_on() -> None:
    with pytest.raises(ZeroDivisionError):
        async with shell("exec sleep 60") as child:
            _ = 1 / 0

    assert is_gone(child.pid)


async def test_output_is_read_to_the_last_line_before_wait_returns() -> None:
    heard: list[str] = []
    async with shell("echo one >&2; echo two >&2; exit 3", on_stderr=heard.append) as child:
        await child.wait()

    assert heard == ["one", "two"]
    assert child.returncode == 3
    assert child.log.last(5) == ("one", "two")


async def test_a_flood_of_output_costs_bounded_memory() -> None:
    heard: list[str] = []
    flood = "i=0; while [ $i -lt 3000 ]; do printf '%0300d\\n' $i >&2; i=$((i+1)); done"
    line_of_megabytes = "; head -c 3000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo end >&2"
    async with shell(flood + line_of_megabytes, on_stderr=heard.append) as child:
        async with asyncio.timeout(30):
            await child.wait()

    assert max(map(len, heard)) <= 4096
    assert child.log.last(1) == ("end",)


async def test_a_program_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(SpawnFailed, match=r"/nowhere/llama-server: No such file"):
        async with running(
            ["/nowhere/llama-server"],
            env={},
            cwd="/",
            stop_s=1.0,
            on_stdout=_ignore,
            on_stderr=_ignore,
        ):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_lack_of_descriptors_is_said_and_leaks_none() -> None:
    """Under uvloop, the daemon's own loop, whose failed spawns leak."""

    async def spawned() -> None:
        async with shell("exit"):
            pass

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(spawned())
        before = len(os.listdir("/proc/self/fd"))
        for spare in range(0, 12, 3):
            resource.setrlimit(resource.RLIMIT_NOFILE, (before + spare, hard))
            try:
                with pytest.raises(SpawnFailed, match="Too many open files"):
                    runner.run(spawned())
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        after = len(os.listdir("/proc/self/fd"))

    assert after == before


async def test_a_child_inherits_no_descriptor_but_its_three_pipes(tmp_path: Path) -> None:
    said: list[str] = []
    with (tmp_path / "ours").open("w"):
        async with shell("ls /proc/$$/fd; exit", on_stdout=said.append) as child:
            await child.wait()

    assert said == ["0", "1", "2"]


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_daemon_takes_its_child_along(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio, sys
        from supervisor.children.child import running
        async def main():
            async with running(
                ["/bin/sleep", "60"], env={}, cwd="/", stop_s=1.0, on_stdout=print, on_stderr=print
            ) as child:
                print(child.pid, flush=True)
                await asyncio.Event().wait()
        asyncio.run(main())
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout is not None
        child_pid = int(daemon.stdout.readline())
        # What ties it to the daemon becomes the program only after having done so.
        asyncio.run(until_runs(child_pid, "sleep"))
        daemon.kill()

    asyncio.run(until_gone(child_pid))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
async def test_a_child_that_floods_its_log_is_read_a_little_at_a_time() -> None:
    async with shell("yes >&2 & echo $!; wait") as child:
        began_s, before = monotonic(), io_written(child.pid)
        await asyncio.sleep(4 * FLOOD_PAUSE_S)  # the flood runs
        turns = 1 + (monotonic() - began_s) / FLOOD_PAUSE_S
        written = io_written(child.pid) - before

    assert written <= turns * 2 * FLOOD_BYTES


async def test_a_child_that_floods_its_log_has_its_last_words_read() -> None:
    async with shell("yes | head -c 3000000 >&2; echo the end >&2; exit 3") as child:
        await child.wait()

        assert child.returncode == 3
        assert child.log.last(1) == ("the end",)


def io_written(pid: int) -> int:
    """Bytes that a process and what it started have written."""
    process = psutil.Process(pid)
    return sum(each.io_counters().write_chars for each in process.children())
