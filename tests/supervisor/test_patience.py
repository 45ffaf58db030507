import asyncio
import subprocess
import sys
import threading
import time

import pytest

from supervisor.patience import NoAnswer, PatientReader


async def test_an_answer_comes_from_a_named_thread() -> None:
    reader = PatientReader("nvml", lambda: threading.current_thread().name, limit_s=10)

    assert await reader.read() == "read-nvml"
    assert await reader.read() == "read-nvml"


async def test_an_error_of_the_source_is_its_readers() -> None:
    def read() -> None:
        raise FileNotFoundError("gone")

    reader = PatientReader("amdgpu", read, limit_s=10)

    with pytest.raises(FileNotFoundError, match="gone"):
        await reader.read()
    with pytest.raises(FileNotFoundError, match="gone"):
        await reader.read()


async def test_a_source_that_hangs_is_given_up_and_not_waited_for_again() -> None:
    let_go = threading.Event()
    threads: list[str] = []

    def read() -> int:
        threads.append(threading.current_thread().name)
        let_go.wait(30)
        return 1

    reader = PatientReader("nvml", read, limit_s=0.5)
    with pytest.raises(NoAnswer, match=r"nvml: no answer within 0.5 s"):
        await reader.read()
    begun_s = time.monotonic()

    with pytest.raises(NoAnswer):
        await reader.read()

    assert time.monotonic() - begun_s < 0.5
    assert len(threads) == 1
    let_go.set()


async def test_a_source_that_comes_back_is_read_again() -> None:
    let_go = threading.Event()
    reader = PatientReader("nvml", lambda: let_go.wait(30), limit_s=0.1)
    with pytest.raises(NoAnswer):
        await reader.read()

    let_go.set()
    async with asyncio.timeout(10):
        while True:
            try:
                assert await reader.read()
                break
            except NoAnswer:
                await asyncio.sleep(0.01)  # cadence: the late answer crosses threads


async def test_a_reader_that_was_cancelled_does_not_look_hung_to_the_next() -> None:
    let_go = threading.Event()
    reader = PatientReader("nvml", lambda: let_go.wait(30), limit_s=20)
    first = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    second = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    let_go.set()

    assert await second


def test_a_source_that_hangs_does_not_keep_the_process_from_ending() -> None:
    script = """
import asyncio, threading
from supervisor.patience import NoAnswer, PatientReader
async def main():
    try:
        await PatientReader("nvml", threading.Event().wait, limit_s=0.05).read()
    except NoAnswer:
        print("given up")
asyncio.run(main())
"""

    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )

    assert told.stdout == "given up\n"
    assert told.stderr == ""


async def test_who_asks_at_the_moment_of_an_answer_begins_a_read_of_its_own() -> None:
    gate, answers = threading.Event(), iter(["of the first", "of the second"])

    def read() -> str:
        assert gate.wait(10.0)
        return next(answers)

    reader = PatientReader("moment", read, limit_s=10.0)
    first = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "read-moment":
            thread.join(10.0)  # its answer is in the loop's line now
    await asyncio.sleep(0)  # and settled now, though whoever waits for it has not heard yet

    assert await reader.read() == "of the second"
    assert await first == "of the first"
